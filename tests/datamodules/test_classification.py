"""From files to batches: against plain Python, and with everything that can be wrong with the input."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pytorch_lightning.trainer.states import TrainerFn

from datamodules import memory_source as memory_part
from datamodules import text_rows as texts
from datamodules import words
from datamodules.batch import ClassificationBatch
from datamodules.classification import ClassificationDataModule
from datamodules.classification import datamodule as module
from datamodules.classification.datamodule import in_natural_order
from datamodules.core.errors import InputError
from datamodules.corpora.rows import SCHEMA, Rows
from datamodules.retrieval import open_memory
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from datamodules.retrieval.folding import fold
from datamodules.retrieval.memories.folder_memory import FolderMemory
from datamodules.text.tokens import TokenStore
from datamodules.text_rows import TextSplit, first_of_equal_texts
from datamodules.words import WordPart
from tests.datamodules.corpus import LABELS, in_processes, labelled_texts, write_csv


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Three tables; the training rows hold repeated texts, some under two labels."""
    texts, labels = labelled_texts(60, seed=0)
    texts += texts[:10]
    labels += [LABELS[i % 2] for i in range(10)]
    return {
        "train_file": write_csv(tmp_path / "train.csv", texts, labels),
        "validation_file": write_csv(tmp_path / "validation.csv", *labelled_texts(17, seed=1)),
        "test_file": write_csv(tmp_path / "test.csv", *labelled_texts(11, seed=2)),
    }


def make(tmp_path: Path, files: dict[str, str], **options: Any) -> ClassificationDataModule:
    given = {"num_memories": 3, "batch_size": 8, "cache_dir": str(tmp_path / "cache"), **files, **options}
    return ClassificationDataModule(**given)


def prepared(tmp_path: Path, files: dict[str, str], **options: Any) -> ClassificationDataModule:
    data = make(tmp_path, files, **options)
    data.prepare_data()
    data.setup("fit")
    return data


def all_batches(data: ClassificationDataModule) -> list[ClassificationBatch]:
    loaders = (data.train_dataloader(), data.val_dataloader(), data.test_dataloader())
    return [batch for loader in loaders for batch in loader]


def same(a: list[ClassificationBatch], b: list[ClassificationBatch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y)
        for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
        if x is not None
    )


def message(error: pytest.ExceptionInfo[InputError], *parts: object) -> None:
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert str(part) in text


# --- a batch is what plain Python makes of the same rows ----------------------------------------------------


def check_batch(
    data: ClassificationDataModule,
    split: TextSplit,
    batch: ClassificationBatch,
    max_length: int,
    memory_length: int,
) -> None:
    vocabulary, spec = data.vocabulary, data.spec
    word_ids = {word: i for i, word in enumerate(vocabulary.words)}
    neighbors = split.neighbors
    memories = [] if neighbors is None else list(neighbors.memories.texts)

    def words(positions: torch.Tensor) -> list[int]:
        """Vocabulary ids of a padded row, which has its padding at the end only."""
        kept = positions[positions != 0]
        assert (positions[len(kept) :] == 0).all()
        return batch.word[kept].tolist()

    def ids(text: str, length: int) -> list[int]:
        return [word_ids.get(word, vocabulary.unk_id) for word in text.split()][:length]

    assert batch.text.dtype == batch.memory.dtype == batch.target.dtype == batch.row.dtype == torch.int64
    assert batch.memory_mask.dtype == torch.bool
    assert batch.memory_score.dtype == batch.weight.dtype == torch.float32
    seen_texts = []
    for b, row in enumerate(batch.row.tolist()):
        assert words(batch.text[b]) == ids(split.rows.texts[row], max_length)
        label = split.rows.label(row)
        assert batch.target[b] == (spec.labels.index(label) if label in spec.labels else len(spec.labels))
        for j in range(batch.memory.shape[1]):
            assert neighbors is not None
            number = int(neighbors.rows[row, j])
            assert batch.memory_mask[b, j] == (number >= 0)
            if number < 0:
                assert batch.memory[b, j] == 0
                assert batch.memory_score[b, j] == 0
                assert batch.memory_target[b, j] == -100
                continue
            assert words(batch.memory_text[batch.memory[b, j]]) == ids(memories[number], memory_length)
            assert batch.memory_score[b, j] == neighbors.scores[row, j]
            label = neighbors.memories.label(number)
            known = spec.memory_labels.index(label) if label in spec.memory_labels else -100
            assert batch.memory_target[b, j] == known
            seen_texts.append(memories[number])
    # A word is in the table once, a memory text in the batch once, and the padding is no wider than needed.
    assert batch.word[0] == vocabulary.pad_id
    assert len(batch.memory_text) == len(set(seen_texts))
    assert (batch.text != 0).sum(1).max() == batch.text.shape[1]
    assert set(batch.text.unique().tolist()) | set(batch.memory_text.unique().tolist()) | {0} == set(
        range(len(batch.word))
    )


def check_characters(data: ClassificationDataModule, batch: ClassificationBatch, texts: list[str]) -> None:
    characters = data.vocabulary.characters
    assert characters is not None
    known = {character: i for i, character in enumerate(characters)}
    for b, row in enumerate(batch.row.tolist()):
        for t, word in enumerate(texts[row].split()[: batch.text.shape[1]]):
            found = batch.char[batch.text[b, t]]
            expected = [known.get(character, 1) for character in word[: data.options.max_characters]]
            assert found[found != 0].tolist() == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 3, "memory_max_length": 2},
        {"max_length": 4},
        {"characters": False},
        {"max_characters": 3},
        {"min_count": 8},
        {"tokenizer": "whitespace"},
        {"num_memories": 25},
        {"num_memories": 0},
        {"bucket_by_length": False, "eval_batch_size": 5},
        {"retriever": EmbeddedRetriever(similarity="LMDirichlet", mu=10.0)},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_batches_equal_a_plain_reference(tmp_path: Path, files: dict[str, str], options: Any) -> None:
    data = prepared(tmp_path, files, **options)
    max_length = options.get("max_length", 64)
    memory_length = options.get("memory_max_length") or max_length
    loaders = {
        "train": data.train_dataloader(),
        "validation": data.val_dataloader(),
        "test": data.test_dataloader(),
    }
    for name, loader in loaders.items():
        split = data.split(name)
        batches = list(loader)
        for batch in batches:
            check_batch(data, split, batch, max_length, memory_length)
            assert batch.memory.shape == (len(batch.row), options.get("num_memories", 3))
            assert (batch.weight == 1).all()
            if options.get("characters", True):
                check_characters(data, batch, list(split.rows.texts))
            else:
                assert batch.char.shape == (len(batch.word), 0)
        assert sorted(i for batch in batches for i in batch.row.tolist()) == list(range(len(split.rows)))
    sizes = {"train": 8, "validation": options.get("eval_batch_size") or 32}
    assert len(next(iter(loaders["train"])).row) <= sizes["train"]
    assert max(len(batch.row) for batch in loaders["validation"]) <= sizes["validation"]


def test_neighbors_are_those_of_the_memory(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files)
    assert data.memory_location is not None
    memory = open_memory(data.memory_location, EmbeddedRetriever())
    for name in ("train", "validation", "test"):
        split = data.split(name)
        assert split.neighbors is not None
        found = memory.search(split.rows.texts[:], 3, exclude_duplicates=name == "train")
        np.testing.assert_array_equal(split.neighbors.scores, found.scores)
        stored, expected = split.neighbors.memories.ids, found.memories.ids
        for a, b in zip(split.neighbors.rows.ravel(), found.rows.ravel(), strict=True):
            assert (a < 0 and b < 0) or stored[a] == expected[b]


def test_a_negative_index_is_padding(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files)
    dataset = data.dataset(data.split("validation"))
    real, padding = dataset.__getitems__([4, 0, 7]), dataset.__getitems__([~4, ~0, ~7])
    assert padding.weight.tolist() == [0, 0, 0]
    assert real.weight.tolist() == [1, 1, 1]
    for name, a, b in zip(real._fields, real, padding, strict=True):
        assert name == "weight" or a is None or torch.equal(a, b)


def test_equal_memory_texts_are_encoded_once_and_keep_their_labels(tmp_path: Path) -> None:
    files = {
        "train_file": write_csv(
            tmp_path / "train.csv", ["lion sail", "lion sail", "lion sail", "rye crust"], ["a", "b", "a", "b"]
        ),
        "validation_file": write_csv(tmp_path / "validation.csv", ["lion", "sail"], ["a", "b"]),
    }
    (batch,) = prepared(tmp_path, files).val_dataloader()
    assert len(batch.memory_text) == 1
    assert batch.memory.tolist() == [[0, 0, 0]] * 2
    assert batch.memory_mask.all()
    assert batch.memory_target.tolist() == [[0, 1, 0]] * 2


def test_first_of_equal_texts_sees_across_arrow_chunks() -> None:
    parts = [["x", "y"], ["y", "z", "x"], [], ["z", "w"]]
    table = pa.concat_tables([Rows.from_lists(part).table for part in parts])
    assert table.column("text").num_chunks > 1
    assert first_of_equal_texts(Rows(table, "parts")).tolist() == [0, 1, 1, 3, 0, 3, 6]
    assert first_of_equal_texts(Rows(SCHEMA.empty_table(), "none")).tolist() == []


def test_texts_of_a_prediction_make_the_same_batch_as_a_table(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files)
    assert data.memory_location is not None
    table = data.split("test")
    texts = [*table.rows.texts, "unheard words", ""]
    now = data.split_of(
        Rows.from_lists(texts, source="texts to predict"),
        open_memory(data.memory_location, EmbeddedRetriever()),
    )
    batch = data.dataset(now).__getitems__(range(len(texts)))
    known = data.dataset(table).__getitems__(range(len(texts) - 2))
    assert (batch.target == -100).all()  # there are no labels
    for name in ("memory_mask", "memory_score", "memory_target"):
        assert torch.equal(getattr(batch, name)[:-2], getattr(known, name))
    for a, b in zip(batch.text[:-2], known.text, strict=True):
        assert batch.word[a[a > 0]].tolist() == known.word[b[b > 0]].tolist()
    assert batch.word[batch.text[-2, :2]].tolist() == [data.vocabulary.unk_id] * 2
    assert not batch.text[-1].any()
    assert not batch.memory_mask[-2:].any()


def test_texts_without_any_memory_make_a_batch(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files)
    memory = open_memory(str(data.memory_location), EmbeddedRetriever())
    split = data.split_of(Rows.from_lists(["unheard", ""]), memory)
    batch = data.dataset(split).__getitems__([0, 1])
    assert batch.memory_text.shape[0] == 0
    assert batch.memory.shape == (2, 3)
    assert not batch.memory_mask.any()


# --- workers and processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_make_the_same_batches(tmp_path: Path, files: dict[str, str], start: str) -> None:
    alone = list(prepared(tmp_path, files).train_dataloader())
    loader = prepared(tmp_path, files, num_workers=2).train_dataloader()
    loader.multiprocessing_context = start
    assert same(list(loader), alone)


def test_a_spawned_worker_gets_names_of_files_and_maps_them(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files)
    split = data.split("train")
    assert len(pickle.dumps(split)) < 2000  # and not the rows
    again = pickle.loads(pickle.dumps(data.dataset(split)))
    assert isinstance(again.split.neighbors.rows, np.memmap)
    assert same([again.__getitems__([3, 1, ~2])], [data.dataset(split).__getitems__([3, 1, ~2])])
    now = data.split_of(Rows.from_lists(["the lion"]), None)
    assert pickle.loads(pickle.dumps(now)).rows.texts[0] == "the lion"


def test_processes_share_the_rows(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, eval_batch_size=5)
    alone = list(data.val_dataloader())
    together: list[ClassificationBatch] = []
    for rank in range(3):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=3)  # type: ignore[assignment]
        batches = list(data.val_dataloader())
        assert len(batches) == 2
        together += batches
    real = [batch for batch in together if batch.weight.all()]
    order = {tuple(batch.row.tolist()): i for i, batch in enumerate(alone)}
    assert same(sorted(real, key=lambda batch: order[tuple(batch.row.tolist())]), alone)
    assert [batch.weight.sum() for batch in together].count(0) == len(together) - len(alone) == 2


def _prepare(tmp_path: Path, files: dict[str, str]) -> None:
    prepared(tmp_path, files)


def test_two_processes_prepare_at_once(tmp_path: Path, files: dict[str, str]) -> None:
    for part in ("alone", "together"):
        (tmp_path / part).mkdir()
    expected = prepared(tmp_path / "alone", files)
    assert in_processes(2, _prepare, tmp_path / "together", files) == [0, 0]
    data = make(tmp_path / "together", files)
    data.setup("fit")
    assert same(all_batches(data), all_batches(expected))
    left = {path.name for path in (tmp_path / "together" / "cache").iterdir()}
    assert left == {path.name for path in (tmp_path / "alone" / "cache").iterdir()}
    assert not [name for name in left if "partial" in name or "blocks" in name]


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", ["build_neighbors", "tokenise", "choose_words", "replace"])
def test_a_killed_prepare_goes_on(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for part in ("alone", "killed"):
        (tmp_path / part).mkdir()
    expected = prepared(tmp_path / "alone", files)
    with monkeypatch.context() as patch:
        places = {"build_neighbors": texts, "tokenise": WordPart, "choose_words": words, "replace": Path}
        patch.setattr(places[where], where, _die)
        assert in_processes(1, _prepare, tmp_path / "killed", files) == [-signal.SIGKILL]
    assert not list((tmp_path / "killed" / "cache").glob("plan-*.json"))
    assert same(all_batches(prepared(tmp_path / "killed", files)), all_batches(expected))
    left, whole = ({p.name for p in (tmp_path / part / "cache").iterdir()} for part in ("killed", "alone"))
    assert left == whole


# --- the cache ----------------------------------------------------------------------------------------------


def forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("worked again")

    for place, name in (
        (module, "read_table"),
        (module, "load_published"),
        (memory_part, "read_table"),
        (texts, "build_neighbors"),
    ):
        monkeypatch.setattr(place, name, never)
    monkeypatch.setattr(TokenStore, "build", never)
    monkeypatch.setattr(FolderMemory, "build", never)
    monkeypatch.setattr(EmbeddedRetriever, "search", never)


def test_a_second_prepare_does_no_work(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = all_batches(prepared(tmp_path, files))
    forbid_work(monkeypatch)
    assert same(all_batches(prepared(tmp_path, files)), first)
    # Neither do options that change only how rows are put into batches.
    prepared(tmp_path, files, batch_size=2, eval_batch_size=3, seed=5, bucket_by_length=False)
    with pytest.raises(AssertionError, match="worked again"):
        prepared(tmp_path, files, num_memories=2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Other memories are other texts to tokenise, with other words.
        ({"num_memories": 4}, {"neighbors", "tokens", "vocabulary"}),
        ({"retriever": EmbeddedRetriever(k1=2.0)}, {"memory", "neighbors", "tokens", "vocabulary"}),
        ({"tokenizer": "whitespace"}, {"tokens", "vocabulary"}),
        ({"min_count": 2}, {"vocabulary"}),
        ({"max_length": 5}, set()),
        # Without memories, nothing is nearly a copy of one.
        ({"num_memories": 0}, {"copies", "vocabulary"}),
    ],
    ids=lambda value: "-".join(sorted(value)) or "nothing",
)
def test_an_option_makes_only_what_depends_on_it(
    tmp_path: Path, files: dict[str, str], options: Any, expected: set[str]
) -> None:
    def folders() -> set[str]:
        return {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()}

    prepared(tmp_path, files)
    before = folders()
    prepared(tmp_path, files, **options)
    assert {name.split("-")[0] for name in folders() - before} == expected


@pytest.mark.parametrize("name", ["train_file", "validation_file", "test_file"])
def test_a_changed_file_makes_new_data(tmp_path: Path, files: dict[str, str], name: str) -> None:
    prepared(tmp_path, files)
    plans = set((tmp_path / "cache").glob("plan-*"))
    with Path(files[name]).open("a") as file:
        file.write("quagga lion,beasts\n")
    data = prepared(tmp_path, files)
    assert len(set((tmp_path / "cache").glob("plan-*")) - plans) == 1
    assert "quagga lion" in data.split(name.removesuffix("_file")).rows.texts
    neighbors = data.split("validation").neighbors
    assert neighbors is not None
    assert ("quagga" in data.vocabulary.words) == (name == "train_file")


@pytest.mark.parametrize("kind", ["rows", "tokens", "neighbors", "memory", "vocabulary", "plan"])
def test_a_deleted_part_of_the_cache_is_made_again(tmp_path: Path, files: dict[str, str], kind: str) -> None:
    data = prepared(tmp_path, files)
    first = all_batches(data)
    for path in list((tmp_path / "cache").glob(f"{kind}-*")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    data = prepared(tmp_path, files)
    assert same(all_batches(data), first)
    assert open_memory(str(data.memory_location), EmbeddedRetriever()).search(["lion"], 1).scores[0, 0] > 0


def test_a_truncated_plan_is_made_again(tmp_path: Path, files: dict[str, str]) -> None:
    first = all_batches(prepared(tmp_path, files))
    (plan,) = (tmp_path / "cache").glob("plan-*")
    plan.write_text(plan.read_text()[:40])
    assert same(all_batches(prepared(tmp_path, files)), first)


@pytest.mark.parametrize(
    "name", ["rows-*/rows.arrow", "tokens-*/tokens.npy", "neighbors-*/scores.npy", "vocabulary-*/*y.json"]
)
def test_a_damaged_part_of_the_cache_is_named_and_made_again(
    tmp_path: Path, files: dict[str, str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = all_batches(prepared(tmp_path, files))
    path = next((tmp_path / "cache").glob(name))
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    assert same(all_batches(prepared(tmp_path, files)), first)
    assert f"{path}: damaged (its checksum has changed); it is made again" in caplog.text
    contents[-1] ^= 1
    assert path.read_bytes() == contents


def test_setup_needs_prepare(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="prepare_data"):
        make(tmp_path, files).setup("fit")


def test_a_full_disk_is_one_line(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "save", full)
        with pytest.raises(InputError, match="disk is full") as error:
            prepared(tmp_path, files)
        message(error, tmp_path / "cache")
    prepared(tmp_path, files)


# --- labels -------------------------------------------------------------------------------------------------


def test_labels_that_training_lacks_are_counted(
    tmp_path: Path, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with Path(files["test_file"]).open("a") as file:
        file.write("the lion,zebras\nthe sail,zebras\n")
    data = prepared(tmp_path, files)
    assert data.spec.labels == sorted(LABELS)
    with caplog.at_level("WARNING"):
        batches = list(data.test_dataloader())
    assert "2 of 13 rows have a label that training lacks" in caplog.text
    targets = {
        i: t for batch in batches for i, t in zip(batch.row.tolist(), batch.target.tolist(), strict=True)
    }
    assert [i for i, target in targets.items() if target == 3] == [11, 12]
    assert data.dataset(data.split("test")).unknown_labels == 2
    assert data.dataset(data.split("validation")).unknown_labels == 0


def test_numbers_are_in_order_of_value() -> None:
    assert in_natural_order(["10", "9", "-1", "2"]) == ["-1", "2", "9", "10"]
    assert in_natural_order(["b", "10", "9"]) == ["10", "9", "b"]


def test_one_class_only_is_refused(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "train.csv", ["lion", "tiger", "wolf"], ["beasts"] * 3)
    with pytest.raises(InputError, match="a classifier needs two classes") as error:
        make(tmp_path, {"train_file": file}, num_memories=1).prepare_data()
    message(error, file, "'beasts'")


def test_classes_and_rows_per_class(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, classes=["boats", "bread"], rows_per_class={"boats": 4})
    assert data.spec.labels == ["boats", "bread"]
    labels = data.split("train").rows.labels
    assert labels is not None
    assert labels.count("boats") == 4
    assert labels.count("bread") == 20
    assert set(data.split("validation").rows.labels or ()) == {"boats", "bread"}
    limited = prepared(tmp_path, files, rows_per_class=0.5)
    assert len(limited.split("train").rows) == pytest.approx(35, abs=2)
    again = prepared(tmp_path, files, rows_per_class=0.5)
    assert again.split("train").rows.fingerprint == limited.split("train").rows.fingerprint
    with pytest.raises(InputError, match="no class 'zebras'"):
        prepared(tmp_path, files, classes=["zebras", "bread"])


def test_validation_rows_are_split_off_and_stratified(tmp_path: Path, files: dict[str, str]) -> None:
    del files["validation_file"]
    data = prepared(tmp_path, files, validation_split=5, split_copies=True)
    labels = data.split("validation").rows.labels
    assert labels is not None
    assert sorted(labels) == sorted(LABELS * 5)
    assert len(data.split("train").rows) == 70 - 15


def test_copies_stay_on_one_side_of_a_split(tmp_path: Path, files: dict[str, str]) -> None:
    del files["validation_file"]
    data = prepared(tmp_path, files, validation_split=5)
    train, validation = (
        {fold(text) for text in data.split(name).rows.texts} for name in ("train", "validation")
    )
    assert not train & validation
    # Some texts have two labels: a class takes the other's row along.
    assert 15 <= len(data.split("validation").rows) <= 20
    assert data.copy_counts("validation")["rows_in_training"] == 0


# --- memories of other tables -------------------------------------------------------------------------------


def test_a_labelled_table_as_memory(tmp_path: Path, files: dict[str, str]) -> None:
    """Its labels are another task's: they get a list of their own."""
    texts, _ = labelled_texts(40, seed=9)
    topics = [("wild", "calm", "beasts")[i % 3] for i in range(40)]
    path = tmp_path / "memory.csv"
    path.write_text("body,topic\n" + "".join(f"{a},{b}\n" for a, b in zip(texts, topics, strict=True)))
    data = prepared(tmp_path, files, memory=str(path), memory_text_column="body", memory_label_column="topic")
    assert data.spec.labels == sorted(LABELS)
    assert data.spec.memory_labels == ["beasts", "calm", "wild"]
    for batch in data.val_dataloader():
        check_batch(data, data.split("validation"), batch, 64, 64)
        assert set(batch.memory_target[batch.memory_mask].tolist()) <= {0, 1, 2}
        assert batch.memory_mask.any()
    neighbors = data.split("train").neighbors
    assert neighbors is not None
    assert set(neighbors.memories.texts) <= set(texts)


def test_split_off_validation_rows_do_not_find_themselves(tmp_path: Path, files: dict[str, str]) -> None:
    """Although the memory that is named has the whole table."""
    options = {"memory": files["train_file"], "memory_label_column": "label", "num_memories": 2}
    data = prepared(tmp_path, {"train_file": files["train_file"]}, **options)
    for name in ("train", "validation"):
        split = data.split(name)
        assert split.neighbors is not None
        for text, found in zip(split.rows.texts, split.neighbors.rows.tolist(), strict=True):
            assert text not in {split.neighbors.memories.texts[row] for row in found if row >= 0}


def test_a_test_is_split_off_before_the_validation_rows(tmp_path: Path, files: dict[str, str]) -> None:
    table = {"train_file": files["train_file"]}
    data = prepared(tmp_path, table, test_split=4, validation_split=2, split_copies=True, rows_per_class=5)
    parts = {name: data.split(name).rows for name in ("train", "validation", "test")}
    assert {name: len(rows) for name, rows in parts.items()} == {
        name: rows * len(LABELS) for name, rows in (("train", 5), ("validation", 2), ("test", 4))
    }
    assert len({id_ for rows in parts.values() for id_ in rows.ids}) == 11 * len(LABELS)
    # Another validation leaves the test as it is; copies stay on one side.
    other = prepared(tmp_path, table, test_split=4, validation_split=3, split_copies=True)
    assert other.split("test").rows.ids == parts["test"].ids
    together = prepared(tmp_path, table, test_split=4, validation_split=2)
    texts = [set(together.split(name).rows.texts) for name in ("train", "validation", "test")]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    with pytest.raises(InputError, match=r"data\.test_split: the data brings its own test"):
        make(tmp_path, files, test_split=4)
    changed = make(tmp_path, table, test_split=5, validation_split=2)
    with pytest.raises(InputError, match=r"data\.test_split=5: M was trained with test_split=4"):
        changed.check_split(together.state(), "test", "M")
    given = ClassificationDataModule.options_after_training(together.state(), "test", {"test_file": "x.csv"})
    assert given["test_split"] is None


def test_texts_to_predict_are_kept_as_long_as_the_model_reads(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, max_length=600, num_memories=0)
    split = data.split_of(Rows.from_lists(["word " * 700]), None)
    assert np.diff(split.tokens.offsets).tolist() == [601]  # one more shows that it is cut


def test_labels_of_the_same_task_are_numbered_as_its_classes(tmp_path: Path, files: dict[str, str]) -> None:
    path = write_csv(tmp_path / "memory.csv", ["the lion", "a loaf"], ["beasts", "bread"])
    data = prepared(tmp_path, files, memory=path, memory_label_column="label", num_memories=2)
    assert data.spec.memory_labels == data.spec.labels == sorted(LABELS)
    targets = {int(t) for batch in data.val_dataloader() for t in batch.memory_target[batch.memory_mask]}
    assert targets == {sorted(LABELS).index("beasts"), sorted(LABELS).index("bread")}


def test_unlabelled_texts_as_memory(tmp_path: Path, files: dict[str, str]) -> None:
    path = write_csv(tmp_path / "memory.csv", labelled_texts(40, seed=9)[0])
    data = prepared(tmp_path, files, memory=path)
    assert data.spec.memory_labels == []
    batches = all_batches(data)
    assert any(batch.memory_mask.any() for batch in batches)
    assert all((batch.memory_target == -100).all() for batch in batches)


def test_a_folder_as_memory(tmp_path: Path, files: dict[str, str]) -> None:
    texts, labels = labelled_texts(40, seed=9)
    table = Rows.from_lists(texts, labels)
    memory = FolderMemory.build(table, EmbeddedRetriever(), tmp_path / "memory", progress=False)
    data = prepared(tmp_path, files, memory=str(tmp_path / "memory"))
    assert data.memory_location == memory.location()
    neighbors = data.split("train").neighbors
    assert neighbors is not None
    assert set(neighbors.memories.texts) <= set(texts)
    with pytest.raises(InputError, match="built for") as error:
        prepared(tmp_path, files, memory=str(tmp_path / "memory"), retriever=EmbeddedRetriever(b=0.1))
    message(error, tmp_path / "memory")


def test_a_test_after_training_uses_the_memory_of_the_training(tmp_path: Path, files: dict[str, str]) -> None:
    data = make(tmp_path, files)
    for function, stage in ((TrainerFn.FITTING, "fit"), (TrainerFn.TESTING, "test")):
        state = SimpleNamespace(fn=function)
        data.trainer = SimpleNamespace(state=state, global_rank=0, world_size=1)  # type: ignore[assignment]
        data.prepare_data()
        data.setup(stage)
    assert same(list(data.test_dataloader()), list(prepared(tmp_path, files).test_dataloader()))


# --- what a checkpoint keeps --------------------------------------------------------------------------------


def test_the_state_is_plain_and_makes_the_same_data(tmp_path: Path, files: dict[str, str]) -> None:
    data = prepared(tmp_path, files, min_count=2)
    buffer = io.BytesIO()
    torch.save(data.state(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert state == data.state() == json.loads(json.dumps(data.state()))

    again = ClassificationDataModule(**state["options"])
    with pytest.raises(InputError, match="no vocabulary yet"):
        _ = again.spec
    again.use_state(state)
    assert again.spec == data.spec
    assert again.vocabulary.to_dict() == data.vocabulary.to_dict()
    assert again.state() == state
    memory = open_memory(again.memory_location or "", EmbeddedRetriever())
    rows = Rows.from_lists(["the lion", "unheard of"])
    one, other = (d.dataset(d.split_of(rows, memory)).__getitems__([0, 1]) for d in (data, again))
    assert same([one], [other])


def test_a_models_vocabulary_and_labels_win_over_the_datas(tmp_path: Path, files: dict[str, str]) -> None:
    state = prepared(tmp_path, files).state()
    other = write_csv(
        tmp_path / "other.csv", ["lion quay", "rudder", "zebu", "oar"] * 3, ["boats", "kites"] * 6
    )
    data = prepared(tmp_path, {"train_file": other, "test_file": files["test_file"]}, validation_split=1)
    assert data.spec.labels == ["boats", "kites"]
    data.use_state(state)
    assert data.spec.labels == sorted(LABELS)
    assert "quay" not in data.vocabulary.words
    (batch,) = data.test_dataloader()
    check_batch(data, data.split("test"), batch, 64, 64)


def test_word_vectors_are_those_of_the_file(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "vectors.txt").write_text("lion 1 2 3\nunheard 4 5 6\n")
    data = prepared(tmp_path, files, word_vectors=str(tmp_path / "vectors.txt"))
    vectors = data.word_vectors()
    assert vectors is not None
    assert vectors.shape == (data.spec.num_words, 3)
    words = data.vocabulary.words
    assert vectors[words.index("lion")].tolist() == [1, 2, 3]
    assert vectors[words.index("unheard")].tolist() == [4, 5, 6]  # a frequent word of the file joins
    assert prepared(tmp_path, files).word_vectors() is None


# --- bad input ----------------------------------------------------------------------------------------------


def test_more_memories_than_there_are(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="the memory has only 70 rows") as error:
        prepared(tmp_path, files, num_memories=71)
    message(error, "data.num_memories=71")
    batch = next(iter(prepared(tmp_path, files, num_memories=70).train_dataloader()))
    assert batch.memory.shape[1] == 70
    assert not batch.memory_mask.all()


@pytest.mark.parametrize("name", ["train_file", "validation_file", "test_file", "memory"])
def test_a_missing_file_is_named(tmp_path: Path, files: dict[str, str], name: str) -> None:
    wrong = str(tmp_path / "trian.csv")
    with pytest.raises(InputError, match="no such") as error:
        prepared(tmp_path, {**files, name: wrong})
    message(error, wrong)


def test_a_wrong_column_is_named_with_those_there_are(tmp_path: Path, files: dict[str, str]) -> None:
    for option in ("text_column", "label_column"):
        with pytest.raises(InputError, match="no column 'sentence'") as error:
            prepared(tmp_path, files, **{option: "sentence"})
        message(error, files["train_file"], "'text', 'label'")
    path = write_csv(tmp_path / "memory.csv", ["the lion"] * 5)
    with pytest.raises(InputError, match="no column 'label'") as error:
        prepared(tmp_path, files, memory=path, memory_label_column="label")
    message(error, path)


@pytest.mark.parametrize("contents", ["", "text,label\n"])
def test_an_empty_file_is_named(tmp_path: Path, files: dict[str, str], contents: str) -> None:
    path = tmp_path / "empty.csv"
    path.write_text(contents)
    with pytest.raises(InputError) as error:
        prepared(tmp_path, {**files, "train_file": str(path)})
    message(error, path)


@pytest.mark.parametrize(
    "options", [{"num_memories": -1}, {"max_length": 0}, {"batch_size": 0}, {"num_workers": -1}], ids=str
)
def test_an_option_out_of_range_is_named(tmp_path: Path, files: dict[str, str], options: Any) -> None:
    with pytest.raises(InputError, match=f"data.{next(iter(options))}="):
        make(tmp_path, files, **options)


def test_files_are_needed(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="give one of them"):
        make(tmp_path, files, dataset="ag_news")
    data = make(tmp_path, {})
    data.trainer = SimpleNamespace(state=SimpleNamespace(fn=TrainerFn.FITTING))  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"data\.train_file"):
        data.prepare_data()
    data.trainer = SimpleNamespace(state=SimpleNamespace(fn=TrainerFn.TESTING))  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"data\.test_file"):
        data.prepare_data()


def test_odd_texts_go_through(tmp_path: Path, files: dict[str, str]) -> None:
    odd = ["", "\0", "word " * 20_000, "漢字 лев 🦁", "-- ~~ ,,".replace(",", "!")]
    records = [{"text": text, "label": LABELS[i % 2]} for i, text in enumerate(odd * 3)]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = prepared(tmp_path, {**files, "train_file": str(path)}, tokenizer="whitespace")
    seen = 0
    for batch in data.train_dataloader():
        seen += len(batch.row)
        assert batch.text.shape[1] <= 64
        empty = torch.tensor([not records[i]["text"].strip("\0 ") for i in batch.row])
        assert ((batch.text != 0).sum(1) == 0).tolist() == empty.tolist()
        assert not batch.memory_mask[empty].any()
    assert seen == 15
