"""Options without effect are logged when a training begins."""

from __future__ import annotations

from typing import Any

import pytest

import zoo
from datamodules import ClassificationDataModule, ClickthroughDataModule, DialogueDataModule
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever, FusedRetriever
from tests.zoo.conftest import Zoo, done, fit_options
from zoo.baselines.rankings import RetrievalBM25
from zoo.ensemble.model import MemoryEnsemble

OTHER = EmbeddedRetriever(similarity="LMDirichlet")


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (ClassificationDataModule(memory_label_column="label"), {"memory_label_column"}),
        (ClassificationDataModule(memory="other.csv", memory_label_column="label"), set()),
        (ClassificationDataModule(retriever=OTHER), set()),
        (ClassificationDataModule(retriever=OTHER, num_memories=0), {"retriever"}),
        (ClickthroughDataModule(num_negatives=8), {"num_negatives"}),
        (ClickthroughDataModule(num_negatives=8, negatives="random"), set()),
        (ClickthroughDataModule(skip_hits=3), {"skip_hits"}),
        (ClickthroughDataModule(skip_hits=3, negatives="retrieved", num_hits=9), set()),
        (ClickthroughDataModule(retriever=OTHER), {"retriever"}),
        (ClickthroughDataModule(retriever=OTHER, num_hits=9), set()),
        (DialogueDataModule(layout="hmn4qa", retriever=OTHER), {"retriever"}),
        (DialogueDataModule(layout="hmn4qa", retriever=OTHER, turns_kept="retrieved"), set()),
    ],
)
def test_of_the_data(data: Any, names: set[str]) -> None:
    assert {name for name, _ in data.idle_options()} == names


def test_of_a_model_and_its_data() -> None:
    data = ClassificationDataModule(memory_max_length=9)
    assert [name for name, _ in MemoryEnsemble().idle_options(data)] == ["data.memory_max_length"]
    assert [name for name, _ in zoo.ExpaNet(train_word_vectors=True).idle_options(data)] == [
        "model.train_word_vectors"
    ]
    clicks = ClickthroughDataModule(num_hits=9)
    assert [name for name, _ in RetrievalBM25().idle_options(clicks)] == ["data.num_hits"]
    # The model ranks by its own BM25, whatever the retriever.
    clicks = ClickthroughDataModule(retriever=OTHER)
    assert [name for name, _ in RetrievalBM25().idle_options(clicks)] == ["data.retriever"]
    clicks = ClickthroughDataModule(retriever=DenseRetriever("an-encoder"), num_hits=9, negatives="retrieved")
    # A model without training learns from no negatives, and ranks by its own BM25.
    assert [name for name, _ in RetrievalBM25().idle_options(clicks)] == ["data.num_hits", "data.retriever"]
    assert [name for name, _ in RetrievalBM25(mix_retriever=True).idle_options(clicks)] == []
    assert [name for name, _ in zoo.LSTMRNN().idle_options(clicks)] == []
    lone = EmbeddedRetriever(similarity="LMDirichlet", k1=0.5)
    retrievers = (lone, FusedRetriever([lone, EmbeddedRetriever(mu=9.0)]))
    assert [[name for name, _ in retriever.idle_options()] for retriever in retrievers] == [
        ["k1"],
        ["retrievers.0.k1", "retrievers.1.mu"],
    ]


def test_they_are_logged(zoo_command: Zoo, train_csv: Any, caplog: pytest.LogCaptureFixture) -> None:
    done(zoo_command(*fit_options(train_csv, "--data.memory_label_column=label")))
    assert "data.memory_label_column has no effect: data.memory names no table" in caplog.text
