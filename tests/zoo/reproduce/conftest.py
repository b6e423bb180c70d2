"""A small table of made-up rows, and a stand-in for `zoo` in its runs."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from tests.zoo.conftest import sentences, write_table
from zoo.cli import main
from zoo.reproduce import run as runs_of_a_table
from zoo.reproduce.run import Score

#: Returns the commands that ran since its last call.
Calls: TypeAlias = Callable[[], list[list[str]]]

BASE: dict[str, Any] = {
    "model": {"class_path": "KNNBiLSTM", "init_args": {"features": "M7", "hidden_size": 6, "word_size": 8}},
    "data": {
        "class_path": "ClassificationDataModule",
        "init_args": {
            **{"train_file": "corpus/train.csv", "num_memories": 3, "batch_size": 16},
            **{"validation_split": 0.2, "retriever": "EmbeddedRetriever"},
        },
    },
    "trainer": {"accelerator": "cpu", "max_epochs": 1},
}
#: A row without training, which does not depend on the seed.
MAJORITY: dict[str, Any] = {"overrides": {"model": "Majority"}}
ROWS: dict[str, Any] = {
    "majority": MAJORITY,
    "M1": {"overrides": {"model.features": "M1"}, "paper": 50.0},
    "M7": {"paper": 60.0},
}

#: Replaces `zoo` in tests of what surrounds the runs: it logs its arguments in calls.txt and writes the files of the
#: command. Validation accuracy is seed/10 after a fit; M2 fails; M3 kills itself; M4 ends without a summary.
STAND_IN = """
import json, os, signal, sys
from pathlib import Path
command, arguments = sys.argv[1], sys.argv[2:]
with open("calls.txt", "a") as calls:
    calls.write(json.dumps([command, *arguments]) + "\\n")
options = dict(a.removeprefix("--").split("=", 1) for a in arguments if "=" in a)
if options.get("model.features") == "M2":
    print("a warning\\nzoo: error: M2 is out of order", file=sys.stderr)
    print("half a line of output")
    raise SystemExit(2)
if command == "fit":
    run = Path(options["run_dir"])
    if run.exists() and any(run.iterdir()):
        raise SystemExit("the folder is not empty")
    (run / "checkpoints").mkdir(parents=True)
    if options.get("model.features") == "M3":
        os.kill(os.getpid(), signal.SIGKILL)
    if options.get("model.features") == "M4":
        raise SystemExit(0)
    (run / "checkpoints/best.ckpt").write_text("weights")
    figures = {"val/accuracy": int(options["seed_everything"]) / 10, "val/macro_f1": 0.02}
    (run / "summary.json").write_text(json.dumps({"best": {"epoch": 2, "metrics": figures}}))
else:
    Path(options["output"]).write_text(json.dumps({"accuracy": 0.75, "macro_f1": 0.5}))
"""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data" / "corpus").mkdir(parents=True)
    write_table(tmp_path / "data" / "corpus" / "train.csv", sentences(90, seed=1))
    return tmp_path / "data"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Replaces `zoo` in runs; returns the commands since its last call."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    # -S -E: without packages it starts faster.
    monkeypatch.setattr(runs_of_a_table, "ZOO", (sys.executable, "-S", "-E", str(tmp_path / "stand_in.py")))

    def calls() -> list[list[str]]:
        file = tmp_path / "calls.txt"
        commands = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        file.unlink(missing_ok=True)
        return commands

    return calls


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls `zoo` in this process: saves the imports of each command."""

    def run(arguments: list[str], log: Path) -> None:
        assert main(arguments) == 0, log

    monkeypatch.setattr(runs_of_a_table, "_zoo", run)


def reproduce(*arguments: Any, **options: Any) -> dict[str, dict[str, Score]]:
    """Run a table; return row -> metric -> score."""
    scores: dict[str, dict[str, Score]] = {}
    for score in runs_of_a_table.reproduce(*arguments, **options):
        scores.setdefault(score.row, {})[score.metric] = score
    return scores


def read_scores(file: Path) -> list[Score]:
    _, *lines = csv.reader(file.read_text().splitlines())
    return [Score(*line[:4], *(json.loads(cell or "null") for cell in line[4:8]), line[8]) for line in lines]


def write_yaml(rows: dict[str, Any], **keys: Any) -> str:
    table = {"description": "made up", "minutes": 1, "paper_metric": "val/accuracy", "seeds": 2}
    Path("small.yaml").write_text(
        yaml.safe_dump({**table, "base": BASE, "rows": rows, **keys}, sort_keys=False)
    )
    return "small.yaml"
