"""Dense retrieval on a real server, compared with the embedded dense retriever."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.retrieval.dense import transformer_encoder
from datamodules.retrieval.dense.ranking import OVERSAMPLE
from datamodules.retrieval.dense.retriever import DenseRetriever
from datamodules.retrieval.elasticsearch import dense_retriever as elasticsearch_dense
from datamodules.retrieval.elasticsearch import server_retriever
from datamodules.retrieval.elasticsearch.dense_retriever import ElasticsearchDenseRetriever
from datamodules.retrieval.folding import text_hashes
from tests.datamodules.checks import check_near, refused
from tests.datamodules.corpus import indexed, labelled_texts

FINGERPRINT = "0123456789abcdef-the-rest"
TEXTS, _ = labelled_texts(90)
TEXTS[4] = ""
TEXTS[11] = TEXTS[30] = TEXTS[57] = "the old heron of the deck"
QUERIES = [*labelled_texts(12, seed=1)[0], TEXTS[11], TEXTS[50], "", "words of no text"]


def built(prefix: str, encoder: str, texts: list[str] = TEXTS, **options: Any) -> ElasticsearchDenseRetriever:
    retriever = ElasticsearchDenseRetriever(encoder, device="cpu", index_prefix=prefix, **options)
    return indexed(retriever, texts, Path("unused"), FINGERPRINT)


def local(folder: Path, encoder: str, texts: list[str] = TEXTS, **options: Any) -> DenseRetriever:
    return indexed(DenseRetriever(encoder, device="cpu", **options), texts, folder / "local", FINGERPRINT)


@pytest.mark.server
@pytest.mark.parametrize("options", [{}, {"pooling": "cls", "max_length": 5}, {"shards": 3}])
@pytest.mark.parametrize("num_candidates", [None, 95])
def test_scores_and_ranking_are_those_of_the_dense_retriever(
    index_prefix: str, tmp_path: Path, tiny_encoder: str, options: Any, num_candidates: int | None
) -> None:
    # The approximate search is exact if all texts are candidates.
    retriever = built(index_prefix, tiny_encoder, num_candidates=num_candidates, **options)
    options = {name: value for name, value in options.items() if name != "shards"}
    reference = local(tmp_path, tiny_encoder, **options)
    rng = random.Random(0)
    exclude = [rng.sample(range(90), rng.choice([0, 3, 87])) for _ in QUERIES]
    for excluded in (None, exclude):
        for k in (1, 10, 90):
            hits = retriever.search(QUERIES, k, excluded)
            check_near(hits, reference.search(QUERIES, k, excluded))


class Drawn:
    """Vectors of 64 numbers, drawn for each text around one of three directions; 0 for a text without words."""

    has_query_side = False
    size = 64

    def __init__(self, *_: object) -> None: ...

    def __call__(self, texts: list[str], *_: object) -> NDArray[np.float32]:
        seeds = text_hashes(texts).tolist()
        vectors = np.stack([np.random.default_rng(seed).normal(size=64) for seed in seeds])
        vectors += np.array([np.random.default_rng(seed % 3).normal(size=64) for seed in seeds])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.where([[bool(text.strip())] for text in texts], vectors, 0).astype(np.float32)


@pytest.mark.server
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("num_candidates", [None, 95])
@pytest.mark.parametrize("quantization", ["int8", "bbq"])
def test_quantized_hits_have_exact_scores(
    elasticsearch_url: str,
    index_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quantization: Any,
    num_candidates: int | None,
    shards: int,
) -> None:
    monkeypatch.setattr(transformer_encoder, "PublishedEncoder", Drawn)
    options = {"num_candidates": num_candidates, "quantization": quantization, "shards": shards}
    monkeypatch.setitem(OVERSAMPLE, quantization, 90)
    retriever = built(index_prefix, str(tmp_path), **options)
    exclude = [[query, query + 20] for query in range(len(QUERIES))]
    reference = local(tmp_path, str(tmp_path))
    for excluded in (None, exclude):
        for k in (1, 10, 90):
            check_near(retriever.search(QUERIES, k, excluded), reference.search(QUERIES, k, excluded))
    kind = f"{quantization}_{'flat' if num_candidates is None else 'hnsw'}"
    name = f"{index_prefix}-{FINGERPRINT[:16]}"
    with Elasticsearch(elasticsearch_url) as client:
        field = client.indices.get_mapping(index=name)[name]["mappings"]["properties"]["vector"]
    assert field["index_options"]["type"] == kind
    # Too few candidates miss hits, and the scores of the others are exact still.
    monkeypatch.setitem(OVERSAMPLE, quantization, 1)
    hits, every = retriever.search(QUERIES, 5), reference.search(QUERIES, 90)
    assert quantization != "bbq" or (hits.rows != every.rows[:, :5]).any()
    for query, hit_rows in enumerate(hits.rows.tolist()):
        score_of = dict(zip(every.rows[query].tolist(), every.scores[query].tolist(), strict=True))
        assert [score_of[row] for row in hit_rows] == pytest.approx(hits.scores[query].tolist(), abs=1e-6)


@pytest.mark.server
@pytest.mark.parametrize("shards", [1, 3])
def test_duplicates_have_equal_scores_and_are_in_row_order(
    index_prefix: str, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr(elasticsearch_dense, "TEXTS", 16)  # rounding depends on the batch
    monkeypatch.setattr(server_retriever, "_BULK_ROWS", 7)
    texts = [TEXTS[number % 6] for number in range(300)]
    retriever = built(index_prefix, tiny_encoder, texts, shards=shards)
    hits = retriever.search([TEXTS[2], "heron"], 40, [[2, 14], []])
    assert hits.rows[0].tolist() == [8, *range(20, 6 * 39 + 20, 6)]
    for scores in hits.scores:
        assert len(set(scores.tolist())) == 1
    assert (np.diff(hits.rows[1]) == 6).all()


@pytest.mark.server
def test_no_indexed_text_is_encoded_again(index_prefix: str, tiny_encoder: str, encoded: list[str]) -> None:
    retriever = built(index_prefix, tiny_encoder)
    assert sorted(encoded) == sorted(set(TEXTS))
    encoded.clear()
    again = built(index_prefix, tiny_encoder)  # it is complete
    full = [text for text in TEXTS if text]
    hits = again.search(full, 1)
    assert encoded == []
    assert not again.vectors._encoder
    assert [TEXTS[row] for row in hits.rows[:, 0]] == full
    retriever.search(["a new text", *full, "a new text"], 1)
    assert encoded == ["a new text"]
    assert retriever.vectors._encoder
    retriever.close()
    assert not retriever.vectors._encoder


def lose_vectors(client: Elasticsearch, index: str, rows: list[int]) -> None:
    """Take the vectors off some documents, as Elasticsearch's bug 137173 does."""
    client.indices.refresh(index=index)
    for row in rows:
        source = client.get(index=index, id=str(row))["_source"]
        client.index(index=index, id=str(row), document={**source, "has_vector": True})
    client.indices.refresh(index=index)


@pytest.mark.server
@pytest.mark.parametrize(("shards", "quantization"), [(1, None), (3, None), (3, "int8")])
def test_lost_vectors_are_written_again(
    elasticsearch_url: str,
    index_prefix: str,
    tiny_encoder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shards: int,
    quantization: Any,
) -> None:
    client, load = Elasticsearch(elasticsearch_url), ElasticsearchDenseRetriever._load

    def lossy(self: ElasticsearchDenseRetriever, name: str, *rest: Any) -> None:
        load(self, name, *rest)
        lose_vectors(client, name, [0, 11, 57, 88])

    monkeypatch.setattr(ElasticsearchDenseRetriever, "_load", lossy)
    monkeypatch.setitem(OVERSAMPLE, "int8", 90)
    options = {"shards": shards, "quantization": quantization}
    retriever = built(index_prefix, tiny_encoder, **options)
    expected = local(tmp_path, tiny_encoder)
    check_near(retriever.search(QUERIES, 7), expected.search(QUERIES, 7))
    retriever.open(Path("unused"), FINGERPRINT)
    name = f"{index_prefix}-{FINGERPRINT[:16]}"
    lose_vectors(client, name, [5])
    with pytest.raises(InputError, match=r"has lost 1 vectors; delete it and run `zoo index` again"):
        retriever.open(Path("unused"), FINGERPRINT)


@pytest.mark.server
def test_the_index_of_an_approximate_search_is_a_graph(
    elasticsearch_url: str, index_prefix: str, tiny_encoder: str
) -> None:
    with Elasticsearch(elasticsearch_url) as client:
        for kind, candidates in (("flat", None), ("hnsw", 20)):
            prefix = f"{index_prefix}-{kind}"
            retriever = built(prefix, tiny_encoder, num_candidates=candidates)
            name = f"{prefix}-{FINGERPRINT[:16]}"
            fields = client.indices.get_mapping(index=name)[name]["mappings"]["properties"]
            assert fields["vector"]["index_options"]["type"] == kind
            (hit,) = client.search(index=name, query={"ids": {"values": ["7"]}})["hits"]["hits"]
            assert hit["_source"] == {"row": 7, "text": TEXTS[7], "id": "7", "label": None}
    with pytest.raises(InputError, match="k=21: must be 0 to 20"):
        retriever.search(["lion"], 21)


def test_the_exact_search_has_the_ranking_of_the_embedded_retriever(tiny_encoder: str) -> None:
    options: dict[str, Any] = {"pooling": "cls", "max_length": 20}
    exact = DenseRetriever(tiny_encoder, **options).describe_ranking()
    assert ElasticsearchDenseRetriever(tiny_encoder, **options).describe_ranking() == exact
    graph = ElasticsearchDenseRetriever(tiny_encoder, num_candidates=70, **options)
    assert graph.describe_ranking() == {**exact, "num_candidates": 70}


@pytest.mark.server
def test_mistakes_are_named(index_prefix: str, tiny_encoder: str) -> None:
    for options, pattern in (
        ({"num_candidates": 0}, "num_candidates=0: use 1 to 10000, or null"),
        ({"num_candidates": 10_001}, "num_candidates=10001"),
        ({"quantization": "int4"}, "quantization='int4': choose one of int8, bbq"),
    ):
        with refused(match=pattern):
            ElasticsearchDenseRetriever(tiny_encoder, **options)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"bbq: needs vectors of 64 numbers or more, and the encoder .* makes 16"
    ):
        built(index_prefix, tiny_encoder, quantization="bbq")
    retriever = built(index_prefix, tiny_encoder)
    with pytest.raises(InputError, match="k=10001: must be 0 to 10000"):
        retriever.search(["lion"], 10_001)
