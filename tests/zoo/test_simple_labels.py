"""Labels without training, against plain versions of the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from zoo.simple_labels import bm25_vote, majority, tfidf_svm

from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.zoo.conftest import sentences


def test_majority() -> None:
    train = Rows.from_lists(["a", "b", "c"], ["x", "y", "y"])
    assert majority(train, Rows.from_lists(["a", "d"])) == ["y", "y"]


def test_the_vote_weighs_neighbours_by_their_scores() -> None:
    # "x" has the one near neighbour, "y" several far ones, which share a frequent word.
    texts = ["rare signal here", *(f"here filler{i} words{i} more{i}" for i in range(3)), "other"]
    train = Rows.from_lists(texts, ["x", "y", "y", "y", "z"])
    queries = Rows.from_lists(["rare signal here", "here", "unheard"])
    assert bm25_vote(train, queries) == ["x", "y", "y"]  # the last one finds nothing: the majority
    # Without weights the many would win.
    assert bm25_vote(train, queries, power=0)[0] == "y"


def test_the_vote_equals_a_plain_one(tmp_path: Path) -> None:

    train, queries = (
        Rows.from_lists(*zip(*sentences(n, seed), strict=True)) for n, seed in ((80, 5), (20, 6))
    )
    memory = FolderMemory.build(train, EmbeddedRetriever(), tmp_path / "plain")
    found = memory.search(queries.texts[:], 20)
    expected = []
    for rows, scores in zip(found.rows, found.scores, strict=True):
        votes: Counter[str] = Counter()
        for row, score in zip(rows, scores, strict=True):
            if row >= 0:
                votes[str(found.memories.label(int(row)))] += (float(score) / float(scores[0])) ** 3
        expected.append(votes.most_common(1)[0][0])
    assert bm25_vote(train, queries) == expected


def test_the_svm_learns_pairs_of_words() -> None:
    # Only the order of the words tells the classes apart.
    pairs = [("not good but bad", "n"), ("good not but bad", "p")] * 5
    train = Rows.from_lists(*zip(*pairs, strict=True))
    assert tfidf_svm(train, Rows.from_lists(["not good", "good not"])) == ["n", "p"]
