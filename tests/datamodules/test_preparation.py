"""Preparation of every kind of data: done once, resumed after a kill, repeated where something has changed."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning.trainer.states import TrainerFn

from datamodules import base
from datamodules.core.errors import InputError
from datamodules.retrieval import ElasticsearchRetriever, EmbeddedRetriever, FolderMemory
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from tests.datamodules.checks import kill, refused
from tests.datamodules.corpus import in_processes
from tests.datamodules.kinds import PARTS, Kind, all_batches, are_equal, classification, make_kind, set_stage


def forbid(kind: Kind[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, reading, tokenizing, building a memory or searching it fails."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("worked again")

    for owner, name in (
        (kind.data_type, "read_splits"),
        (TokenStore, "save"),
        (FolderMemory, "build"),
        (EmbeddedRetriever, "search"),
    ):
        monkeypatch.setattr(owner, name, never)


def names_in_cache(kind: Kind[Any], cache: str = "cache") -> set[str]:
    return {path.name for path in (kind.folder / cache).iterdir()}


def test_a_second_preparation_does_no_work(kind: Kind[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = all_batches(kind.prepared())
    forbid(kind, monkeypatch)
    assert are_equal(all_batches(kind.prepared()), first)
    # Options that change only how rows are put into batches need no work either.
    kind.prepared(batch_size=2, eval_batch_size=3)
    with pytest.raises(AssertionError, match="worked again"):
        kind.prepared(min_count=3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Other memories are other texts to tokenize, with other words.
        ({"num_memories": 4}, {"neighbors", "tokens", "vocabulary"}),
        ({"retriever": EmbeddedRetriever(k1=2.0)}, {"memory", "neighbors", "tokens", "vocabulary"}),
        ({"tokenizer": "whitespace"}, {"tokens", "vocabulary"}),
        ({"min_count": 2}, {"vocabulary"}),
        ({"max_length": 5}, set()),
        # Without memories, no row is a near-duplicate of one.
        ({"num_memories": 0}, {"marks", "vocabulary"}),
    ],
    ids=lambda value: "-".join(sorted(value)) or "nothing",
)
def test_options_change_only_their_parts(tmp_path: Path, options: dict[str, Any], expected: set[str]) -> None:
    kind = classification(tmp_path)
    kind.prepared()
    before = names_in_cache(kind)
    kind.prepared(**options)
    new = names_in_cache(kind) - before
    folders = {name for name in new if (tmp_path / "cache" / name).is_dir()}
    assert {name.split("-")[0] for name in folders} == expected


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_changed_file_is_prepared_again(tmp_path: Path, split: str) -> None:
    kind = classification(tmp_path)
    kind.prepared()
    plans = {name for name in names_in_cache(kind) if name.startswith("plan-")}
    with (tmp_path / f"{split}.csv").open("a") as file:
        file.write("quagga lion,beasts\n")
    data = kind.prepared()
    assert len([name for name in names_in_cache(kind) - plans if name.startswith("plan-")]) == 1
    assert "quagga lion" in data.split(split).rows.texts
    assert ("quagga" in data.words.vocabulary.words) == (split == "train")


@pytest.mark.parametrize(
    ("name", "part"), [(name, part) for name, parts in PARTS.items() for part in parts.split()]
)
def test_a_deleted_part_of_the_cache_is_built_again(tmp_path: Path, name: str, part: str) -> None:
    kind = make_kind(name, tmp_path)
    first = all_batches(kind.prepared())
    paths = list((tmp_path / "cache").glob(f"{part}-*"))
    assert paths
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    data = kind.prepared()
    assert are_equal(all_batches(data), first)
    if data.memory is not None:
        assert data.memory.open().search(["the"], 1).rows.shape == (1, 1)


@pytest.mark.parametrize("damage", [lambda text: text[:40], lambda text: text.replace("=", "!")])
def test_a_damaged_plan_is_made_again(kind: Kind[Any], damage: Callable[[str], str]) -> None:
    first = all_batches(kind.prepared())
    (plan,) = (kind.folder / "cache").glob("plan-*")
    plan.write_text(damage(plan.read_text()))
    assert are_equal(all_batches(kind.prepared()), first)


def test_a_full_disk_is_one_line(kind: Kind[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "to_dict", full)
        with refused(kind.folder / "cache", match="disk is full"):
            kind.prepared()
    kind.prepared()


@pytest.mark.parametrize(
    ("owner", "function"),
    [
        (TokenStore, "save"),
        (EmbeddedRetriever, "search"),
        (Vocabulary, "from_stores"),
        (base, "asdict"),
        (Path, "rename"),
    ],
    ids=["tokens", "search", "vocabulary", "plan", "rename"],
)
def test_a_killed_preparation_is_resumed(
    kind: Kind[Any], monkeypatch: pytest.MonkeyPatch, owner: object, function: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, kill)
        assert in_processes(1, kind.prepared, "killed") == [-signal.SIGKILL]
    assert not list((kind.folder / "killed").glob("plan-*.json"))
    assert are_equal(all_batches(kind.prepared("killed")), all_batches(kind.prepared("alone")))
    assert names_in_cache(kind, "killed") == names_in_cache(kind, "alone")


def test_two_processes_prepare_at_once(kind: Kind[Any]) -> None:
    expected = all_batches(kind.prepared("alone"))
    assert in_processes(2, kind.prepared, "together") == [0, 0]
    data = kind.make("together")
    data.setup("fit")
    assert are_equal(all_batches(data), expected)
    names = names_in_cache(kind, "together")
    assert names == names_in_cache(kind, "alone")
    assert not [name for name in names if "partial" in name or "blocks" in name]


def test_setup_needs_the_preparation(kind: Kind[Any]) -> None:
    with pytest.raises(InputError, match=r"not prepared; call prepare_data\(\)"):
        kind.make().setup("fit")
    with pytest.raises(InputError, match="no vocabulary yet"):
        _ = kind.make().spec


def test_a_test_after_training_uses_the_memory_of_the_training(tmp_path: Path) -> None:
    kind = classification(tmp_path)
    data = kind.make()
    for function, stage in ((TrainerFn.FITTING, "fit"), (TrainerFn.TESTING, "test")):
        set_stage(data, function)
        data.prepare_data()
        data.setup(stage)
    assert are_equal(data.test_dataloader(), kind.prepared().test_dataloader())


@pytest.mark.parametrize(
    ("name", "function", "tables"),
    [
        *((name, TrainerFn.FITTING, "train_file") for name in ("classification", "matching", "dialogue")),
        *((name, TrainerFn.TESTING, "test_file") for name in ("classification", "matching", "dialogue")),
        ("clickthrough", TrainerFn.FITTING, "train_queries train_judgements corpus_file"),
        ("clickthrough", TrainerFn.TESTING, "test_judgements"),
    ],
)
def test_a_needed_table_must_be_named(tmp_path: Path, name: str, function: TrainerFn, tables: str) -> None:
    for table in tables.split():
        data = make_kind(name, tmp_path).make(**{table: None})
        set_stage(data, function)
        with pytest.raises(InputError, match=f"data.{table}"):
            data.prepare_data()


CLASSIFIES = {"goal": "classification", "candidates": "own"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("classification", {"num_memories": -1}, "data.num_memories=-1: must be 0 or more"),
        ("classification", {"max_length": 0}, "data.max_length=0: must be at least 1"),
        ("classification", {"train_file": ["a.csv", "b.csv"]}, "data.train_file: name a table, not 2"),
        ("matching", {"num_negatives": 0}, "data.num_negatives=0: must be at least 1"),
        ("matching", {"goal": "sorting"}, "data.goal='sorting': choose one of ranking, classification"),
        ("matching", {"validation_split": 1.5}, "data.validation_split=1.5"),
        ("matching", {"test_split": 0.1}, "data.test_split and data.test_file"),
        ("matching", {**CLASSIFIES, "batches": "pairwise"}, "batches=pairwise"),
        ("matching", {"batches": "pointwise", "negatives": "random"}, "data.negatives=random"),
        ("matching", {"layout": "trec"}, "data.queries_file"),
        ("matching", {**CLASSIFIES, "candidates": "retrieved"}, "set goal=ranking"),
        ("matching", {"memory": "nowhere"}, "data.memory=nowhere: no such memory folder or table"),
        ("clickthrough", {"num_hits": 0}, "set data.num_hits to the number of hits to draw from"),
        ("clickthrough", {"negatives": ["in_batch", "near"]}, "use one or several of random, in_batch"),
        ("clickthrough", {"negatives": []}, "use one or several of"),
        ("clickthrough", {"negatives": "retrieved", "skip_hits": 5}, "no retrieved negatives"),
        ("clickthrough", {"tokenizer": "bert"}, "data.tokenizer='bert': choose one of"),
        ("dialogue", {"retriever": ElasticsearchRetriever(index="news")}, "data.retriever.index"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    with refused(message):
        make_kind(name, tmp_path).prepared(**options)
