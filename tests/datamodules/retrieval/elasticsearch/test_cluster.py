"""A cluster of three real servers that loses a node during retrieval."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from datamodules.corpora.rows import Rows
from datamodules.retrieval.elasticsearch import connection
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from tests.datamodules.corpus import labelled_texts
from tests.datamodules.retrieval.elasticsearch.test_elasticsearch import FINGERPRINT
from tests.elasticsearch import server

TEXTS, _ = labelled_texts(2000)


def master_of(nodes: list[server.Server]) -> server.Server:
    """Return the elected master: the others must elect a new one when it is gone."""
    with Elasticsearch(nodes[0].url) as client:
        listed = client.cat.nodes(h="http_address,master", format="json").body
    address = next(node["http_address"] for node in listed if node["master"] == "*")
    return next(node for node in nodes if node.url.endswith(address))


@pytest.mark.server
@pytest.mark.slow
def test_losing_a_node_during_retrieval_changes_no_result(
    elasticsearch_cluster: list[server.Server],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    urls = [node.url for node in elasticsearch_cluster]
    options: dict[str, Any] = {"url": urls, "timeout": 10.0}
    retriever = ElasticsearchRetriever(**options, shards=3)
    retriever.batch_size = 20
    retriever.index(Rows.from_lists(TEXTS), FINGERPRINT, Path("unused"))
    own = f"memory-zoo-{FINGERPRINT[:16]}"
    with Elasticsearch(urls) as client:
        client.cluster.health(index=own, wait_for_status="green", timeout="60s")
    users = ElasticsearchRetriever(**options, index=own)
    expected, documents = retriever.search(TEXTS, 10), users.search_documents(TEXTS[:100], 10)
    assert (expected.rows[:, 0] >= 0).all()

    victim = master_of(elasticsearch_cluster)
    search, requests = retriever.server.search, []

    def searching(*arguments: Any) -> Any:
        requests.append(arguments)
        if len(requests) == 30:
            server.kill(victim)
        return search(*arguments)

    monkeypatch.setattr(retriever.server, "search", searching)
    with caplog.at_level("INFO", logger=connection.__name__):
        hits = retriever.search(TEXTS, 10)
    assert len(requests) == len(TEXTS) / 20
    assert "next try in" in caplog.text, "no request failed"
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_array_equal(hits.scores, expected.scores)
    assert users.search_documents(TEXTS[:100], 10) == documents
    with Elasticsearch(urls) as client:
        assert client.cluster.health()["number_of_nodes"] == 2
