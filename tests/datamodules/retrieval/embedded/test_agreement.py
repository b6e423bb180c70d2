"""The embedded retriever and a real server return the same rows with the same scores."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.retrieval.base import Collection, Hits
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from tests.benchmarks.agreement import compare, corpora

WORDS = """
    the running runs ran dogs' dog's Don’t U.S.A. 3.14 1,000 e-mail naïve Straße ΣΟΦΟΣ ΟΔΟΣ co_op x86
    généralisation connections relational 我们 想订机票 こんにちは カタカナ 한국어 ไทย 🙂 👩‍👩‍👧 1️⃣ 🇩🇪 #tag @me
    \ud800 a\x00b ﬁne ＡＢＣ ｶﾞｷﾞ עברית כ"ץ العربية can't ''' ... http://example.org/a?b=c
""".split()  # noqa: SIM905


def strange_texts(count: int) -> list[str]:
    random_ = random.Random(3)
    joints = [" ", "  ", "", ", ", "\t", "\u3000", "\u00a0", "'", ".", "-"]
    weights = [20, 2, 1, 3, 1, 1, 1, 1, 1, 1]
    texts = []
    for _ in range(count):
        words = random_.choices(WORDS, k=random_.choice([0, 1, 3, 8, 20, 60, 300]))
        texts.append("".join(word + random_.choices(joints, weights)[0] for word in words))
    return texts


@pytest.mark.server
@pytest.mark.parametrize("analyzer", ["standard", "english", "cjk"])
@pytest.mark.parametrize("similarity", ["BM25", "LMDirichlet"])
def test_strange_texts(
    similarity: Any, analyzer: Any, elasticsearch_url: str, index_prefix: str, tmp_path: Path
) -> None:
    texts = strange_texts(800)
    options = {"similarity": similarity, "analyzer": analyzer, "k1": 0.9, "b": 0.4, "mu": 50.0}
    embedded = EmbeddedRetriever(**options)
    embedded.index(Collection(texts, "f" * 16), tmp_path / "index", progress=False)
    server = ElasticsearchRetriever(url=elasticsearch_url, index_prefix=index_prefix, **options)
    server.index(Collection(texts, "f" * 16), Path(), progress=False)
    # Queries of the same kind, some of them not in the collection.
    queries = [*texts[:200], *strange_texts(1000)[800:]]
    exclude = [[query] if query < 200 else [] for query in range(len(queries))]
    hits = embedded.search(queries, 10, exclude)
    share, difference = compare(hits, server.search(queries, 10, exclude))
    assert share == 1.0
    assert difference < 1e-5
    assert (hits.rows >= 0).mean() > 0.5


def test_compare_detects_a_disagreement() -> None:
    def hits(rows: list[int], scores: list[float]) -> Hits:
        return Hits(np.array([rows], np.int32), np.array([scores], np.float32))

    exact = hits([4, 2, 9], [3.0, 2.0, 1.0])
    assert compare(exact, exact) == (1.0, 0.0)
    assert compare(exact, hits([4, 2, 7], [3.0, 2.0, 1.0]))[0] == 1.0, "a tie at the end"
    assert compare(exact, hits([4, 5, 9], [3.0, 2.0, 1.0]))[0] == 0.0
    assert compare(exact, hits([4, 2, -1], [3.0, 2.0, 0.0]))[0] == 0.0
    share, difference = compare(exact, hits([4, 2, 9], [3.0, 2.1, 1.0]))
    assert share == 0.0
    assert difference == pytest.approx(0.1 / 2.1, rel=1e-5)


@pytest.mark.server
@pytest.mark.skipif("ZOO_DATA_DIR" not in os.environ, reason="ZOO_DATA_DIR names no folder of data sets")
@pytest.mark.parametrize("similarity", ["BM25", "LMDirichlet"])
def test_real_texts(similarity: Any, elasticsearch_url: str, index_prefix: str, tmp_path: Path) -> None:
    *_, (_, texts, queries) = corpora(Path(os.environ["ZOO_DATA_DIR"]), 1000)
    embedded = EmbeddedRetriever(similarity, "english")
    embedded.index(Collection(texts, "f" * 16), tmp_path / "index", progress=False)
    server = ElasticsearchRetriever(similarity, "english", url=elasticsearch_url, index_prefix=index_prefix)
    server.index(Collection(texts, "f" * 16), Path(), progress=False)
    share, difference = compare(embedded.search(queries, 20), server.search(queries, 20))
    assert share >= 0.999
    assert difference < 1e-5
