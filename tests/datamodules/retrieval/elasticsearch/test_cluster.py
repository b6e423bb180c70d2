"""A cluster of three real servers that loses one in the middle of the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from datamodules.retrieval.base import Collection
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from tests.datamodules.retrieval.elasticsearch.test_elasticsearch import FINGERPRINT, some_texts
from tests.elasticsearch import server

TEXTS = some_texts(2000)


def master_of(nodes: list[server.Server]) -> server.Server:
    """The node that the others follow, so that they must choose another when it is gone."""
    with Elasticsearch(nodes[0].url) as client:
        listed = client.cat.nodes(h="http_address,master", format="json").body
    address = next(node["http_address"] for node in listed if node["master"] == "*")
    return next(node for node in nodes if node.url.endswith(address))


@pytest.mark.server
@pytest.mark.slow
def test_a_node_that_is_lost_during_retrieval_changes_no_result(
    elasticsearch_cluster: list[server.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [node.url for node in elasticsearch_cluster]
    options: dict[str, Any] = {"url": urls, "timeout": 10.0, "batch_size": 20}
    retriever = ElasticsearchRetriever(**options, shards=3, replicas=1)
    retriever.index(Collection(TEXTS, FINGERPRINT), Path("unused"), progress=False)
    own = f"memory-zoo-{FINGERPRINT[:16]}"
    with Elasticsearch(urls) as client:
        client.cluster.health(index=own, wait_for_status="green", timeout="60s")
    users = ElasticsearchRetriever(**options, index=own)
    users.open(Path("unused"), "")
    expected, documents = retriever.search(TEXTS, 10), users.search_documents(TEXTS[:100], 10)
    assert (expected.rows[:, 0] >= 0).all()

    victim = master_of(elasticsearch_cluster)
    search, pause, asked, pauses = retriever.server.search, retriever.server._pause, [], []

    def searching(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 30:
            server.kill(victim)
        return search(*arguments)

    def pausing(*arguments: Any) -> None:
        pauses.append(arguments)
        pause(*arguments)

    monkeypatch.setattr(retriever.server, "search", searching)
    monkeypatch.setattr(retriever.server, "_pause", pausing)
    found = retriever.search(TEXTS, 10)
    assert len(asked) == len(TEXTS) / 20
    assert pauses, "no request noticed"
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert users.search_documents(TEXTS[:100], 10) == documents
    with Elasticsearch(urls) as client:
        assert client.cluster.health()["number_of_nodes"] == 2
