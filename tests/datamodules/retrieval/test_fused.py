"""Fused lists compared with sums in plain Python, their indexes on disk, and the command line."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import DenseRetriever, ElasticsearchRetriever, EmbeddedRetriever, FolderMemory
from datamodules.retrieval.base import ExcludedRows, Hits, Retriever
from datamodules.retrieval.fused import FusedRetriever, Method
from datamodules.retrieval.memories.index_memory import open_memory
from tests.datamodules.checks import grown_from, refused
from tests.datamodules.corpus import indexed, labelled_texts, rows

TEXTS, LABELS = labelled_texts(90)
QUERIES = [*labelled_texts(12, seed=1)[0], "", "words of no text"]


class Fixed(EmbeddedRetriever):
    """Returns the same hits for every query."""

    def __init__(self, rows: Sequence[int], scores: Sequence[float]) -> None:
        super().__init__()
        self.hits = list(zip(rows, scores, strict=True))

    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        hits = Hits.none(len(texts), k)
        for rank, (row, score) in enumerate(self.hits[:k]):
            hits.rows[:, rank], hits.scores[:, rank] = row, score
        return hits


def by_hand(fused: FusedRetriever, k: int, exclude: ExcludedRows | None) -> list[list[tuple[int, float]]]:
    """(row, score) best first for each of QUERIES, from the members' lists and the definitions."""
    depth = max(fused.depth, k)
    totals: list[dict[int, float]] = [{} for _ in QUERIES]
    for member, weight in zip(fused.retrievers, fused.weights, strict=True):
        # All queries together: an encoder's last digits depend on the batch.
        for total, rows_, scores in zip(totals, *member.search(QUERIES, depth, exclude), strict=True):
            hits = [(int(row), float(score)) for row, score in zip(rows_, scores, strict=True) if row >= 0]
            for rank, (row, score) in enumerate(hits, 1):
                if fused.method == "reciprocal_rank":
                    share = 1 / (60 + rank)
                else:
                    low, high = hits[-1][1], hits[0][1]
                    scaled = (score - low) / (high - low) if high > low else 1.0
                    share = scaled + (1 - scaled) / depth
                total[row] = total.get(row, 0.0) + weight * share
    return [sorted(total.items(), key=lambda hit: (-np.float32(hit[1]), hit[0]))[:k] for total in totals]


def test_the_scores_of_small_lists() -> None:
    def check(expected: list[tuple[int, float]], **options: Any) -> None:
        members: list[Retriever] = [Fixed([7, 3, 5], [9.0, 5.0, 1.0]), Fixed([3, 8], [0.9, 0.9])]
        hits = FusedRetriever(members, **options).search(["any"], 5)
        assert hits.rows[0].tolist() == [row for row, _ in expected] + [-1]
        np.testing.assert_allclose(hits.scores[0], [score for _, score in expected] + [0], rtol=1e-6)

    check([(3, 1 / 62 + 1 / 61), (7, 1 / 61), (8, 1 / 62), (5, 1 / 63)])
    # The shares of the first list are 1, 1/2 + 1/2/10 and 1/10; in the second all scores are equal.
    check([(3, 1.55), (7, 1.0), (8, 1.0), (5, 0.1)], method="score", depth=10)
    check([(7, 2.0), (3, 1.6), (8, 0.5), (5, 0.2)], method="score", depth=10, weights=[2, 0.5])


@pytest.mark.parametrize("method", ["reciprocal_rank", "score"])
@pytest.mark.parametrize(("weights", "depth"), [(None, 100), ([0.3, 2.0, 1.0], 7)])
def test_the_fused_list_is_that_of_the_sums(
    tmp_path: Path, tiny_encoder: str, method: Method, weights: list[float] | None, depth: int
) -> None:
    members: list[Retriever] = [EmbeddedRetriever(), EmbeddedRetriever(similarity="LMDirichlet", mu=20)]
    members += [DenseRetriever(tiny_encoder, device="cpu")]
    fused = indexed(FusedRetriever(members, method, weights, depth), TEXTS, tmp_path / "index")
    rng = random.Random(0)
    exclude = [rng.sample(range(90), rng.choice([0, 5, 80])) for _ in QUERIES]
    for excluded in (None, exclude):
        for k in (1, 10, 90):
            hits = fused.search(QUERIES, k, excluded)
            for number, expected in enumerate(by_hand(fused, k, excluded)):
                missing = k - len(expected)
                assert hits.rows[number].tolist() == [row for row, _ in expected] + [-1] * missing
                scores = [score for _, score in expected] + [0.0] * missing
                np.testing.assert_allclose(hits.scores[number], scores, rtol=1e-6)
                assert (hits.scores[number, : len(expected)] > 0).all()
                assert not excluded or not {row for row, _ in expected} & set(excluded[number])
    # Fewer hits of the same depth are the beginning of more.
    np.testing.assert_array_equal(fused.search(QUERIES, 3).rows, fused.search(QUERIES, 7).rows[:, :3])


def test_equal_scores_stand_in_row_order_whatever_the_order_of_the_members() -> None:
    lists = [Fixed([4, 9, 1], [3, 2, 1]), Fixed([9, 1, 4], [3, 2, 1]), Fixed([1, 4, 9], [3, 2, 1])]
    for members in (lists, lists[::-1], [lists[1], lists[0], lists[2]]):
        hits = FusedRetriever(list(members)).search(["any"], 3)
        assert hits.rows.tolist() == [[1, 4, 9]]
        assert len(set(hits.scores[0].tolist())) == 1


def nested(encoder: str, **options: Any) -> FusedRetriever:
    inner = FusedRetriever(
        [EmbeddedRetriever(similarity="LMDirichlet", mu=9), DenseRetriever(encoder, device="cpu")], "score"
    )
    return FusedRetriever([EmbeddedRetriever(k1=0.9), inner], **options)


def test_a_memory_stores_its_members(tmp_path: Path, tiny_encoder: str) -> None:
    retriever = nested(tiny_encoder, weights=[1, 2], depth=30)
    FolderMemory.build(rows(60), retriever, tmp_path / "memory")
    again = open_memory(str(tmp_path / "memory"))
    assert again.retriever.describe() == retriever.describe()
    for other in (
        nested(tiny_encoder, weights=[1, 3], depth=30),
        nested(tiny_encoder, weights=[1, 2], depth=31),
        nested(tiny_encoder, weights=[1, 2], depth=30, method="score"),
    ):
        with pytest.raises(InputError, match="the memory was built for"):
            open_memory(str(tmp_path / "memory"), other)
    again.retriever.close()
    with pytest.raises(InputError, match=r"index\(\) or open\(\) first"):
        again.retriever.search(QUERIES, 1)


def test_interrupted_work_keeps_the_complete_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_encoder: str
) -> None:
    fused, whole = nested(tiny_encoder), nested(tiny_encoder)
    old, grown = (Rows.from_lists(TEXTS[:60]), "f"), (Rows.from_lists(TEXTS), "grown")
    known, stop = grown_from(60, len(TEXTS)), Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        patch.setattr(DenseRetriever, "index", stop)
        with pytest.raises(KeyboardInterrupt):
            fused.index(*old, tmp_path / "index")
    with pytest.raises(InputError, match="does not exist"):
        nested(tiny_encoder).open(tmp_path / "index", "f")
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedRetriever, "index", stop)
        fused.index(*old, tmp_path / "index")
    with pytest.raises(InputError, match="other texts or settings"):
        nested(tiny_encoder).open(tmp_path / "index", "another")
    whole.index(*old, tmp_path / "whole")
    before = fused.search(QUERIES, 9)
    np.testing.assert_array_equal(before.scores, whole.search(QUERIES, 9).scores)
    with monkeypatch.context() as patch:
        patch.setattr(DenseRetriever, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            fused.update(*grown, known, tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedRetriever, "update", stop)
        fused.update(*grown, known, tmp_path / "new")
    np.testing.assert_array_equal(fused.search(QUERIES, 9).rows, before.rows)
    fused.open(tmp_path / "new", "grown")
    assert (fused.search(QUERIES, 20).rows >= 60).any()


def test_mistakes_are_named() -> None:
    def fails(pattern: str, members: int = 2, **options: Any) -> None:
        with refused(match=pattern):
            FusedRetriever([EmbeddedRetriever() for _ in range(members)], **options)

    fails("1 given; name two or more", members=1)
    fails("method='sum': choose one of reciprocal_rank, score", method="sum")
    fails("3 for 2 retrievers", weights=[1, 2, 3])
    fails("each must be above 0", weights=[1, 0])
    fails("each must be above 0", weights=[1, math.inf])
    fails("depth=0", depth=0)
    with pytest.raises(InputError, match="the index 'articles' has no row numbers"):
        FusedRetriever([EmbeddedRetriever(), ElasticsearchRetriever(index="articles")])


@pytest.mark.server
def test_members_on_a_server_rank_alike(tmp_path: Path, elasticsearch_url: str, index_prefix: str) -> None:
    embedded = FusedRetriever([EmbeddedRetriever(), EmbeddedRetriever(similarity="LMDirichlet", mu=20)])
    mixed = FusedRetriever(
        [
            ElasticsearchRetriever(index_prefix=index_prefix),
            EmbeddedRetriever(similarity="LMDirichlet", mu=20),
        ]
    )
    here = FolderMemory.build(rows(90), embedded, tmp_path / "here")
    there = FolderMemory.build(rows(90), mixed, tmp_path / "there")
    for exclude_duplicates in (False, True):
        neighbors, expected = (
            memory.search(rows(90).texts, 8, exclude_duplicates) for memory in (there, here)
        )
        assert neighbors.memories.ids == expected.memories.ids
        np.testing.assert_array_equal(neighbors.rows, expected.rows)
        np.testing.assert_array_equal(neighbors.scores, expected.scores)
    # An index that is missing on the server is built again.
    with Elasticsearch(elasticsearch_url) as client:
        for name in client.indices.get(index=f"{index_prefix}*"):
            client.indices.delete(index=name)
    again = FolderMemory.build(rows(90), mixed, tmp_path / "there")
    np.testing.assert_array_equal(again.search(QUERIES, 5).rows, here.search(QUERIES, 5).rows)


def test_an_encoder_next_to_words_is_one_option(tiny_encoder: str) -> None:
    short = FusedRetriever(encoder=tiny_encoder, method="score")
    whole = FusedRetriever([EmbeddedRetriever(), DenseRetriever(tiny_encoder)], "score")
    assert short.describe() == whole.describe()
    english = EmbeddedRetriever(analyzer="english")
    assert FusedRetriever([english], encoder=tiny_encoder).retrievers[0] is english
    with pytest.raises(InputError, match="retrievers: 0 given"):
        FusedRetriever()
