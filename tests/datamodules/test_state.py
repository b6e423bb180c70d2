"""The state of a data module in a checkpoint: enough to prepare new rows, and to refuse what does not fit."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.dialogues import Dialogue, Dialogues
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.rows import Rows
from datamodules.state import DataState, check_resumed, check_split, options_to_evaluate
from tests.datamodules.corpus import LABELS, write_csv
from tests.datamodules.kinds import Kind, classification, matching

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
    return data.split_of(Dialogues.from_list([Dialogue("0", TEXTS, ["who ?"], ["lion"], ["here"])]))


def test_the_state_is_plain_and_makes_the_same_data(kind: Kind[Any]) -> None:
    data = kind.prepared(min_count=2)
    state = data.state()
    buffer = io.BytesIO()
    torch.save(state.to_dict(), buffer)
    buffer.seek(0)
    described = torch.load(buffer, weights_only=True)
    assert described == state.to_dict() == json.loads(json.dumps(described))
    assert DataState.from_dict(described) == state

    copied = kind.data_type(**state.options)
    copied.use_state(DataState.from_dict(described))
    assert copied.spec == data.spec
    assert copied.state() == state
    batches = [each.dataset(new_split(each)).__getitems__([0]) for each in (data, copied)]
    for value, other in zip(*batches, strict=True):
        assert (value is None and other is None) or torch.equal(value.nan_to_num(), other.nan_to_num())


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
    with pytest.raises(
        InputError, match=r"data\.train_file=.*: other contents than when the run was started"
    ):
        check(train_file=str(tmp_path / "test.csv"))


def test_rows_that_a_model_was_trained_on_are_not_split_off(tmp_path: Path) -> None:
    kind = classification(tmp_path)
    kind.options |= {"validation_file": None, "test_file": None, "validation_split": 2}
    state = kind.prepared(test_split=4).state()
    check_split(kind.make(test_split=4), state, "test", "M")
    with pytest.raises(InputError, match=r"data\.test_split=5: M was trained with test_split=4"):
        check_split(kind.make(test_split=5), state, "test", "M")
    with pytest.raises(InputError, match=r"data\.split_seed=1: M was trained with split_seed=0"):
        check_split(kind.make(test_split=4, split_seed=1), state, "validation", "M")
    other = write_csv(tmp_path / "other.csv", ["a", "b"] * 9, ["c", "d"] * 9)
    check_split(kind.make(test_split=5, train_file=other), state, "test", "M")


def test_a_test_file_replaces_the_test_that_was_split_off(tmp_path: Path) -> None:
    kind = classification(tmp_path)
    kind.options |= {"validation_file": None, "test_file": None}
    state, options = kind.prepared(test_split=4).state(), ClassificationDataModule.options_type
    assert options_to_evaluate(state, options, "test", {})["test_split"] == 4
    assert options_to_evaluate(state, options, "test", {"test_file": "x.csv"})["test_split"] is None
    (tmp_path / "train.csv").unlink()
    with pytest.raises(
        InputError, match=r"train\.csv: no such file, and the validation rows were split off it"
    ):
        options_to_evaluate(state, options, "validate", {})
    assert options_to_evaluate(state, options, "validate", {"validation_file": "x.csv"})


def test_the_memory_is_built_when_it_is_first_needed(tmp_path: Path) -> None:
    kind = matching(tmp_path)
    data = kind.prepared()
    assert data.memory is not None
    assert data.memory.location is not None
    assert not Path(data.memory.location.path).exists()
    copied = kind.data_type(**data.state().options)
    copied.use_state(data.state())
    assert copied.memory is not None
    second = data.split("train").pairs.second.texts
    hits = copied.memory.open().search([second[3]], 1)
    assert hits.memories.texts[int(hits.rows[0, 0])] == second[3]
    assert copied.memory.open(data.memory.location.path).fingerprint == data.memory.open().fingerprint
    memory = kind.make().memory
    assert memory is not None
    with pytest.raises(InputError, match="there is no memory"):
        memory.open()
