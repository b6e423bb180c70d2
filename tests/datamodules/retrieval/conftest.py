"""Retrievers of every kind, a small transformer with random weights, and retries without pauses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from datamodules.retrieval import (
    DenseRetriever,
    ElasticsearchDenseRetriever,
    EmbeddedRetriever,
    FusedRetriever,
    Retriever,
)
from datamodules.retrieval.dense import retriever as dense_retriever
from datamodules.retrieval.dense.transformer_encoder import PublishedEncoder
from datamodules.retrieval.elasticsearch import connection as server_connection
from tests.datamodules.corpus import WORDS
from tests.sentence_folders import write_bert

MakeRetriever = Callable[[], Retriever]
BACK_ENDS = ["BM25", "LMDirichlet", "dense", "fused"]
SERVERS = ["Elasticsearch", "Elasticsearch, 3 shards", "Elasticsearch, dense", "Elasticsearch, fused"]
SERVERS += ["OpenSearch", "OpenSearch, 3 shards"]


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a BERT of two layers that reads 32 tokens, with random weights."""
    folder = tmp_path_factory.mktemp("models") / "tiny-encoder"
    # Weights so large that the vectors of texts differ.
    return str(write_bert(folder, WORDS, max_position_embeddings=32, initializer_range=0.5))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that encoders encode, in their order."""
    texts: list[str] = []
    encode = PublishedEncoder.__call__

    def count(self: PublishedEncoder, some: list[str], *rest: Any, **options: Any) -> NDArray[np.float32]:
        texts.extend(some)
        return encode(self, some, *rest, **options)

    monkeypatch.setattr(PublishedEncoder, "__call__", count)
    return texts


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a retriever would have waited before each retry."""
    pauses: list[float] = []
    monkeypatch.setattr(server_connection.time, "sleep", pauses.append)
    return pauses


@pytest.fixture(params=[*BACK_ENDS, *(pytest.param(name, marks=pytest.mark.server) for name in SERVERS)])
def make(request: pytest.FixtureRequest, on_server: Any, monkeypatch: pytest.MonkeyPatch) -> MakeRetriever:
    """Makes a retriever of one kind, always the same memory."""
    kind = str(request.param)
    if kind in ("BM25", "LMDirichlet"):
        return lambda: EmbeddedRetriever(similarity=kind)  # type: ignore[arg-type]
    monkeypatch.setattr(dense_retriever, "TEXTS", 16)  # duplicates are in several blocks
    tiny_encoder: str = request.getfixturevalue("tiny_encoder")
    if kind == "dense":
        return lambda: DenseRetriever(tiny_encoder)
    if kind == "fused":
        return lambda: FusedRetriever([EmbeddedRetriever(), DenseRetriever(tiny_encoder)])
    product, _, variant = kind.partition(", ")
    lexical = partial(on_server(product), shards=3 if variant == "3 shards" else 1)
    if variant not in ("dense", "fused"):
        return lexical
    dense = partial(ElasticsearchDenseRetriever, tiny_encoder, index_prefix=lexical().index_prefix)
    return dense if variant == "dense" else lambda: FusedRetriever([lexical(), dense()])
