"""Retrievers of every kind, a small transformer with random weights, and retries without pauses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datamodules.retrieval import (
    DenseRetriever,
    ElasticsearchDenseRetriever,
    ElasticsearchRetriever,
    EmbeddedRetriever,
    FusedRetriever,
    Retriever,
)
from datamodules.retrieval.elasticsearch import connection as server_connection
from tests.datamodules.corpus import WORDS

MakeRetriever = Callable[[], Retriever]
BACK_ENDS = ["BM25", "LMDirichlet", "dense", "fused"]
SERVERS = ["Elasticsearch", "Elasticsearch, 3 shards", "Elasticsearch, dense", "Elasticsearch, fused"]


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a BERT of two layers that reads 32 tokens, with random weights."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    folder = tmp_path_factory.mktemp("models") / "tiny-encoder"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,  # large enough that the vectors of texts differ
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a retriever would have waited before each retry."""
    pauses: list[float] = []
    monkeypatch.setattr(server_connection.time, "sleep", pauses.append)
    return pauses


@pytest.fixture(params=[*BACK_ENDS, *(pytest.param(name, marks=pytest.mark.server) for name in SERVERS)])
def make(request: pytest.FixtureRequest) -> MakeRetriever:
    """Makes a retriever of one kind, always the same memory."""
    kind = str(request.param)
    if kind in ("BM25", "LMDirichlet"):
        return lambda: EmbeddedRetriever(similarity=kind)  # type: ignore[arg-type]
    tiny_encoder: str = request.getfixturevalue("tiny_encoder")
    if kind == "dense":
        return lambda: DenseRetriever(tiny_encoder)
    if kind == "fused":
        return lambda: FusedRetriever([EmbeddedRetriever(), DenseRetriever(tiny_encoder)])
    server = {
        "url": request.getfixturevalue("elasticsearch_url"),
        "index_prefix": request.getfixturevalue("index_prefix"),
    }
    if kind == "Elasticsearch, dense":
        return lambda: ElasticsearchDenseRetriever(tiny_encoder, **server)
    if kind == "Elasticsearch, fused":
        return lambda: FusedRetriever(
            [ElasticsearchRetriever(**server), ElasticsearchDenseRetriever(tiny_encoder, **server)]
        )
    shards = 3 if "shards" in kind else 1
    return lambda: ElasticsearchRetriever(**server, shards=shards)
