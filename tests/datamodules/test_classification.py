"""Texts to classify: batches against plain Python, labels, memories of other tables, and wrong input."""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from datamodules import ClassificationDataModule
from datamodules.batch import ClassificationBatch
from datamodules.classification import in_natural_order
from datamodules.core.errors import InputError
from datamodules.corpora.rows import SCHEMA, Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from datamodules.retrieval.folding import fold
from datamodules.text_rows import TextSplit, first_of_equal_texts
from tests.datamodules.checks import refused
from tests.datamodules.corpus import LABELS, labelled_texts, write_csv
from tests.datamodules.kinds import Kind, classification


@pytest.fixture
def kind(tmp_path: Path) -> Kind[ClassificationDataModule]:
    return classification(tmp_path)


def check_batch(
    data: ClassificationDataModule,
    split: TextSplit,
    batch: ClassificationBatch,
    max_length: int = 64,
    memory_length: int = 64,
) -> None:
    """Compare a batch with the rows that it was built from."""
    vocabulary, spec = data.words.vocabulary, data.spec
    word_ids = {word: i for i, word in enumerate(vocabulary.words)}
    characters = {character: i for i, character in enumerate(vocabulary.characters or ())}
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
    memory_texts = []
    for b, row in enumerate(batch.row.tolist()):
        assert words(batch.text[b]) == ids(split.rows.texts[row], max_length)
        for word, position in zip(split.rows.texts[row].split(), batch.text[b], strict=False):
            expected = [characters.get(character, 1) for character in word[: data.options.max_characters]]
            char = batch.char[position]
            assert char[char != 0].tolist() == (expected if data.options.characters else [])
        label = split.rows.label(row)
        assert batch.target[b] == (spec.labels.index(label) if label in spec.labels else len(spec.labels))
        for j in range(batch.memory.shape[1]):
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
            memory_texts.append(memories[number])
    # A word is in the table once, a memory text in the batch once, and the padding is no wider than needed.
    assert batch.word[0] == vocabulary.pad_id
    assert (batch.char.shape[1] > 0) == data.options.characters
    assert len(batch.memory_text) == len(set(memory_texts))
    assert (batch.text != 0).sum(1).max() == batch.text.shape[1]
    assert set(batch.text.unique().tolist()) | set(batch.memory_text.unique().tolist()) | {0} == set(
        range(len(batch.word))
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 3, "memory_max_length": 2},
        {"max_length": 4},
        {"characters": False},
        {"min_count": 8},
        {"tokenizer": "whitespace"},
        {"num_memories": 25},
        {"num_memories": 0},
        {"eval_batch_size": 5},
        {"retriever": EmbeddedRetriever(similarity="LMDirichlet", mu=10.0)},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_batches_equal_a_plain_reference(kind: Kind[ClassificationDataModule], options: Any) -> None:
    data = kind.prepared(**options)
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
        assert sorted(i for batch in batches for i in batch.row.tolist()) == list(range(len(split.rows)))
    sizes = {"train": 8, "validation": options.get("eval_batch_size") or 32}
    for name, size in sizes.items():
        assert max(len(batch.row) for batch in loaders[name]) <= size


def test_equal_memory_texts_are_encoded_once_and_keep_their_labels(tmp_path: Path) -> None:
    texts = ["lion sail", "lion sail", "lion sail", "rye crust"]
    kind = Kind(
        ClassificationDataModule,
        tmp_path,
        num_memories=3,
        train_file=write_csv(tmp_path / "train.csv", texts, ["a", "b", "a", "b"]),
        validation_file=write_csv(tmp_path / "validation.csv", ["lion", "sail"], ["a", "b"]),
    )
    (batch,) = kind.prepared().val_dataloader()
    assert len(batch.memory_text) == 1
    assert batch.memory.tolist() == [[0, 0, 0]] * 2
    assert batch.memory_mask.all()
    assert batch.memory_target.tolist() == [[0, 1, 0]] * 2


def test_equal_texts_are_recognized_across_arrow_chunks() -> None:
    parts = [["x", "y"], ["y", "z", "x"], [], ["z", "w"]]
    table = pa.concat_tables([Rows.from_lists(part).table for part in parts])
    assert table.column("text").num_chunks > 1
    assert first_of_equal_texts(Rows(table, "parts")).tolist() == [0, 1, 1, 3, 0, 3, 6]
    assert first_of_equal_texts(Rows(SCHEMA.empty_table(), "none")).tolist() == []


def test_texts_of_a_prediction_make_the_same_batch_as_a_table(kind: Kind[ClassificationDataModule]) -> None:
    data = kind.prepared()
    table = data.split("test")
    texts = [*table.rows.texts, "unheard words", ""]
    split = data.split_of(Rows.from_lists(texts), data.memory.open())
    batch = data.dataset(split).__getitems__(range(len(texts)))
    known = data.dataset(table).__getitems__(range(len(texts) - 2))
    assert (batch.target == -100).all()  # there are no labels
    for name in ("memory_mask", "memory_score", "memory_target"):
        assert torch.equal(getattr(batch, name)[:-2], getattr(known, name))
    for a, b in zip(batch.text[:-2], known.text, strict=True):
        assert batch.word[a[a > 0]].tolist() == known.word[b[b > 0]].tolist()
    assert batch.word[batch.text[-2, :2]].tolist() == [data.words.vocabulary.unk_id] * 2
    assert not batch.text[-1].any()
    assert not batch.memory_mask[-2:].any()
    without = data.dataset(split).__getitems__([len(texts) - 2, len(texts) - 1])
    assert (len(without.memory_text), without.memory.shape) == (0, (2, 3))
    assert not without.memory_mask.any()


def test_texts_to_predict_are_kept_as_long_as_the_model_reads(kind: Kind[ClassificationDataModule]) -> None:
    data = kind.prepared(max_length=600, num_memories=0)
    split = data.split_of(Rows.from_lists(["word " * 700]), None)
    assert np.diff(split.tokens.offsets).tolist() == [601]  # one more shows that it is cut


def test_labels_that_training_lacks_are_counted(
    kind: Kind[ClassificationDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    with (kind.folder / "test.csv").open("a") as file:
        file.write("the lion,zebras\nthe sail,zebras\n")
    data = kind.prepared()
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


def test_labels_that_are_numbers_are_sorted_by_value() -> None:
    assert in_natural_order(["10", "9", "-1", "2"]) == ["-1", "2", "9", "10"]
    assert in_natural_order(["b", "10", "9"]) == ["10", "9", "b"]
    for label in ("--2", "9" * 5000, "²", "-"):
        assert {*in_natural_order([label, "1"])} == {label, "1"}


def test_one_class_alone_is_refused(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "train.csv", ["lion", "tiger", "wolf"], ["beasts"] * 3)
    data = ClassificationDataModule(train_file=file, num_memories=1, cache_dir=str(tmp_path))
    with refused(file, "'beasts'", match="a classifier needs two classes"):
        data.prepare_data()


def test_rows_per_class(kind: Kind[ClassificationDataModule]) -> None:
    data = kind.prepared(rows_per_class={"boats": 4})
    labels = data.split("train").rows.labels
    assert labels.count("boats") == 4
    assert labels.count("bread") == 20
    assert {*data.split("validation").neighbors.memories.texts} <= {*data.split("train").rows.texts}
    limited = kind.prepared(rows_per_class=0.5)
    assert len(limited.split("train").rows) == pytest.approx(35, abs=2)
    repeated = kind.prepared(rows_per_class=0.5)
    assert repeated.split("train").rows.fingerprint == limited.split("train").rows.fingerprint
    with pytest.raises(InputError, match="no class 'zebras'"):
        kind.prepared(rows_per_class={"zebras": 4})


def test_duplicates_stay_on_one_side_of_a_split(
    kind: Kind[ClassificationDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="datamodules")
    folded = Counter(fold(text) for text in kind.prepared().split("train").rows.texts)
    counts = [count for count in folded.values() if count > 1]
    data = kind.prepared(validation_file=None, validation_split=5)
    train, validation = (
        {fold(text) for text in data.split(name).rows.texts} for name in ("train", "validation")
    )
    assert not train & validation
    for name in ("train", "validation"):
        assert {fold(text) for text in data.split(name).neighbors.memories.texts} <= train
    logged = f"{sum(counts)} of 70 rows to split are duplicates of each other, in {len(counts)} groups"
    assert caplog.text.count(logged) == 1
    # About five rows of each class; some texts have two labels: a class takes the other's row along.
    assert 15 <= len(data.split("validation").rows) <= 20
    assert min(Counter(data.split("validation").rows.labels or ()).values()) >= 3
    assert len(data.split("train").rows) + len(data.split("validation").rows) == 70
    assert data.duplicate_counts("validation")["rows_in_training"] == 0


def test_a_test_is_split_off_before_the_validation_rows(kind: Kind[ClassificationDataModule]) -> None:
    with pytest.raises(InputError, match=r"data\.test_split and data\.test_file: give one of them"):
        kind.make(test_split=4)
    kind.options |= {"validation_file": None, "test_file": None, "test_split": 4}
    data = kind.prepared(validation_split=2, rows_per_class=5)
    parts = {name: data.split(name).rows for name in ("train", "validation", "test")}
    for name, rows, rest in (("train", 5, 0), ("validation", 2, 2), ("test", 4, 3)):
        assert all(abs(count - rows) <= rest for count in Counter(parts[name].labels or ()).values())
    assert len({id_ for rows in parts.values() for id_ in rows.ids}) == sum(map(len, parts.values()))
    # Another validation leaves the test as it is, and duplicates stay on one side.
    assert kind.prepared(validation_split=3).split("test").rows.ids == parts["test"].ids
    texts = [set(rows.texts) for rows in parts.values()]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        # Another task's labels are a list of their own; those of the same task are numbered as its classes.
        (("wild", "calm", "beasts"), ["beasts", "calm", "wild"]),
        (("beasts", "bread"), sorted(LABELS)),
        ((), []),
    ],
)
def test_a_table_as_memory(
    kind: Kind[ClassificationDataModule], topics: tuple[str, ...], expected: list[str]
) -> None:
    texts, path = labelled_texts(40, seed=9)[0], kind.folder / "memory.csv"
    lines = [f"{text},{topics[i % len(topics)] if topics else ''}" for i, text in enumerate(texts)]
    column, label_column = ("body", "topic") if topics else (None, None)
    path.write_text("\n".join([f"{column or 'text'},topic", *lines]))
    data = kind.prepared(memory=str(path), memory_text_column=column, memory_label_column=label_column)
    assert (data.spec.labels, data.spec.memory_labels) == (sorted(LABELS), expected)
    for batch in data.val_dataloader():
        check_batch(data, data.split("validation"), batch)
        assert batch.memory_mask.any()
        assert (batch.memory_target[batch.memory_mask] >= 0).all() == bool(topics)
    assert set(data.split("train").neighbors.memories.texts) <= set(texts)


def test_a_folder_as_memory(kind: Kind[ClassificationDataModule]) -> None:
    texts, labels = labelled_texts(40, seed=9)
    folder = kind.folder / "memory"
    memory = FolderMemory.build(Rows.from_lists(texts, labels), EmbeddedRetriever(), folder)
    data = kind.prepared(memory=str(folder))
    assert data.memory.location == memory.location()
    neighbors = data.split("train").neighbors
    assert set(neighbors.memories.texts) <= set(texts)
    with refused(folder, match="built for"):
        kind.prepared(memory=str(folder), retriever=EmbeddedRetriever(b=0.1))


def test_too_many_memories(kind: Kind[ClassificationDataModule], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        data = kind.prepared(num_memories=71)
    assert "data.num_memories=71: the memory has only 70 rows" in caplog.text
    batch = next(iter(data.train_dataloader()))
    assert batch.memory.shape[1] == 70
    assert not batch.memory_mask.all()


def test_word_vectors_are_those_of_the_file(kind: Kind[ClassificationDataModule]) -> None:
    file = kind.folder / "vectors.txt"
    file.write_text("lion 1 2 3\nunheard 4 5 6\n")
    data = kind.prepared(word_vectors=str(file))
    vectors, has_vector = data.words.vectors(), data.words.has_vector()
    assert vectors is not None
    assert has_vector is not None
    assert vectors.shape == (data.spec.num_words, 3)
    words = data.words.vocabulary.words
    assert vectors[words.index("lion")].tolist() == [1, 2, 3]
    assert vectors[words.index("unheard")].tolist() == [4, 5, 6]  # a frequent word of the file joins
    assert [words[i] for i in has_vector.nonzero()[:, 0]] == ["lion", "unheard"]
    assert kind.prepared().words.vectors() is None


def test_unusual_texts_are_read(kind: Kind[ClassificationDataModule]) -> None:
    unusual = ["", "\0", "word " * 20_000, "漢字 лев 🦁", "-- ~~ !!"]
    records = [{"text": text, "label": LABELS[i % 2]} for i, text in enumerate(unusual * 3)]
    path = kind.folder / "unusual.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = kind.prepared(train_file=str(path), tokenizer="whitespace")
    rows = 0
    for batch in data.train_dataloader():
        rows += len(batch.row)
        assert batch.text.shape[1] <= 128
        empty = torch.tensor([not records[i]["text"].strip("\0 ") for i in batch.row])
        assert ((batch.text != 0).sum(1) == 0).tolist() == empty.tolist()
        assert not batch.memory_mask[empty].any()
    assert rows == 15
