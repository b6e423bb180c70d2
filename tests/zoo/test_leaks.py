"""Leaks of rows are prevented or counted: labels are random, so only a model that has the rows predicts them."""

import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo
from datamodules.classification import ClassificationDataModule
from datamodules.corpora.rows import Rows
from datamodules.matching import MatchingDataModule
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from datamodules.retrieval.folding import fold
from datamodules.retrieval.memories.folder_memory import FolderMemory
from datamodules.retrieval.memories.memory import Memory
from datamodules.retrieval.memories.near_duplicates import are_near, signatures
from tests.datamodules.kinds import Kind, prepared
from tests.zoo.conftest import SMALL, Zoo, done, read_json, refusal, write_pairs, write_table, written_scores
from tests.zoo.processes import scores_of_one_and_two

Warned = Callable[[], list[str]]
Row = tuple[str, str]

#: Predicts the labels of the memories, without training.
VOTE = ["--model=NeighborVote", *SMALL[8:]]
#: Memorizes its training rows.
SVM = ["--model=TfidfSVM", *SMALL[8:], "--data.num_memories=0"]


def drawn_rows(number: int, seed: int = 0) -> list[Row]:
    """Distinct texts of nine words with é, with random labels."""
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(list("abcdefghiklmnoprstu"), size=5)) + "é" for _ in range(200)]
    return [(" ".join(random.choice(words, size=9)), str(random.choice(["a", "b"]))) for _ in range(number)]


def changed(rows: Sequence[Row], change: Callable[[str], str]) -> list[Row]:
    return [(change(text), label) for text, label in rows]


CHANGES = {
    "stop": lambda text: f"{text} .",
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "case": str.upper,
    "space": lambda text: text.replace(" ", "\u00a0 "),
}


def fit(zoo_command: Zoo, *options: object, run: str = "run") -> dict[str, float]:
    done(zoo_command("fit", *options, "--trainer.max_epochs=1", "--run_dir", run))
    return read_json(Path(run, "summary.json"))["metrics"]


def scored(zoo_command: Zoo, command: str, *options: object, run: str = "run") -> dict[str, float]:
    return written_scores(zoo_command, command, "--ckpt_path", run, "--trainer.accelerator=cpu", *options)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    def lines() -> list[str]:
        messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        caplog.clear()
        return [message for message in messages if "rows have a duplicate (" in message]

    return lines


def test_a_row_does_not_retrieve_itself_by_another_column(tmp_path: Path) -> None:
    rows = drawn_rows(60)
    # Two rows have one text, so that a row could retrieve itself as the other.
    table = [(str(i + 1), f"title {i % 3}", text, label) for i, (text, label) in enumerate([*rows, rows[0]])]
    file = write_table(tmp_path / "all.csv", table, ("id", "title", "text", "label"))
    columns = {"text_column": ["title", "text"], "memory_text_column": "text", "memory_label_column": "label"}
    kind = Kind(ClassificationDataModule, tmp_path, train_file=str(file), memory=str(file), **columns)
    for id_column in (None, "id"):
        data = kind.prepared(id_column=id_column, validation_split=0.3, num_memories=3)
        for name in ("train", "validation"):
            split = data.split(name)
            neighbors = split.neighbors
            for text, memories in zip(split.rows.texts, neighbors.rows.tolist(), strict=True):
                texts = {neighbors.memories.texts[row] for row in memories if row >= 0}
                assert text.split(" ", 2)[2] not in texts


@pytest.mark.parametrize("change", CHANGES)
def test_duplicates_are_not_retrieved(zoo_command: Zoo, warned: Warned, tmp_path: Path, change: str) -> None:
    rows = drawn_rows(120)
    train = write_table(tmp_path / "train.csv", rows)
    memory = write_table(tmp_path / "memory.csv", changed(rows, CHANGES[change]))
    options = ["--data.train_file", train, "--data.memory", memory, "--data.memory_label_column=label"]
    metrics = fit(zoo_command, *VOTE, *options, "--data.validation_split=0.5")
    assert metrics["val/accuracy"] < 0.75
    assert metrics["val/rows_in_memory"] == metrics["val/rows_in_training"] == 0
    assert not warned()


def test_a_validation_file_in_the_memory_is_counted(zoo_command: Zoo, warned: Warned, tmp_path: Path) -> None:
    rows = drawn_rows(160)
    train = write_table(tmp_path / "train.csv", rows[:80])
    validation = write_table(tmp_path / "validation.csv", changed(rows[80:], CHANGES["stop"]))
    memory = write_table(tmp_path / "memory.csv", rows[:120])
    options = ["--data.train_file", train, "--data.validation_file", validation, "--data.memory", memory]
    metrics = fit(zoo_command, *VOTE, *options, "--data.memory_label_column=label")
    assert (metrics["val/rows_in_memory"], metrics["val/rows_in_training"]) == (40, 0)
    assert metrics["val/accuracy"] > 0.7 > metrics["val/accuracy_without_duplicates"]
    (line,) = warned()
    assert "validation: 40 of 80 rows have a duplicate (40 in the memory, 0 among the training rows)" in line

    again = scored(zoo_command, "validate", "--config=run/config.yaml")
    for name in ("accuracy", "accuracy_without_duplicates", "rows_in_memory", "rows_in_training"):
        assert again[name] == metrics[f"val/{name}"]
    assert len(warned()) == 1


def test_test_rows_in_the_memory_are_counted(zoo_command: Zoo, warned: Warned, tmp_path: Path) -> None:
    rows = drawn_rows(140)
    train = write_table(tmp_path / "train.csv", rows[:80])
    test = write_table(tmp_path / "test.csv", rows[80:])
    fit(zoo_command, *VOTE, "--data.train_file", train)
    before = scored(zoo_command, "test", "--data.test_file", test)
    assert before["rows_in_memory"] == before["rows_in_training"] == 0
    assert "accuracy_without_duplicates" not in before
    assert not warned()
    added = write_table(tmp_path / "added.csv", rows[80:110])
    done(zoo_command("memory", "add", "run", added))
    after = scored(zoo_command, "test", "--data.test_file", test)
    assert (after["rows_in_memory"], after["rows_in_training"]) == (30, 0)
    assert after["accuracy"] > 0.7 > after["accuracy_without_duplicates"]
    (line,) = warned()
    assert "test: 30 of 60 rows have a duplicate" in line


def test_a_memory_without_hashes_compares_the_hits(tmp_path: Path) -> None:
    table = Rows.from_lists(["the lion.", "the boat", "a sail"], ["a", "b", "b"])
    memory = FolderMemory.build(table, EmbeddedRetriever(), tmp_path / "m")
    queries = Rows.from_lists(["The LION", "the tiger", "xyzzy"])
    hits = memory.search(queries.texts[:], 2)
    for check in (memory.has_duplicates_of, partial(Memory.has_duplicates_of, memory)):
        assert check(queries, False, hits).tolist() == [True, False, False]


def test_a_split_that_contradicts_the_run_is_refused(zoo_command: Zoo, tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.csv", drawn_rows(60))
    fit(zoo_command, *SVM, "--data.train_file", train)
    checkpoint = Path("run")
    for option in ("split_seed=1", "validation_split=0.3"):
        same = ("--ckpt_path", checkpoint, "--data.train_file", train, f"--data.{option}")
        line = refusal(zoo_command("validate", *same))
        assert f"data.{option}: --ckpt_path {checkpoint} was trained with" in line
        assert "has seen rows that would now be split off" in line
        # Other rows are accepted.
        scored(zoo_command, "validate", f"--data.{option}", "--data.validation_file", train)
    scored(zoo_command, "validate", "--data.train_file", train, "--data.split_seed=0")


def test_rows_that_the_first_model_was_trained_on(zoo_command: Zoo, warned: Warned, tmp_path: Path) -> None:
    rows = drawn_rows(60)
    train, copy = write_table(tmp_path / "train.csv", rows), write_table(tmp_path / "copy.csv", rows[::-1])
    options = [*SMALL, "--model.features=M1", "--data.num_memories=0"]
    fit(zoo_command, *options, "--data.train_file", train, run="first")
    start = "--model.init_from=first"
    other = [*options, start, "--data.split_seed=1"]
    line = refusal(zoo_command("fit", *other, "--data.train_file", train, "--run_dir=second"))
    assert "data.split_seed=1: model.init_from=first was trained with split_seed=0" in line
    # A file with the same rows is found by its rows.
    metrics = fit(zoo_command, *other, "--data.train_file", copy, run="second")
    assert 0 < metrics["val/rows_in_training"] <= metrics["val/rows"]
    assert len(warned()) == 1
    scores = scored(zoo_command, "validate", "--config=second/config.yaml", run="second")
    assert scores["rows_in_training"] == metrics["val/rows_in_training"]
    metrics = fit(zoo_command, *options, start, "--data.train_file", train, run="third")
    assert metrics["val/rows_in_training"] == 0


def test_training_rows_in_a_test_are_counted_by_one_and_two_processes(
    zoo_command: Zoo, warned: Warned, tmp_path: Path
) -> None:
    rows = drawn_rows(101)
    train = write_table(tmp_path / "train.csv", rows[:70])
    test = write_table(tmp_path / "test.csv", changed(rows[50:], CHANGES["stop"]))
    fit(zoo_command, *SMALL, "--data.train_file", train, "--data.validation_file", train)
    assert len(warned()) == 1
    one, two = scores_of_one_and_two("run", "--data.test_file", test, "--data.eval_batch_size=5")
    assert (one["rows_in_training"], one["rows_in_memory"], one["rows"]) == (20, 20, 51)
    assert one == two
    assert "accuracy_without_duplicates" in one


def test_tuning_skips_duplicates(zoo_command: Zoo, tmp_path: Path) -> None:
    rows = drawn_rows(120)
    train = write_table(tmp_path / "train.csv", rows[:80])
    small = [option for option in SMALL if not option.startswith("--model")]
    fit(zoo_command, "--model=MemoryEnsemble", *small, "--data.train_file", train)
    dev = write_table(tmp_path / "dev.csv", rows[60:100])
    result = done(zoo_command("memory", "tune", "run", dev))
    # Rows of the training table that were split off for validation are new to the model.
    memory = set(zoo.load("run").memory.rows.texts)
    skipped = sum(text in memory for text, _ in rows[60:80])
    assert f"skipped: {skipped} with a duplicate among the training rows or in the memory" in result.out
    assert f"on the {len(rows[60:100]) - skipped} rows that they were fitted on" in result.out


def test_near_duplicates_differ_in_a_few_characters() -> None:
    texts = [text for text, _ in drawn_rows(300)]
    near = signatures(text[:7] + text[8:] for text in texts)
    assert are_near(signatures(texts), near).all()
    assert not are_near(signatures(texts), np.roll(near, 1, axis=0)).any()
    assert are_near(signatures(["", "?", "ab"]), signatures(["", "?", "AB."])).tolist() == [False, True, True]


def pairs_module(file: Path, **options: Any) -> MatchingDataModule:
    splits = {"test_split": 0.2, "validation_split": 0.25}
    return prepared(MatchingDataModule(train_file=str(file), **splits, **options))


def test_duplicate_questions_stay_together(tmp_path: Path) -> None:
    rows = [
        (change(f"question {number} é"), f"answer {number} {position}", int(position == 0))
        for number in range(40)
        for change in (str, CHANGES["case"], CHANGES["stop"])
        for position in range(2)
    ]
    file = write_pairs(tmp_path / "train.tsv", rows)
    data = pairs_module(file)
    sides = {
        name: {fold(text) for text in data.split(name).pairs.first.texts} for name in ("train", "validation")
    }
    assert not sides["train"] & sides["validation"]
    assert data.duplicate_counts("validation")["rows_in_training"] == 0


def test_swapped_pairs_stay_together(tmp_path: Path) -> None:
    rows = [(f"text {n} one", f"text {n} two", n % 2) for n in range(40)]
    rows += [(second, first.upper(), label) for first, second, label in rows]
    file = write_pairs(tmp_path / "train.tsv", rows)
    data = pairs_module(file, goal="classification")
    assert data.duplicate_counts("validation")["rows_in_training"] == 0


def test_trained_test_questions_are_counted(zoo_command: Zoo, warned: Warned, tmp_path: Path) -> None:
    rows = [
        (f"question {n} about {text}", f"{text} {position}", int(position == n % 2))
        for n, (text, _) in enumerate(drawn_rows(40))
        for position in range(2)
    ]
    train = write_pairs(tmp_path / "train.tsv", rows[:60])
    test = write_pairs(tmp_path / "test.tsv", rows[50:])
    options = ["--model=RandomOrder", "--data=MatchingDataModule", *SMALL[-4:], "--data.train_file", train]
    fit(zoo_command, *options, "--data.validation_file", train)
    (line,) = warned()
    assert "validation: 30 of 30 rows have a duplicate" in line
    scores = scored(zoo_command, "test", "--data.test_file", test)
    assert (scores["rows_in_training"], scores["questions"]) == (5, 15)
    assert "map_without_duplicates" in scores
    (line,) = warned()
    assert "test: 5 of 15 rows have a duplicate" in line
