"""Options without effect are logged when a training begins."""

from typing import Any

import pytest

import zoo
from datamodules import ClassificationDataModule, ClickthroughDataModule, DialogueDataModule
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever
from tests.zoo.conftest import Zoo, done, fit_options
from zoo.baselines.rankings import RetrievalBM25

OTHER = EmbeddedRetriever(similarity="LMDirichlet")
CLICKS = ClickthroughDataModule(retriever=DenseRetriever("an-encoder"), num_hits=9, negatives="retrieved")


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (ClassificationDataModule(retriever=OTHER), set()),
        (ClassificationDataModule(retriever=OTHER, num_memories=0), {"retriever"}),
        (ClickthroughDataModule(retriever=OTHER), {"retriever"}),
        (ClickthroughDataModule(retriever=OTHER, num_hits=9), set()),
        (DialogueDataModule(layout="hmn4qa", retriever=OTHER), {"retriever"}),
        (DialogueDataModule(layout="hmn4qa", retriever=OTHER, turns_kept="retrieved"), set()),
    ],
)
def test_of_the_data(data: Any, names: set[str]) -> None:
    assert {name for name, _ in data.idle_options()} == names


@pytest.mark.parametrize(
    ("model", "data", "names"),
    [
        (zoo.ExpaNet(train_word_vectors=True), ClassificationDataModule(), ["model.train_word_vectors"]),
        (RetrievalBM25(), ClickthroughDataModule(num_hits=9), ["data.num_hits"]),
        # The model ranks by its own BM25, whatever the retriever, and learns from no negatives.
        (RetrievalBM25(), ClickthroughDataModule(retriever=OTHER), ["data.retriever"]),
        (RetrievalBM25(), CLICKS, ["data.num_hits", "data.retriever"]),
        (RetrievalBM25(mix_retriever=True), CLICKS, []),
        (zoo.LSTMRNN(), CLICKS, []),
    ],
)
def test_of_a_model_and_its_data(model: Any, data: Any, names: list[str]) -> None:
    assert [name for name, _ in model.idle_options(data)] == names


def test_they_are_logged(zoo_command: Zoo, train_csv: Any, caplog: pytest.LogCaptureFixture) -> None:
    done(zoo_command(*fit_options(train_csv, "--model.train_word_vectors=true")))
    assert "model.train_word_vectors has no effect: vectors that no file has" in caplog.text
