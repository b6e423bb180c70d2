"""A training text retrieves neither itself nor a duplicate; evaluation retrieves training texts only."""

import random
from pathlib import Path

import pytest

from datamodules.classification import ClassificationDataModule
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from datamodules.retrieval.folding import fold
from tests.datamodules.corpus import labelled_texts, write_csv
from tests.datamodules.kinds import Kind

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
    data = Kind(ClassificationDataModule, tmp_path, **files).prepared(num_memories=K, retriever=retriever)
    training_rows = pairs(data.split("train").rows)
    for name in ("train", "validation", "test"):
        split = data.split(name)
        assert pairs(split.neighbors.memories) <= training_rows
        texts, rows = split.neighbors.memories.texts, split.neighbors.rows.tolist()
        retrieved = [[texts[i] for i in row if i >= 0] for row in rows]
        assert sum(map(len, retrieved)) > 0.8 * K * len(retrieved)
        own = [fold(t) in map(fold, others) for t, others in zip(split.rows.texts, retrieved, strict=True)]
        if name == "train":
            assert not any(own)
        else:
            # A held-out text may retrieve its duplicate among the training texts.
            assert all(own[-30:])
