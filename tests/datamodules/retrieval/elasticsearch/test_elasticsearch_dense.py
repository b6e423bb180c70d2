"""Dense retrieval on a real server, compared with the embedded dense retriever."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import make_retriever, open_memory
from datamodules.retrieval.base import Collection, Hits
from datamodules.retrieval.dense import transformer_encoder
from datamodules.retrieval.dense.ranking import LEAST_SCORE
from datamodules.retrieval.dense.retriever import DenseRetriever
from datamodules.retrieval.elasticsearch import dense_retriever as elasticsearch_dense
from datamodules.retrieval.elasticsearch import server_retriever
from datamodules.retrieval.elasticsearch.dense_retriever import ElasticsearchDenseRetriever
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from datamodules.retrieval.folding import text_hashes
from datamodules.retrieval.fused import FusedRetriever
from datamodules.retrieval.memories.folder_memory import FolderMemory
from tests.datamodules.corpus import labelled_texts, rows
from tests.elasticsearch.faults import Answer, proxy

FINGERPRINT = "0123456789abcdef-the-rest"
TEXTS, _ = labelled_texts(90)
TEXTS[4] = ""
TEXTS[11] = TEXTS[30] = TEXTS[57] = "the old heron of the deck"
QUERIES = [*labelled_texts(12, seed=1)[0], TEXTS[11], TEXTS[50], "", "words of no text"]


def built(
    url: str, prefix: str, encoder: str, texts: list[str] = TEXTS, **options: Any
) -> ElasticsearchDenseRetriever:
    retriever = ElasticsearchDenseRetriever(encoder, device="cpu", url=url, index_prefix=prefix, **options)
    retriever.index(Collection(texts, FINGERPRINT), Path("unused"))
    return retriever


def local(folder: Path, encoder: str, texts: list[str] = TEXTS, **options: Any) -> DenseRetriever:
    retriever = DenseRetriever(encoder, device="cpu", **options)
    retriever.index(Collection(texts, FINGERPRINT), folder / "local")
    return retriever


def same(hits: Hits, expected: Hits) -> None:
    """Check that hits are equal up to rounding, which may change the order of near scores."""
    np.testing.assert_allclose(hits.scores, expected.scores, atol=1e-6)
    np.testing.assert_array_equal(hits.rows == -1, expected.rows == -1)
    for query in range(len(hits.rows)):
        score_of = dict(zip(expected.rows[query].tolist(), expected.scores[query].tolist(), strict=True))
        worst = float(expected.scores[query].min())
        for row, score in zip(hits.rows[query].tolist(), hits.scores[query].tolist(), strict=True):
            assert score == pytest.approx(score_of.get(row, worst), abs=1e-6)


def count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    encoded: list[str] = []
    encode = transformer_encoder.TransformerEncoder.__call__

    def spy(
        self: transformer_encoder.TransformerEncoder, texts: list[str], *rest: Any
    ) -> NDArray[np.float32]:
        encoded.extend(texts)
        return encode(self, texts, *rest)

    monkeypatch.setattr(transformer_encoder.TransformerEncoder, "__call__", spy)
    return encoded


@pytest.mark.server
@pytest.mark.parametrize("options", [{}, {"pooling": "cls", "max_length": 5}, {"shards": 3}])
@pytest.mark.parametrize("num_candidates", [None, 95])
def test_scores_and_ranking_are_those_of_the_dense_retriever(
    elasticsearch_url: str,
    index_prefix: str,
    tmp_path: Path,
    tiny_encoder: str,
    options: Any,
    num_candidates: int | None,
) -> None:
    # The approximate search is exact if all texts are candidates.
    retriever = built(elasticsearch_url, index_prefix, tiny_encoder, num_candidates=num_candidates, **options)
    options = {name: value for name, value in options.items() if name != "shards"}
    reference = local(tmp_path, tiny_encoder, **options)
    rng = random.Random(0)
    exclude = [rng.sample(range(90), rng.choice([0, 3, 87])) for _ in QUERIES]
    for excluded in (None, exclude):
        for k in (1, 10, 90):
            hits = retriever.search(QUERIES, k, excluded)
            assert (hits.rows.dtype, hits.scores.dtype) == (np.int32, np.float32)
            same(hits, reference.search(QUERIES, k, excluded))
    assert retriever.search([], 5).rows.shape == (0, 5)
    assert retriever.search(QUERIES, 0).rows.shape == (len(QUERIES), 0)


class Drawn:
    """Vectors of 64 numbers, drawn for each text around one of three directions; 0 for a text without words."""

    query_encoder = None
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
    monkeypatch.setattr(transformer_encoder, "TransformerEncoder", Drawn)
    options: dict[str, Any] = {
        "num_candidates": num_candidates,
        "quantization": quantization,
        "shards": shards,
    }
    retriever = built(elasticsearch_url, index_prefix, str(tmp_path), oversample=90, **options)
    exclude = [[query, query + 20] for query in range(len(QUERIES))]
    reference = local(tmp_path, str(tmp_path))
    for excluded in (None, exclude):
        for k in (1, 10, 90):
            same(retriever.search(QUERIES, k, excluded), reference.search(QUERIES, k, excluded))
    kind = f"{quantization}_{'flat' if num_candidates is None else 'hnsw'}"
    name = f"{index_prefix}-{FINGERPRINT[:16]}"
    with Elasticsearch(elasticsearch_url) as client:
        field = client.indices.get_mapping(index=name)[name]["mappings"]["properties"]["vector"]
    assert field["index_options"]["type"] == kind
    # Too few candidates miss hits, and the scores of the others are exact still.
    coarse = ElasticsearchDenseRetriever(
        str(tmp_path), url=elasticsearch_url, index_prefix=index_prefix, oversample=1, **options
    )
    coarse.open(Path(), FINGERPRINT)
    hits, every = coarse.search(QUERIES, 5), reference.search(QUERIES, 90)
    assert quantization != "bbq" or (hits.rows != every.rows[:, :5]).any()
    for query, hit_rows in enumerate(hits.rows.tolist()):
        score_of = dict(zip(every.rows[query].tolist(), every.scores[query].tolist(), strict=True))
        assert [score_of[row] for row in hit_rows] == pytest.approx(hits.scores[query].tolist(), abs=1e-6)


@pytest.mark.server
@pytest.mark.parametrize("shards", [1, 3])
def test_duplicates_have_equal_scores_and_are_in_row_order(
    elasticsearch_url: str,
    index_prefix: str,
    tiny_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
    shards: int,
) -> None:
    monkeypatch.setattr(elasticsearch_dense, "_TEXTS", 16)  # rounding depends on the batch
    monkeypatch.setattr(server_retriever, "_BULK_ROWS", 7)
    texts = [TEXTS[number % 6] for number in range(300)]
    retriever = built(elasticsearch_url, index_prefix, tiny_encoder, texts, shards=shards)
    hits = retriever.search([TEXTS[2], "heron"], 40, [[2, 14], []])
    assert hits.rows[0].tolist() == [8, *range(20, 6 * 39 + 20, 6)]
    for scores in hits.scores:
        assert len(set(scores.tolist())) == 1
    assert (np.diff(hits.rows[1]) == 6).all()


@pytest.mark.server
def test_opposite_texts_have_the_least_score(
    elasticsearch_url: str, index_prefix: str, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Angles:
        """Reads a text as the angle of its vector in degrees."""

        size = 2

        def __init__(self, *_: object) -> None: ...

        def __call__(self, texts: list[str], *_: object) -> NDArray[np.float32]:
            angles = np.radians([float(text) for text in texts])
            return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    monkeypatch.setattr(transformer_encoder, "TransformerEncoder", Angles)
    retriever = built(elasticsearch_url, index_prefix, tiny_encoder, ["180", "90", "60", "0", "-60"])
    hits = retriever.search(["0", "90"], 5)
    assert hits.rows[0].tolist() == [3, 2, 4, 1, 0]
    np.testing.assert_allclose(hits.scores[0], [1, 0.75, 0.75, 0.5, LEAST_SCORE], atol=1e-7)
    assert hits.scores[0, 4] > 0


@pytest.mark.server
def test_texts_without_tokens_have_no_hits_and_are_no_hits(
    elasticsearch_url: str, index_prefix: str, tiny_encoder: str
) -> None:
    texts = ["", "lion", "  ", "the sail", "\ud800"]
    hits = built(elasticsearch_url, index_prefix, tiny_encoder, texts).search(["lion", "", "\n", "\udfff"], 5)
    assert [sorted(rows.tolist()) for rows in hits.rows] == [
        [-1, -1, 1, 3, 4],
        [-1] * 5,
        [-1] * 5,
        [-1, -1, 1, 3, 4],
    ]
    np.testing.assert_array_equal(hits.scores[hits.rows == -1], 0)
    nothing = built(elasticsearch_url, f"{index_prefix}-empty", tiny_encoder, ["", " "])
    assert nothing.search(["lion"], 2).rows.tolist() == [[-1, -1]]


@pytest.mark.server
def test_no_text_of_the_collection_is_encoded_again(
    elasticsearch_url: str, index_prefix: str, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elasticsearch_dense, "_HASHES", 20)
    encoded = count_encoded(monkeypatch)
    retriever = built(elasticsearch_url, index_prefix, tiny_encoder)
    assert sorted(encoded) == sorted(set(TEXTS))
    encoded.clear()
    again = built(elasticsearch_url, index_prefix, tiny_encoder)  # it is complete
    full = [text for text in TEXTS if text]
    hits = again.search(full, 1)
    assert encoded == []
    assert not again.vectors._encoder
    assert [TEXTS[row] for row in hits.rows[:, 0]] == full
    retriever.search(["a new text", full[0], "a new text"], 1)
    assert encoded == ["a new text"]
    assert retriever.vectors._encoder
    retriever.close()
    assert not retriever.vectors._encoder


@pytest.mark.server
def test_loading_resumes(
    elasticsearch_url: str,
    index_prefix: str,
    tmp_path: Path,
    tiny_encoder: str,
    no_pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_retriever, "_BULK_ROWS", 10)
    monkeypatch.setattr(elasticsearch_dense, "_TEXTS", 16)
    refused = Answer(400, b'{"error": {"type": "bad", "reason": "no"}}', {"X-Elastic-Product": "Elasticsearch",
                     "Content-Type": "application/json"})  # fmt: skip
    with proxy(elasticsearch_url) as between:
        between.target = "_bulk"
        between.faults.extend([lambda good: good] * 4 + [refused])
        with pytest.raises(InputError, match="400 bad: no"):
            built(between.url, index_prefix, tiny_encoder)
    halfway = ElasticsearchDenseRetriever(tiny_encoder, url=elasticsearch_url, index_prefix=index_prefix)
    with pytest.raises(InputError, match="half loaded"):
        halfway.open(Path(), FINGERPRINT)
    encoded = count_encoded(monkeypatch)
    retriever = built(elasticsearch_url, index_prefix, tiny_encoder)
    # 40 rows were loaded; the text without tokens is tokenised again.
    assert 0 < len(encoded) <= len(set(TEXTS)) - 35
    same(retriever.search(QUERIES, 20), local(tmp_path, tiny_encoder).search(QUERIES, 20))
    with Elasticsearch(elasticsearch_url) as client:
        name = f"{index_prefix}-{FINGERPRINT[:16]}"
        mapping = client.indices.get_mapping(index=name)[name]["mappings"]
        assert mapping["_meta"]["memory_zoo"]["complete"]
        client.delete(index=name, id="3", refresh=True)
    with pytest.raises(InputError, match="has 89 of its 90 documents"):
        halfway.open(Path(), FINGERPRINT)


def lose_vectors(client: Elasticsearch, index: str, rows: list[int]) -> None:
    """Take the vectors off some documents, as Elasticsearch's bug 137173 does; their bits stay."""
    client.indices.refresh(index=index)
    fields = ["hash", "bits"]
    for row in rows:
        query = {"ids": {"values": [str(row)]}}
        answer = client.search(index=index, query=query, docvalue_fields=fields, source=True)
        (hit,) = answer["hits"]["hits"]
        kept = {name: hit["fields"][name][0] for name in fields}
        client.index(index=index, id=str(row), document={**hit["_source"], **kept})
    client.indices.refresh(index=index)


@pytest.mark.server
@pytest.mark.parametrize(("shards", "quantization"), [(1, None), (3, None), (3, "int8")])
def test_lost_vectors_are_written_again_from_their_bits(
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
    options = {"shards": shards, "quantization": quantization, "oversample": 90 if quantization else None}
    retriever = built(elasticsearch_url, index_prefix, tiny_encoder, **options)
    expected = local(tmp_path, tiny_encoder)
    same(retriever.search(QUERIES, 7), expected.search(QUERIES, 7))
    retriever.open(Path("unused"), FINGERPRINT)
    name = f"{index_prefix}-{FINGERPRINT[:16]}"
    lose_vectors(client, name, [5])
    with pytest.raises(InputError, match=r"has lost 1 vectors; delete it and run `zoo index` again"):
        retriever.open(Path("unused"), FINGERPRINT)


@pytest.mark.server
@pytest.mark.parametrize("options", [{}, {"num_candidates": 50}, {"quantization": "int8", "oversample": 100}])
def test_a_memory_grows(
    elasticsearch_url: str,
    index_prefix: str,
    tmp_path: Path,
    tiny_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    server = {"index_prefix": index_prefix, "url": elasticsearch_url}
    retriever = ElasticsearchDenseRetriever(tiny_encoder, device="cpu", **options, **server)
    memory = FolderMemory.build(rows(60), retriever, tmp_path / "memory")
    queries = labelled_texts(12, seed=1)[0]
    before = memory.search(queries, 9)
    text, label = rows(60).texts[5], rows(60).label(5)
    new = Rows.from_lists(
        [text, text, *labelled_texts(20, seed=2)[0]],
        [str(label), "boats" if label != "boats" else "bread", *labelled_texts(20, seed=2)[1]],
    )
    encoded = count_encoded(monkeypatch)
    addition = memory.add(new)
    assert (addition.duplicates, addition.conflicting) == (1, 1)
    assert encoded == new.texts[2:]  # and not the duplicate
    neighbors = memory.search([text, *queries], 9)
    # The duplicate has the score of the old row and follows it.
    assert neighbors.memories.texts[int(neighbors.rows[0, 1])] == text
    assert neighbors.scores[0, 0] == neighbors.scores[0, 1]
    assert neighbors.memories.ids[int(neighbors.rows[0, 0])] == "r5"
    whole = DenseRetriever(tiny_encoder, device="cpu")
    whole.index(Collection(memory.rows.texts, "whole"), tmp_path / "whole")
    same(memory.retriever.search(queries, 9), whole.search(queries, 9))
    old = open_memory(str(tmp_path / "memory"), version=1).search(queries, 9)
    np.testing.assert_array_equal(old.scores, before.scores)
    assert old.memories.ids == before.memories.ids
    # Training texts retrieve neither themselves nor duplicates of themselves.
    kept = memory.search(memory.rows.texts[:], 3, exclude_duplicates=True)
    for own, numbers in zip(memory.rows.texts, kept.rows.tolist(), strict=True):
        assert own not in [kept.memories.texts[number] for number in numbers]


@pytest.mark.server
def test_fused_with_words(
    elasticsearch_url: str, index_prefix: str, tmp_path: Path, tiny_encoder: str
) -> None:
    server: dict[str, Any] = {"url": elasticsearch_url, "index_prefix": index_prefix}
    words = ElasticsearchRetriever(**server)
    meaning = ElasticsearchDenseRetriever(tiny_encoder, device="cpu", **server)
    fused = FusedRetriever([words, meaning], depth=200)
    FolderMemory.build(rows(60), fused, tmp_path / "memory")
    queries = labelled_texts(6, seed=1)[0]
    again = open_memory(str(tmp_path / "memory"))
    assert again.retriever.describe() == fused.describe()
    hits = again.retriever.search(queries, 5)
    for query in range(len(queries)):
        fused_score: dict[int, float] = {}
        for member in (words, meaning):
            for rank, row in enumerate(member.search(queries, 200).rows[query].tolist(), 1):
                if row >= 0:
                    fused_score[row] = fused_score.get(row, 0.0) + 1 / (60 + rank)
        best = sorted(fused_score.items(), key=lambda pair: (-np.float32(pair[1]), pair[0]))[:5]
        assert hits.rows[query].tolist() == [row for row, _ in best]


@pytest.mark.server
def test_the_index_of_an_approximate_search_is_a_graph(
    elasticsearch_url: str, index_prefix: str, tiny_encoder: str
) -> None:
    with Elasticsearch(elasticsearch_url) as client:
        for kind, candidates in (("flat", None), ("hnsw", 20)):
            prefix = f"{index_prefix}-{kind}"
            retriever = built(elasticsearch_url, prefix, tiny_encoder, num_candidates=candidates)
            name = f"{prefix}-{FINGERPRINT[:16]}"
            fields = client.indices.get_mapping(index=name)[name]["mappings"]["properties"]
            assert fields["vector"]["index_options"]["type"] == kind
            (hit,) = client.search(index=name, query={"ids": {"values": ["7"]}})["hits"]["hits"]
            assert hit["_source"] == {"row": 7, "text": TEXTS[7]}
    with pytest.raises(InputError, match="k=21: must be 0 to 20"):
        retriever.search(["lion"], 21)


def test_descriptions(tiny_encoder: str) -> None:
    retriever = ElasticsearchDenseRetriever(
        tiny_encoder, pooling="cls", max_length=20, device="cpu", num_candidates=70,
        url="http://search:9200", index_prefix="mine",
        shards=2, replicas=1, timeout=30.0, client_args={"api_key": "s3cret", "verify_certs": False},
    )  # fmt: skip
    described = retriever.describe()
    assert "s3cret" not in str(described) + str(pickle.dumps(retriever))
    assert pickle.loads(pickle.dumps(retriever)).server.client_args == {"verify_certs": False}
    assert described["init_args"]["num_candidates"] == 70
    assert not described["init_args"].keys() & {"url", "client_args"}
    again = make_retriever(described, None)
    assert isinstance(again, ElasticsearchDenseRetriever)
    assert again.describe() == described
    assert again.ranking.describe() == retriever.ranking.describe()
    # The exact search has the ranking of the embedded retriever.
    exact = ElasticsearchDenseRetriever(tiny_encoder).ranking.describe()
    assert exact == DenseRetriever(tiny_encoder).ranking.describe()
    assert retriever.ranking.describe() == {
        **DenseRetriever(tiny_encoder, pooling="cls", max_length=20).ranking.describe(),
        "num_candidates": 70,
    }


@pytest.mark.server
def test_mistakes_are_named(elasticsearch_url: str, index_prefix: str, tiny_encoder: str) -> None:
    for options, pattern in (
        ({"pooling": "sum"}, "pooling 'sum': use mean, cls, max, "),
        ({"batch_size": 0}, "batch_size=0"),
        ({"threads": 0}, "threads=0"),
        ({"num_candidates": 0}, "num_candidates=0: use 1 to 10000, or null"),
        ({"num_candidates": 10_001}, "num_candidates=10001"),
        ({"quantization": "int4"}, "quantization 'int4': use int8, bbq, or null"),
        ({"oversample": 3}, "oversample=3: without quantization all scores are exact"),
        ({"shards": 0}, "shards=0"),
        ({"url": "search"}, "url: give scheme"),
    ):
        with pytest.raises(InputError, match=pattern) as caught:
            ElasticsearchDenseRetriever(tiny_encoder, **options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    with pytest.raises(
        InputError, match=r"bbq: needs vectors of 64 numbers or more, and the encoder .* makes 16"
    ):
        built(elasticsearch_url, index_prefix, tiny_encoder, quantization="bbq")
    retriever = built(elasticsearch_url, index_prefix, tiny_encoder)
    with pytest.raises(InputError, match="k=-1"):
        retriever.search(["lion"], -1)
    with pytest.raises(InputError, match="k=10001: must be 0 to 10000"):
        retriever.search(["lion"], 10_001)
    with pytest.raises(InputError, match="2 lists for 1 texts"):
        retriever.search(["lion"], 1, [[], []])
    with pytest.raises(InputError, match="another collection"):
        retriever.index(Collection(TEXTS, FINGERPRINT[:16] + "-another"), Path())
