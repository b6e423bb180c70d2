"""Elasticsearch Serverless, which refuses some settings and APIs: the same rankings without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from datamodules.core.errors import InputError
from datamodules.retrieval import ElasticsearchDenseRetriever, ElasticsearchRetriever
from datamodules.retrieval.base import Collection
from tests.datamodules.checks import grown_from
from tests.elasticsearch.faults import Proxy, proxy
from tests.elasticsearch.serverless import Serverless

pytestmark = pytest.mark.server

TEXTS = [f"w{number % 7} w{number % 5} common" for number in range(60)]
FINGERPRINT = "0123456789abcdef-the-rest"


@pytest.fixture
def serverless(elasticsearch_url: str) -> Iterator[Proxy]:
    with proxy(elasticsearch_url, Serverless) as between:
        yield between


@pytest.mark.parametrize("similarity", ["BM25", "LMDirichlet"])
def test_an_own_index_has_the_same_ranking(
    elasticsearch_url: str, serverless: Proxy, index_prefix: str, similarity: Any
) -> None:
    hits = []
    for number, url in enumerate((elasticsearch_url, serverless.url)):
        options = {"similarity": similarity, "mu": 10.0, "shards": 2, "replicas": 0}
        retriever = ElasticsearchRetriever(url=url, index_prefix=f"{index_prefix}-{number}", **options)
        retriever.index(Collection(TEXTS, FINGERPRINT), Path(), progress=False)
        hits.append(retriever.search(TEXTS[:9], 20, [range(query + 1) for query in range(9)]))
    np.testing.assert_array_equal(hits[0].rows, hits[1].rows)
    np.testing.assert_allclose(hits[0].scores, hits[1].scores, rtol=1e-6)
    with Elasticsearch(elasticsearch_url) as client:
        (index,) = client.indices.get(index=f"{index_prefix}-1*").values()
    assert "refresh_interval" not in index["settings"]["index"], "the server's own after loading"
    assert index["settings"]["index"]["number_of_shards"] == "1", "the option is not used"
    # The number of shards is not shown, so the statistics of all that there may be are collected.
    assert all(b"dfs_query_then_fetch" in request.body for request in serverless.paths("_msearch"))


def test_an_own_index_grows(serverless: Proxy, index_prefix: str) -> None:
    """All texts are loaded again: an index can't be cloned there."""
    retriever = ElasticsearchRetriever(url=serverless.url, index_prefix=index_prefix)
    retriever.index(Collection(TEXTS[:50], FINGERPRINT), Path(), progress=False)
    grown = Collection(TEXTS, "grown-fingerprint-of-all")
    retriever.update(grown, grown_from(50, len(TEXTS)), Path(), progress=False)
    found = retriever.search(TEXTS[:9], 20)
    whole = ElasticsearchRetriever(url=serverless.url, index_prefix=f"{index_prefix}-whole")
    whole.index(grown, Path(), progress=False)
    expected = whole.search(TEXTS[:9], 20)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    retriever.open(Path(), FINGERPRINT)
    assert retriever.search(["w0"], 60).rows.max() == 49
    assert not [request for request in serverless.requests if re.search("_block|_clone", request.path)]


def test_a_load_is_resumed(serverless: Proxy, index_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = ElasticsearchRetriever(url=serverless.url, index_prefix=index_prefix)
    with monkeypatch.context() as patch:
        patch.setattr(ElasticsearchRetriever, "_repair", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            retriever.index(Collection(TEXTS, FINGERPRINT), Path(), progress=False)
    with pytest.raises(InputError, match="half loaded"):
        retriever.open(Path(), FINGERPRINT)
    loads = len(serverless.paths("_bulk"))
    retriever.index(Collection(TEXTS, FINGERPRINT), Path(), progress=False)
    assert len(serverless.paths("_bulk")) == loads, "existing documents are not sent again"
    assert retriever.search([TEXTS[3]], 1).rows.tolist() == [[3]]


def test_more_excluded_rows_than_a_query_can_return(serverless: Proxy, index_prefix: str) -> None:
    retriever = ElasticsearchRetriever(url=serverless.url, index_prefix=index_prefix)
    retriever.index(Collection(["same"] * 10_500, FINGERPRINT), Path(), progress=False)
    assert retriever.search(["same"], 2, [range(9_998)]).rows.tolist() == [[9_998, 9_999]]
    with pytest.raises(
        InputError, match=r"returns at most 10000 hits .*with excluded rows, 10001 are needed"
    ):
        retriever.search(["same"], 3, [range(9_998)])


@pytest.mark.parametrize("change", ["create", "update", "delete", "replace the index"])
def test_the_description_of_an_existing_index_follows_its_contents(
    elasticsearch_url: str, serverless: Proxy, index_prefix: str, change: str
) -> None:
    name = f"{index_prefix}-mine"

    def make(client: Elasticsearch) -> None:
        for number in range(3):
            client.index(index=name, id=str(number), document={"text": f"red w{number}"}, refresh=True)

    retriever = ElasticsearchRetriever(url=serverless.url, index=name)
    with Elasticsearch(elasticsearch_url) as client:
        make(client)
        before = retriever.describe_index()
        assert retriever.describe_index() == before
        if change == "create":
            client.index(index=name, id="9", document={"text": "red"}, refresh=True)
        elif change == "update":
            client.index(index=name, id="1", document={"text": "red"}, refresh=True)
        elif change == "delete":
            client.delete(index=name, id="1", refresh=True)
        else:
            client.indices.delete(index=name)
            make(client)
    assert retriever.describe_index() != before


def test_dense_retrieval(
    elasticsearch_url: str, serverless: Proxy, index_prefix: str, tiny_encoder: str
) -> None:
    hits = []
    for number, url in enumerate((elasticsearch_url, serverless.url)):
        retriever = ElasticsearchDenseRetriever(
            tiny_encoder, device="cpu", url=url, index_prefix=f"{index_prefix}-{number}"
        )
        retriever.index(Collection(TEXTS, FINGERPRINT), Path(), progress=False)
        hits.append(retriever.search(TEXTS[:9], 5))
    np.testing.assert_array_equal(hits[0].rows, hits[1].rows)
    np.testing.assert_allclose(hits[0].scores, hits[1].scores, rtol=1e-6)


def test_other_refusals_are_one_line(serverless: Proxy) -> None:
    retriever = ElasticsearchRetriever(url=serverless.url)
    with pytest.raises(
        InputError, match=r"410 api_not_available_exception: Request for uri \[/_nodes\]"
    ) as error:
        retriever.server.call(lambda client: client.nodes.info())
    assert "\n" not in str(error.value)
