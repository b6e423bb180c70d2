"""The state of a data module in a checkpoint: enough to prepare new rows, and to refuse what does not fit."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules.core.errors import InputError
from datamodules.corpora.dialogues import Dialogue, Dialogues
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.rows import Rows
from datamodules.state import DataState, check_resumed, check_split
from tests.datamodules.checks import refused
from tests.datamodules.corpus import LABELS, write_csv
from tests.datamodules.kinds import Kind, are_equal, classification

TEXTS = ["the lion", "an unknown word"]


def new_split(data: Any) -> Any:
    """New rows of any kind, prepared in memory."""
    kind = type(data).__name__
    if kind == "ClassificationDataModule":
        return data.split_of(Rows.from_lists(TEXTS), data.memory.open())
    if kind == "MatchingDataModule":
        return data.split_of(Pairs.from_lists(TEXTS, ["lion quagga", "sail"]))
    if kind == "ClickthroughDataModule":
        return data.split_of(Rows.from_lists(TEXTS), data.collection())
    return data.split_of(Dialogues.from_list([Dialogue("0", TEXTS, [("who ?", "lion", "here")])]))


def test_the_state_is_plain_and_makes_the_same_data(kind: Kind[Any]) -> None:
    data = kind.prepared(min_count=2)
    state = data.state()
    buffer = io.BytesIO()
    torch.save(vars(state), buffer)
    buffer.seek(0)
    described = torch.load(buffer, weights_only=True)
    assert described == vars(state) == json.loads(json.dumps(described))

    portable = data.portable_state()
    assert not portable.options.keys() & {*data.options.files} - {"class_names"}
    copied = kind.data_type(**portable.options)
    copied.use_state(DataState(**described))
    assert copied.spec == data.spec
    if data.memory is not None:
        copied.memory.location = data.memory.location
    assert are_equal(*([each.dataset(new_split(each)).__getitems__([0])] for each in (data, copied)))


def test_vocabulary_and_labels_of_a_trained_model_replace_those_of_the_data(tmp_path: Path) -> None:
    kind = classification(tmp_path)
    state = kind.prepared().state()
    other = write_csv(
        tmp_path / "other.csv", ["lion quay", "rudder", "zebu", "oar"] * 3, ["boats", "kites"] * 6
    )
    data = kind.prepared(train_file=other, validation_file=None, validation_split=1)
    assert data.spec.labels == ["boats", "kites"]
    data.use_state(state)
    assert data.spec.labels == sorted(LABELS)
    assert "quay" not in data.words.vocabulary.words


def test_a_resumed_run_needs_the_same_data(tmp_path: Path) -> None:
    kind = classification(tmp_path)
    before = kind.prepared().state()

    def check(**options: Any) -> None:
        check_resumed(kind.prepared(**options).state(), before)

    moved = tmp_path / "moved.csv"
    moved.write_bytes((tmp_path / "train.csv").read_bytes())
    check(batch_size=3, train_file=str(moved))
    with refused(match=r"data\.train_file=.*: other contents than when the run was started"):
        check(train_file=str(tmp_path / "test.csv"))


def test_rows_that_a_model_was_trained_on_are_not_split_off(tmp_path: Path) -> None:
    kind = classification(tmp_path)
    kind.options |= {"validation_file": None, "test_file": None, "validation_split": 2}
    state = kind.prepared(test_split=4).state()

    def check(split: str, **options: Any) -> None:
        data = kind.make(**options)
        check_split(data.options, data.file_contents, state, split, "M")

    check("test", test_split=4)
    with pytest.raises(InputError, match=r"data\.test_split=5: M was trained with test_split=4"):
        check("test", test_split=5)
    with pytest.raises(InputError, match=r"data\.split_seed=1: M was trained with split_seed=0"):
        check("validation", test_split=4, split_seed=1)
    other = write_csv(tmp_path / "other.csv", ["a", "b"] * 9, ["c", "d"] * 9)
    check("test", test_split=5, train_file=other)
