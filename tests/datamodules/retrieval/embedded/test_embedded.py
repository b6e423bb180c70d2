"""The embedded index compared with plain formulas, and its files on a disk."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.retrieval.base import ExcludedRows, Ranking
from datamodules.retrieval.embedded import inverted_index
from datamodules.retrieval.embedded import retriever as embedded
from datamodules.retrieval.embedded.lucene import LENGTHS, length_bytes
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from tests.datamodules.corpus import indexed


def lossy_length(length: int) -> int:
    """Round a length as Lucene does: 4 significant bits of the part above 24."""
    if length < 24:
        return length
    above, shift = length - 24, 0
    while above >= 16:
        above, shift = above // 2, shift + 1
    return 24 + (above << shift)


def brute_force(ranking: Ranking, texts: Sequence[str], query: str) -> dict[int, float]:
    """Score every matching row in float64, from the definitions; texts are simple lower-case words."""
    documents = [Counter(text.split()) for text in texts]
    lengths = [document.total() for document in documents]
    n, tokens = sum(length > 0 for length in lengths), sum(lengths)
    scores: dict[int, float] = {}
    for term, repeated in Counter(query.split()).items():
        df = sum(term in document for document in documents)
        cf = sum(document[term] for document in documents)
        for row, document in enumerate(documents):
            if tf := document[term]:
                length = lossy_length(lengths[row])
                if ranking.similarity == "BM25":
                    k1, b = ranking.k1, ranking.b
                    idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
                    share = (k1 + 1) * idf * tf / (tf + k1 * (1 - b + b * length / (tokens / n)))
                else:
                    mu, p = ranking.mu, (cf + 1) / (tokens + 1)
                    share = max(0.0, math.log(1 + tf / (mu * p)) + math.log(mu / (mu + length)))
                scores[row] = scores.get(row, 0.0) + repeated * share
    return scores


def random_texts(seed: int, n: int, words: int, longest: int) -> list[str]:
    """Draw Zipf-distributed words; some texts are empty, some equal."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(words)]
    texts = [
        " ".join(rng.choices([f"w{word}" for word in range(words)], weights, k=rng.randint(0, longest)))
        for _ in range(n)
    ]
    return texts + rng.sample(texts, n // 10)


def check(
    retriever: EmbeddedRetriever,
    texts: Sequence[str],
    queries: Sequence[str],
    k: int,
    exclude: ExcludedRows | None = None,
) -> None:
    """Compare every score, check that no better row is missing and that equal scores are in row order."""
    hits = retriever.search(queries, k, exclude)
    assert hits.rows.shape == hits.scores.shape == (len(queries), k)
    assert hits.rows.dtype == np.int32
    assert hits.scores.dtype == np.float32
    for i, query in enumerate(queries):
        right = brute_force(retriever.ranking, texts, query)
        for row in exclude[i] if exclude is not None else ():
            right.pop(row, None)
        size = min(k, len(right))
        rows, scores = hits.rows[i].tolist(), hits.scores[i].tolist()
        assert -1 not in rows[:size]
        assert rows[size:] == [-1] * (k - size)
        assert scores[size:] == [0] * (k - size)
        assert len(set(rows[:size])) == size
        assert scores[:size] == pytest.approx([right[row] for row in rows[:size]], rel=2e-6, abs=1e-6)
        best = sorted(right.values(), reverse=True)[:size]
        assert scores[:size] == pytest.approx(best, rel=2e-6, abs=1e-6)
        order = [(-score, row) for score, row in zip(scores[:size], rows[:size], strict=True)]
        assert order == sorted(order)


@pytest.fixture(params=["BM25", "LMDirichlet"])
def similarity(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(texts: Sequence[str], folder: Path, similarity: str = "BM25", **options: Any) -> EmbeddedRetriever:
    return indexed(EmbeddedRetriever(similarity=similarity, **options), texts, folder, "f")


def test_length_bytes() -> None:
    lengths = np.array([*range(3000), 10**6, 2**31 - 1])
    decoded = LENGTHS[length_bytes(lengths)]
    assert decoded.tolist() == [lossy_length(int(length)) for length in lengths]
    assert (decoded <= lengths).all()


@pytest.mark.parametrize(
    ("seed", "n", "words", "longest"), [(0, 60, 12, 8), (1, 400, 300, 60), (2, 150, 40, 200)]
)
def test_brute_force(similarity: str, seed: int, n: int, words: int, longest: int, tmp_path: Path) -> None:
    texts = random_texts(seed, n, words, longest)
    queries = [*random_texts(seed + 50, 25, words + 20, 12), *texts[:10]]
    rng = random.Random(seed)
    retriever = build(texts, tmp_path / "i", similarity)
    for k in (1, 5, len(texts) + 7):
        check(retriever, texts, queries, k)
        exclude = [rng.sample(range(len(texts)), rng.randint(0, 20)) for _ in queries]
        check(retriever, texts, queries, k, exclude)


@pytest.mark.parametrize("options", [{"k1": 0.0}, {"k1": 2.0, "b": 0.0}, {"b": 1.0}, {"mu": 10.0}])
def test_parameters(options: dict[str, float], tmp_path: Path) -> None:
    texts = random_texts(5, 200, 50, 30)
    similarity = "LMDirichlet" if "mu" in options else "BM25"
    check(build(texts, tmp_path / "i", similarity, **options), texts, texts[:20], 10)


def test_pruning_changes_nothing(similarity: str, tmp_path: Path) -> None:
    """With several windows, bitmaps and skipped terms, the hits of a small k are the first of a large k."""
    texts = random_texts(9, 9_000, 2000, 30)
    queries = [*random_texts(10, 30, 2000, 40), *texts[:20]]
    retriever = build(texts, tmp_path / "i", similarity)
    few, many = retriever.search(queries, 10), retriever.search(queries, len(texts))
    assert (many.rows[:, :10] == few.rows).all()
    assert (many.scores[:, :10] == few.scores).all()
    check(retriever, texts, queries[::25], 10)


def test_building_in_blocks(similarity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_texts(3, 500, 80, 30)
    whole = build(texts, tmp_path / "whole", similarity).search(texts, 7)
    monkeypatch.setattr(inverted_index, "_TEXTS", 33)
    monkeypatch.setattr(inverted_index, "_POSTINGS", 200)
    monkeypatch.setattr(embedded, "_QUERIES", 33)
    parts = build(texts, tmp_path / "parts", similarity).search(texts, 7)
    assert (whole.rows == parts.rows).all()
    assert (whole.scores == parts.scores).all()


def test_score_zero_is_a_hit(tmp_path: Path) -> None:
    # "a" is so common that it adds nothing to a long text.
    texts = ["b", "a " * 5 + "b b b", "a a", "a " + "b " * 39, "c"]
    retriever = build(texts, tmp_path / "i", "LMDirichlet", mu=1.0)
    hits = retriever.search(["a"], 5)
    assert hits.rows[0].tolist()[2:] == [3, -1, -1]
    assert hits.scores[0, 2] == 0
    check(retriever, texts, ["a", "a b"], 5, [[2], [0]])
    assert build(texts, tmp_path / "k1", k1=1e9).search(["a"], 3, [[2]]).rows.tolist() == [[1, 3, -1]]


def test_empty_things(similarity: str, tmp_path: Path) -> None:
    retriever = build([], tmp_path / "none", similarity)
    assert retriever.search(["x", ""], 3).rows.tolist() == [[-1] * 3] * 2
    retriever = build(["", " ", "?!"], tmp_path / "wordless", similarity)
    assert retriever.search(["x", ""], 3).rows.tolist() == [[-1] * 3] * 2
    retriever = build(["", "x", "\x00\ud800"], tmp_path / "some", similarity)
    assert retriever.search(["", "unknown", "x\x00\ud800"], 2).rows.tolist() == [[-1, -1], [-1, -1], [1, -1]]
    assert retriever.search([], 2).rows.shape == (0, 2)
    assert retriever.search(["x"], 0).rows.shape == (1, 0)


def test_queries_are_cut(tmp_path: Path) -> None:
    texts = [f"w{word}" for word in range(600)]
    retriever = build(texts, tmp_path / "i")
    query = " ".join(["unknown", *texts, "w3"])
    with pytest.warns(UserWarning, match="first 512 are used"):
        hits = retriever.search([query], 600)
    assert hits.rows[0, 0] == 3  # repeated after the cut, it counts twice
    assert sorted(hits.rows[0].tolist())[-511:] == list(range(511))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough
        retriever.search([query], 5)
