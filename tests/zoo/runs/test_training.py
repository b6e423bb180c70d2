"""`train` and `evaluate` take values, return values, and leave the process as it was; the scores as a text."""

import json
import logging
import os
import random
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import LambdaCallback, ModelCheckpoint

import zoo
from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from tests.zoo.conftest import fit_options, last, write_table
from zoo.runs.evaluation import MOST_CLASSES, as_json, as_text, evaluate
from zoo.runs.training import Trained, TrainerOptions, train
from zoo.tasks.base import Evaluation

LOGGERS = ("", "zoo", "datamodules", "pytorch_lightning", "lightning_fabric")


def trained(table: Path, folder: Path, **arguments: Any) -> tuple[Trained, Any, Any]:
    model = zoo.KNNBiLSTM(hidden_size=6, word_size=8, char_hidden_size=5, num_perspectives=2, dropout=0.3)
    data = ClassificationDataModule(
        train_file=str(table), test_file=str(table), num_memories=3, batch_size=16, validation_split=0.2
    )
    arguments = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, **arguments}
    result = train(model, data, TrainerOptions(arguments, seed=3), folder, {"seed_everything": 3})
    return result, model, data


def train_and_evaluate(table: Path, folder: Path) -> None:
    _, model, data = trained(table, folder)
    scores = evaluate(model, data, "test", TrainerOptions({"accelerator": "cpu"}))
    (folder / "scores.json").write_text(json.dumps(as_json(scores)))


def state_of_the_process() -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "logs": [(logging.getLogger(name).level, [*logging.getLogger(name).handlers]) for name in LOGGERS],
        "folder": Path.cwd(),
        "warnings": [*warnings.filters],
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "torch": torch.get_rng_state().tolist(),
        "flushing": bool(torch.tensor(1e-40) * 1 == 0),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def test_threads_train_and_evaluate_and_leave_the_process_as_it_was(
    train_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train_and_evaluate(train_csv, tmp_path / "first")  # imports change filters of warnings, once
    for name in LOGGERS[1:]:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.ERROR)
    monkeypatch.setenv("PL_GLOBAL_SEED", "41")
    handlers = [signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            random.seed(5)
            np.random.seed(6)  # noqa: NPY002
            torch.manual_seed(7)
            before = state_of_the_process()
            capfd.readouterr()
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(partial(train_and_evaluate, train_csv), (tmp_path / "one", tmp_path / "other")))
            # Only the main thread can set signal handlers.
            train_and_evaluate(train_csv, tmp_path / "main")
            assert state_of_the_process() == before
            assert capfd.readouterr() == ("", "")
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)
    folders = [tmp_path / name for name in ("first", "one", "other", "main")]
    weights = [torch.load(last(folder), weights_only=True)["state_dict"] for folder in folders]
    for name, weight in weights[0].items():
        assert all(torch.equal(weight, others[name]) for others in weights[1:])
    assert len({(folder / "scores.json").read_text() for folder in folders}) == 1


def test_interrupts_reach_callers(train_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        torch.set_flush_denormal(True)  # as HMN does
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo.KNNBiLSTM, "training_step", interrupt)
    before = state_of_the_process()
    with pytest.raises(KeyboardInterrupt):
        trained(train_csv, tmp_path / "run")
    assert state_of_the_process() == before


def test_results_are_values(train_csv: Path, tmp_path: Path) -> None:
    result, model, data = trained(train_csv, tmp_path / "run", max_epochs=2)
    assert result.run_dir == tmp_path / "run"
    assert result.best[0] == "val/accuracy"
    assert result.as_text().splitlines()[-1] == f"run folder: {tmp_path / 'run'}"
    scores = evaluate(model, data, "test", TrainerOptions({"accelerator": "cpu"}), lists_errors=True)
    assert scores.scores["rows"] == 90
    assert set(scores.parts) >= {"f1/fruit", "recall/metal"}
    wrong = scores.scores["rows"] * (1 - scores.scores["accuracy"])
    assert len(scores.errors["lines"]) == pytest.approx(wrong)


def test_a_run_is_judged_by_its_own_checkpoint(train_csv: Path, tmp_path: Path) -> None:
    kept, written, rows = tmp_path / "kept", tmp_path / "run" / "summary.json", list[list[int]]()
    users = [
        LambdaCallback(on_train_batch_start=lambda *given: rows.append(given[2].row.tolist())),
        ModelCheckpoint(kept, "{epoch}", monitor="val/loss"),
        ModelCheckpoint(kept, "{epoch}-{step}", monitor="val/accuracy", mode="max", save_top_k=-1),
    ]
    result, model, data = trained(train_csv, written.parent, max_epochs=2, callbacks=users, overfit_batches=2)
    assert len(list(kept.glob("*-*.ckpt"))) == 2
    assert result.best == ("val/accuracy", json.loads(written.read_text())["best_score"])
    kept.rename(tmp_path / "moved")
    evaluate(model, data, "test", TrainerOptions({"accelerator": "cpu", "callbacks": users}))
    assert not kept.exists()
    assert rows[:2] == rows[2:]  # the epochs overfit the same batches


def test_lightning_refuses_in_one_line(train_csv: Path, tmp_path: Path) -> None:
    for arguments in ({"accelerator": "abacus"}, {"val_check_interval": 1000}, {"devices": 0}):
        with pytest.raises(InputError, match=r"^--trainer: "):
            trained(train_csv, tmp_path / "run", **arguments)


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("zoo.knn_bilstm.KNNBiLSTM.training_step", "fit"),
        ("zoo.knn_bilstm.KNNBiLSTM.build_network", "fit"),
        ("zoo.knn_bilstm.KNNBiLSTM.check_data", "fit"),
        ("datamodules.retrieval.EmbeddedRetriever.describe", "fit"),
        ("datamodules.retrieval.EmbeddedRetriever.search", "predict"),
        ("datamodules.retrieval.EmbeddedRetriever.search", "test"),
        ("zoo.knn_bilstm.KNNBiLSTM.build_network", "test"),
        ("zoo.knn_bilstm.KNNBiLSTM.build_network", "predict"),
        ("zoo.tasks.classification.predictor.ClassificationPredictor.records", "predict"),
        ("zoo.tasks.classification.predictor.ClassificationPredictor.__init__", "predict"),
    ],
)
def test_an_error_of_ours_is_a_traceback(
    place: str,
    command: str,
    trained_run: Path,
    train_csv: Path,
    zoo_command: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("planted")

    monkeypatch.setattr(place, fail)
    options = {
        "fit": fit_options(train_csv)[1:],
        "predict": ["--ckpt_path", trained_run, "--input", train_csv],
        "test": ["--ckpt_path", trained_run, "--data.test_file", train_csv],
    }[command]
    result = zoo_command(command, *options)
    assert result.code == 1
    assert "Traceback" in result.err
    assert "TypeError: planted" in result.err
    assert "zoo: error" not in result.err


def test_debugging_shows_tracebacks_of_all_errors(zoo_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_table(Path("one.csv"), [("a text", "label")])
    options = ("fit", f"--data.train_file={table}", "--data.text_column=words")
    result = zoo_command(*options)
    assert "Traceback" not in result.err
    monkeypatch.setenv("ZOO_DEBUG", "1")
    result = zoo_command(*options)
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("zoo: error: one.csv")


def test_figures_of_all_rows_and_of_classes() -> None:
    scores = Evaluation({"loss": 0.63871, "rows": 4000.0})
    classes = {"f1/a/b": 0.5, "f1/c": 1.0, "recall/a/b": 0.25}
    assert as_text(replace(scores, parts=classes)).splitlines() == [
        "loss     0.6387",
        "rows      4,000",
        "",
        "            f1     recall",
        "a/b     0.5000     0.2500",
        "c       1.0000           ",
    ]
    many = replace(scores, parts={f"f1/{number}": 0.5 for number in range(MOST_CLASSES + 7)})
    lines = as_text(many).splitlines()
    assert lines[-1] == "and 7 more classes (--output FILE has all)"
    assert len(lines) == 4 + MOST_CLASSES + 1
