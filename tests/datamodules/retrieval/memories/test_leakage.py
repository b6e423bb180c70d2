"""A training text retrieves neither itself nor a duplicate; evaluation retrieves training texts only."""

import random
from pathlib import Path
from typing import Any

import pytest

from datamodules.classification import ClassificationDataModule
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from datamodules.retrieval.folding import fold
from datamodules.retrieval.memories.folder_memory import FolderMemory
from datamodules.retrieval.memories.memory import Neighbors
from tests.datamodules.corpus import labelled_texts, write_csv

K = 6


def with_duplicates(n: int, seed: int) -> tuple[list[str], list[str]]:
    """Return texts of which a third has duplicates that differ in case and white space, some with another label."""
    texts, labels = labelled_texts(n, seed)
    rng = random.Random(seed)
    for text in rng.sample(texts, n // 3):
        changed = text.upper() if rng.random() < 0.5 else text.title()
        texts.append(changed.replace(" ", rng.choice(["  ", "\t", "\u00a0"])))
        labels.append(rng.choice(labels))
    return texts, labels


def pairs(rows: Rows) -> set[tuple[str, str]]:
    return set(zip(rows.texts, rows.labels, strict=True))


def neighbor_texts(neighbors: Neighbors) -> list[list[str]]:
    return [[neighbors.memories.texts[i] for i in row if i >= 0] for row in neighbors.rows.tolist()]


def test_a_text_with_duplicates_only_has_no_memory(tmp_path: Path) -> None:
    table = Rows.from_lists(["the lion", "The  Lion", "sail"], ["a", "b", "b"])
    memory = FolderMemory.build(table, EmbeddedRetriever(), tmp_path / "m")
    assert (memory.search(table.texts[:], 2, exclude_duplicates=True).rows == -1).all()


@pytest.mark.parametrize(
    "kind", ["BM25", "LMDirichlet", pytest.param("Elasticsearch", marks=pytest.mark.server)]
)
def test_the_data_module_does_not_leak(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    """A third of all texts is also in another split."""
    retriever: Retriever
    if kind == "Elasticsearch":
        retriever = ElasticsearchRetriever(index_prefix=request.getfixturevalue("index_prefix"))
    else:
        retriever = EmbeddedRetriever(similarity=kind)  # type: ignore[arg-type]
    texts, labels = with_duplicates(120, seed=1)
    held_out, held_out_labels = labelled_texts(20, seed=2)
    copied = slice(0, 30)
    files = {
        "train_file": write_csv(tmp_path / "train.csv", texts, labels),
        "validation_file": write_csv(
            tmp_path / "validation.csv", held_out + texts[copied], held_out_labels + labels[copied]
        ),
        "test_file": write_csv(
            tmp_path / "test.csv",
            [text + " quay" for text in held_out] + texts[copied],
            held_out_labels + labels[copied],
        ),
    }
    data = ClassificationDataModule(
        **files, num_memories=K, retriever=retriever, cache_dir=str(tmp_path / "cache")
    )
    data.prepare_data()
    data.setup("fit")
    training_rows = pairs(data.split("train").rows)
    for name in ("train", "validation", "test"):
        split = data.split(name)
        assert pairs(split.neighbors.memories) <= training_rows
        retrieved = neighbor_texts(split.neighbors)
        assert sum(map(len, retrieved)) > 0.8 * K * len(retrieved)
        own = [fold(t) in map(fold, others) for t, others in zip(split.rows.texts, retrieved, strict=True)]
        if name == "train":
            assert not any(own)
        else:
            # A held-out text may retrieve its duplicate among the training texts.
            assert all(own[-30:])


@pytest.mark.parametrize(
    ("options", "number"), [({"validation_split": 0.3}, 70), ({"rows_per_class": 5}, 15)]
)
def test_the_memory_has_the_training_rows(tmp_path: Path, options: dict[str, Any], number: int) -> None:
    texts, labels = labelled_texts(100, seed=3)
    texts = [f"{text} n{i}" for i, text in enumerate(texts)]  # all distinct
    train_file = write_csv(tmp_path / "all.csv", texts, labels)
    data = ClassificationDataModule(
        train_file=train_file, num_memories=K, cache_dir=str(tmp_path / "cache"), **options
    )
    data.prepare_data()
    data.setup("fit")
    train, validation = (set(data.split(name).rows.texts) for name in ("train", "validation"))
    assert len(train) == number
    assert not train & validation
    for name in ("train", "validation"):
        neighbors = data.split(name).neighbors
        assert set(neighbors.memories.texts) <= train
