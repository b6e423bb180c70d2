"""Sets of labels in tables."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from datamodules.classification import ClassificationDataModule, as_indicators, label_numbers
from datamodules.core.errors import InputError
from datamodules.corpora.multilabel import edit_labels, rarest_labels, split_labels
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from tests.datamodules.kinds import Kind

SETS = [["sport", "art"], [], ["art"], ["sport", "sport"]]
WRITTEN = ["art;sport", "", "art", "sport"]


def test_one_set_in_every_form(tmp_path: Path) -> None:
    texts = ["one", "two", "three", "four"]
    lines = [json.dumps({"text": text, "label": labels}) for text, labels in zip(texts, SETS, strict=True)]
    (tmp_path / "lists.jsonl").write_text("\n".join(lines))
    pd.DataFrame({"text": texts, "label": SETS}).to_parquet(tmp_path / "lists.parquet")
    joined = [";".join(labels) for labels in SETS]
    pd.DataFrame({"text": texts, "label": joined}).to_csv(tmp_path / "joined.csv", index=False)
    for name in ("lists.jsonl", "lists.parquet", "joined.csv"):
        assert read_table(tmp_path / name, label_separator=";").labels == WRITTEN, name
    flags = {name: [int(name in labels) for labels in SETS] for name in ("art", "sport")}
    pd.DataFrame({"text": texts, **flags}).to_csv(tmp_path / "flags.csv", index=False)
    rows = read_table(tmp_path / "flags.csv", label_column=["art", "sport"], label_separator=";")
    assert rows.labels == WRITTEN
    (tmp_path / "table.csv").write_text("text,label\none,1|0\n")
    rows = read_table(tmp_path / "table.csv", class_names={"0": "sport", "1": "art"}, label_separator="|")
    assert rows.labels == ["art|sport"]


@pytest.mark.parametrize(
    ("labels", "columns", "message"),
    [
        ({"label": ["a;b", "c"]}, {"label_separator": ";"}, "line 1: the label 'a;b' contains the sep"),
        ({"a": 2, "b": 0}, {"label_column": ["a", "b"], "label_separator": ";"}, "'2' in the column"),
        ({"a": 1, "b": 0}, {"label_column": ["a", "b"]}, "several columns are a set of labels"),
        ({"label": {"a": 0, "b": 1}}, {"label_separator": ";"}, "line 1: dict instead of a string"),
        ({"label": [["a"], ["b"]]}, {"label_separator": ";"}, "line 1: list instead of a string"),
        ({"label": ["a"]}, {}, "line 1: 1 labels in one row; .*data.label_separator"),
    ],
)
def test_bad_sets(
    tmp_path: Path, labels: dict[str, object], columns: dict[str, object], message: str
) -> None:
    (tmp_path / "table.jsonl").write_text(json.dumps({"text": "x", **labels}))
    with pytest.raises(InputError, match=message):
        read_table(tmp_path / "table.jsonl", **columns)


def test_changes_of_a_set() -> None:
    assert edit_labels("7", "art;sport", "+film", ";") == "art;film;sport"
    assert edit_labels("7", "art;sport", "-art", ";") == "sport"
    assert edit_labels("7", "art;sport", "film; art", ";") == "art;film"
    assert edit_labels("7", "art", "+sport;film", ";") == "art;film;sport"
    with pytest.raises(InputError, match="-film: row '7' with 'art;sport' lacks it"):
        edit_labels("7", "art;sport", "-film", ";")


def test_rarest_label_of_a_row() -> None:
    assert rarest_labels(["a;b", "a", "a;c", "", "c"], ";") == ["b", "a", "c", "", "c"]
    assert split_labels("b; a;b;", ";") == ["a", "b"]


def test_numbers_of_sets() -> None:
    rows = Rows.from_lists(["1", "2", "3", "4"], ["b;x", None, "", "a;b"])
    numbers = label_numbers(rows, ["a", "b"], ";")
    assert numbers.tolist() == [[1, -1], [-100, -100], [-100, -100], [0, 1]]
    assert as_indicators(numbers, 2).tolist() == [[0, 1], [0, 0], [0, 0], [1, 1]]


def test_batches_of_sets(tmp_path: Path) -> None:
    lines = [f"text {number},{written}" for number, written in enumerate(WRITTEN * 4)]
    (tmp_path / "train.csv").write_text("text,label\n" + "\n".join(lines))
    kind = Kind(ClassificationDataModule, tmp_path, train_file=str(tmp_path / "train.csv"), num_memories=2)
    data = kind.prepared(label_separator=";")
    assert data.spec.labels == ["art", "sport"]
    batch = next(iter(data.train_dataloader()))
    written = data.split("train").rows.select(batch.row.numpy()).labels
    assert batch.target.tolist() == [[int(name in row) for name in data.spec.labels] for row in written or []]
    assert batch.memory_target.shape == (*batch.memory.shape, 2)
    assert batch.unknown_labels.tolist() == [0] * len(batch.row)
    with pytest.raises(InputError, match="two columns or more, each a label, once"):
        ClassificationDataModule(label_separator=";", label_columns=["art", "art"])
    with pytest.raises(InputError, match="rows_per_class"):
        ClassificationDataModule(label_separator=";", rows_per_class=2)
    with pytest.raises(InputError, match=r"data\.label_column and data\.label_columns: give one of them"):
        ClassificationDataModule(label_separator=";", label_columns=["art", "sport"], label_column="kind")
