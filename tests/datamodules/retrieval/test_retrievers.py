"""Rules that every built-in retriever follows."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from datamodules.core.errors import InputError
from datamodules.retrieval import Retriever, make_retriever
from tests.datamodules.checks import refused
from tests.datamodules.corpus import indexed, labelled_texts
from tests.datamodules.retrieval.conftest import MakeRetriever

FINGERPRINT = "0123456789abcdef-the-rest"
TEXTS, _ = labelled_texts(40)
TEXTS[4] = ""
DUPLICATES = [11, 20, 31]
for row in DUPLICATES:
    TEXTS[row] = "the old heron of the deck"
QUERIES = [TEXTS[11], *labelled_texts(12, seed=1)[0], TEXTS[25], "", " \n"]


def built(make: MakeRetriever, folder: Path) -> Retriever:
    return indexed(make(), TEXTS, folder / "index", FINGERPRINT)


def test_hits_are_in_the_order_of_scores_and_rows(tmp_path: Path, make: MakeRetriever) -> None:
    retriever = built(make, tmp_path)
    for k in (0, 1, 7, 45):
        hits = retriever.search(QUERIES, k)
        assert hits.rows.shape == hits.scores.shape == (len(QUERIES), k)
        assert (hits.rows.dtype, hits.scores.dtype) == (np.int32, np.float32)
        assert (hits.scores[hits.rows == -1] == 0).all()
        assert (hits.rows[-2:] == -1).all(), "a query without words has no hits"
        assert not (hits.rows == 4).any(), "a text without words is no hit"
        for rows, scores in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True):
            order = [(-score, row) for score, row in zip(scores, rows, strict=True) if row >= 0]
            assert order == sorted(order)
            assert len({row for _, row in order}) == len(order)
    assert hits.rows[0, :3].tolist() == DUPLICATES
    excluded = retriever.search(QUERIES, 45, [[20, 3], *([] for _ in QUERIES[1:])])
    np.testing.assert_array_equal(excluded.rows[1:], hits.rows[1:])
    assert not {3, 20} & set(excluded.rows[0].tolist())
    if not retriever.retrievers:  # fused scores depend on ranks
        assert len(set(hits.scores[0, :3].tolist())) == 1
        kept = [row for row in hits.rows[0].tolist() if row not in (3, 20, -1)]
        assert excluded.rows[0, : len(kept)].tolist() == kept
    assert retriever.search([], 5).rows.shape == (0, 5)


def test_mistakes_are_named(tmp_path: Path, make: MakeRetriever) -> None:
    retriever = built(make, tmp_path)
    with pytest.raises(InputError, match="k=-1"):
        retriever.search(["lion"], -1)
    with pytest.raises(InputError, match="2 lists for 1 texts"):
        retriever.search(["lion"], 1, [[], []])
    for fingerprint in (FINGERPRINT[:16] + "-another", "fedcba9876543210"):
        with refused(match=r"other texts|another collection|no index|does not exist"):
            make().open(tmp_path / "index", fingerprint)


def test_a_description_and_a_pickle_give_the_same_retriever(tmp_path: Path, make: MakeRetriever) -> None:
    retriever = built(make, tmp_path)
    expected = retriever.search(QUERIES, 5)
    described = make_retriever(json.loads(json.dumps(retriever.describe())))
    assert described.describe() == retriever.describe()
    assert described.describe_ranking() == retriever.describe_ranking()
    described.open(tmp_path / "index", FINGERPRINT)
    pickled = pickle.dumps(retriever)
    assert len(pickled) < 5000
    for other in (described, pickle.loads(pickled)):
        hits = other.search(QUERIES, 5)
        np.testing.assert_array_equal(hits.rows, expected.rows)
        np.testing.assert_array_equal(hits.scores, expected.scores)
        other.close()
    described.open(tmp_path / "index", FINGERPRINT)
    np.testing.assert_array_equal(described.search(QUERIES, 5).rows, expected.rows)
