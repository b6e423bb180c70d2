"""The sweep of the examples: trials are run folders, and the study is resumed."""

import sys
from pathlib import Path

import optuna
import pytest

from tests.zoo.conftest import SMALL, python, read_json
from tests.zoo.examples import EXAMPLES, imported, python_blocks

SCRIPT = EXAMPLES / "sweeps" / "sweep.py"


@pytest.mark.slow
def test_a_sweep_is_resumed_and_compared(train_csv: Path) -> None:
    options = [*SMALL, "--data.train_file", train_csv, "--trainer.max_epochs=1"]
    sweep = (SCRIPT, "--folder=sweeps/topics", *options)
    python(*sweep, "--trials=1")
    first = (Path("sweeps/topics/trial-0/summary.json")).read_bytes()
    swept = python(*sweep, "--trials=2")
    assert Path("sweeps/topics/trial-0/summary.json").read_bytes() == first
    study = optuna.load_study(study_name="zoo", storage="sqlite:///sweeps/topics/trials.db")
    assert len(study.trials) == 2
    for trial in study.trials:
        summary = read_json(f"sweeps/topics/trial-{trial.number}/summary.json")
        assert trial.value == summary["best_score"]
        config = Path(f"sweeps/topics/trial-{trial.number}/config.yaml").read_text()
        assert f"features: {trial.params['model.features']}" in config
    assert f"sweeps/topics/trial-{study.best_trial.number} " in swept.stdout
    (code,) = (block for block in python_blocks("logger") if block.startswith("import json"))
    Path("compare.py").write_text(code.replace('"runs"', '"sweeps/topics"'))
    shown, before, after = python("compare.py").stdout, *(trial.params for trial in study.trials)
    for name in before:  # what is equal in all runs is not shown
        assert (f".{name.rpartition('.')[2]} " in shown) == (before[name] != after[name]), shown


@pytest.mark.slow
def test_a_wrong_option_ends_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--folder=sweeps/topics", "--trials=2", *SMALL, "--data.train_file=gone.csv"]
    monkeypatch.setattr(sys, "argv", ["sweep.py", *options])
    with pytest.raises(SystemExit, match="2"):
        imported(SCRIPT).main()
    err = capfd.readouterr().err
    assert "gone.csv" in err
    assert "Traceback" not in err
    study = optuna.load_study(study_name="zoo", storage="sqlite:///sweeps/topics/trials.db")
    assert len(study.trials) == 1
