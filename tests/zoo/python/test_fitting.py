"""`zoo.fit` trains as the command does, and leaves the process as it was."""

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.sparse import csr_matrix

import zoo
from datamodules.core.errors import InputError
from datamodules.retrieval import EmbeddedRetriever
from tests.datamodules.checks import refused
from tests.zoo.conftest import LABELS, SMALL, Zoo, done, sentences
from tests.zoo.ensemble.conftest import SMALL as SMALL_ENSEMBLE
from tests.zoo.processes import printed_by
from tests.zoo.runs.test_training import state_of_the_process

PAIRS = sentences(90, seed=1)
TEXTS, TOPICS = map(list, zip(*PAIRS, strict=True))
NEW = [text for text, _ in sentences(20, seed=3)]


def options_of(command: list[str]) -> dict[str, Any]:
    """The arguments of `zoo.fit` for options of the command."""
    options: dict[str, Any] = {"model_options": {}, "trainer": {}}
    for option in command:
        name, _, value = option.removeprefix("--").partition("=")
        group, _, rest = name.partition(".")
        if not rest:
            if name == "model":
                options["model"] = value
        elif group == "data":
            options[rest] = value
        else:
            options["trainer" if group == "trainer" else "model_options"][rest] = value
    return options


#: Without --model and --data, the command takes its default model with the options of the recipe, as `zoo.fit` does.
COMMAND = [option for option in SMALL_ENSEMBLE if not option.startswith(("--data=", "--model="))]
COMMAND += ["--model.members=[lexical,lexical_vote]"]
ENSEMBLE = options_of(COMMAND)
NETWORK = {**options_of(SMALL), "trainer": {"accelerator": "cpu", "max_epochs": 1}}


def probabilities(model: Any) -> list[list[float]]:
    return [list(prediction.probabilities.values()) for prediction in model.predict(NEW)]


def test_texts_a_table_and_the_command_give_the_same_model(
    train_csv: Path, zoo_command: Zoo, capfd: pytest.CaptureFixture[str]
) -> None:
    done(zoo_command("fit", *COMMAND, f"--data.train_file={train_csv}", "--run_dir=run"))
    expected = probabilities(zoo.load("run"))
    of_table = zoo.fit(train_csv, run_dir="of_table", **ENSEMBLE)
    of_texts = zoo.fit(pd.Series(TEXTS, index=range(5, 95)), np.array(TOPICS, object), **ENSEMBLE)
    assert capfd.readouterr().out == ""
    assert probabilities(of_table) == probabilities(of_texts) == expected
    # The run folder is that of the command.
    assert probabilities(zoo.load("of_table")) == expected
    assert of_table.answer.as_json() == of_texts.answer.as_json() == zoo.load("run").answer.as_json()
    assert of_table.answer.as_markdown() == Path("run/answer.md").read_text()


def fit_silently_and_verbosely() -> None:
    zoo.fit(TEXTS, TOPICS, **NETWORK)
    print("-")
    print("-", file=sys.stderr)
    zoo.fit(TEXTS, TOPICS, **NETWORK, verbose=True)


def test_progress_in_a_pipe() -> None:
    """In a process of its own, whose log has no handlers."""
    out, err = printed_by(fit_silently_and_verbosely)
    assert out.startswith("-\n"), out
    silent, _, verbose = err.partition("-\n")
    assert "epoch" not in silent
    assert verbose.startswith("epoch 1: train/loss_epoch "), err
    assert "run folder: " in out


def test_a_temporary_folder_goes_with_its_model_and_an_export_stays(tmp_path: Path) -> None:
    model = zoo.fit(TEXTS, TOPICS, **NETWORK)
    folder, expected = Path(model.source), probabilities(model)
    assert folder.is_dir()
    exported = model.export(tmp_path / "exported")
    del model
    gc.collect()
    assert not folder.exists()
    assert probabilities(zoo.load(exported)) == expected


def test_the_rows_of_a_run_survive_the_cache(tmp_path: Path) -> None:
    model = zoo.fit(TEXTS, TOPICS, run_dir="run", cache_dir=str(tmp_path / "own"), **NETWORK)
    expected = probabilities(model)
    (tmp_path / "own").rename(tmp_path / "gone")
    assert probabilities(zoo.load("run")) == expected


def test_options_may_be_values_of_python() -> None:
    options: dict[str, Any] = {**NETWORK, "num_memories": np.int64(2)}
    options["model_options"] = {
        "hidden_size": 6,
        "char_hidden_size": 5,
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}},
    }
    # Configurations are above the defaults of `zoo.fit`, and below its arguments.
    Path("own.yaml").write_text(
        "trainer: {enable_model_summary: true, max_epochs: 7}\ndata: {num_memories: 3}\n"
    )
    options |= {"model": zoo.KNNBiLSTM, "retriever": EmbeddedRetriever(k1=0.5), "config": "own.yaml"}
    model = zoo.fit(TEXTS, TOPICS, run_dir="run", **options)
    trainer = yaml.safe_load(Path("run/config.yaml").read_text())["trainer"]
    assert (int(trainer["devices"]), trainer["enable_model_summary"], trainer["max_epochs"]) == (1, True, 1)
    assert model.data.retriever.ranking.k1 == 0.5
    assert len(model.predict(["apple"])[0].memories) == 2
    with pytest.raises(InputError, match=r"trainer.callbacks: a Thread"):
        zoo.fit(TEXTS, TOPICS, trainer={"callbacks": [__import__("threading").Thread()]})


def test_the_process_stays_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here after a refusal and in the loading; `tests.zoo.runs` trains in threads, and interrupts."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = state_of_the_process()
    zoo.fit(TEXTS, TOPICS, seed=3, **NETWORK)
    with pytest.raises(InputError):
        zoo.fit(TEXTS, TOPICS, **{**NETWORK, "batch_size": -1})
    assert {**state_of_the_process(), "warnings": None} == {**before, "warnings": None}  # imports add filters
    gc.collect()
    # Nothing is left of runs without a folder, nor of those that failed.
    assert not list(temporary.iterdir())
    assert [path.name for path in tmp_path.iterdir() if path != temporary] == ["cache"]


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (TEXTS, TOPICS[:-1], r"90 texts but 89 labels"),
        ([*TEXTS[:3], None], TOPICS[:4], r"texts: row 3 is a NoneType"),
        ([*TEXTS[:3], 7], TOPICS[:4], r"texts: row 3 is a int"),
        (TEXTS[:4], [*TOPICS[:2], None, "metal"], r"labels: row 2 has no label \(None\)"),
        (TEXTS[:4], [*TOPICS[:2], " ", "metal"], r"labels: row 2 has no label \(' '\)"),
        (TEXTS[:4], [1.0, 2.0, float("nan"), 1.0], r"labels: row 2 has no label \(nan\)"),
        (TEXTS[:4], [*TOPICS[:2], 5, "metal"], r"labels: row 2 is a int, row 0 a str; give labels of one"),
        (TEXTS[:4], ["fruit"] * 4, r"all rows have the label 'fruit'"),
        (TEXTS[:4], [["fruit"], ["metal"], ["fruit"], "metal"], r"row 3 is no list of strings or whole"),
        (TEXTS[:4], np.eye(4, dtype=int).tolist(), r"the rows of a matrix; give it as an array"),
        (TEXTS[:2], ["a", "b\0"], r"'b\\x00' has a character that tables and memories replace"),
        (TEXTS[:4], 2 * np.eye(4), r"a matrix of sets has rows of 0 and 1"),
        (TEXTS[:4], pd.DataFrame(np.eye(4), columns=[*"abca"]), r"give each a name of its own"),
        (TEXTS[:4], (each for each in [["fruit"], 3, [], []]), r"row 1 is no list of strings"),
        (TEXTS[:4], csr_matrix(2 * np.eye(4)), r"a matrix of sets has rows of 0 and 1"),
        (TEXTS[:4], {*"abcd"}, r"labels: a set is not a list of labels"),
        (TEXTS[:4], [*TOPICS[:3], pd.NA], r"labels: row 3 has no label \(<NA>\)"),
        (TEXTS[:4], np.eye(3), r"4 texts but 3 sets"),
        (TEXTS[:4], "fruit", r"labels: a str is not a list of labels"),
        ([], [], r"there are no rows"),
        (pd.DataFrame({"text": TEXTS}), TOPICS, r"DataFrame of shape \(90, 1\).*give one column"),
        (np.array([TEXTS, TEXTS]), TOPICS, r"ndarray of shape \(2, 90\)"),
        ({"text": TEXTS}, TOPICS, r"a dict is not a sequence"),
        (set(TEXTS), TOPICS, r"a set is not a sequence"),
        (None, TOPICS, r"texts: missing"),
        (TEXTS, None, r"labels: missing"),
        ("train.csv", TOPICS, r"train.csv is the name of a table"),
        ("none.csv", None, r"none.csv: no such file"),
    ],
)
def test_wrong_input_is_named(texts: Any, labels: Any, message: str) -> None:
    with refused(match=message):
        zoo.fit(texts, labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "KNNBiLSMT"}, "no model 'KNNBiLSMT'"),
        ({"num_memory": 3}, "num_memory"),
        ({"model_options": {"hiden_size": 3}}, "hiden_size"),
        ({"trainer": {"max_epocs": 3}}, "max_epocs"),
        ({"config": "hmn/hmn5qa"}, "did you mean hmn/hmn4qa"),
        ({"text_column": "title"}, "text_column: belongs to a table"),
        ({"seed": None}, "seed: None is not a whole number"),
        ({"device": "abacus"}, "device abacus"),
        ({"model": "AMVLSTM"}, "a AMVLSTM is a model for matching"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with refused(match=message):
        zoo.fit(TEXTS, TOPICS, **options)


def test_a_loaded_model_is_described(trained_run: Path) -> None:
    model = zoo.load(trained_run)
    lines = repr(model).splitlines()
    assert lines[0] == "ClassificationPredictor"
    assert f"KNNBiLSTM from {trained_run}" in lines[1]
    assert "72 rows, version 1" in repr(model)
    assert "EmbeddedRetriever" in repr(model)
    assert f"3: {', '.join(LABELS)}" in repr(model)
    prediction = repr(model.predict(["a text " * 100])[0])
    assert "3 memories" in prediction
    assert len(prediction) < 200
