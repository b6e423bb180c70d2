import json
import logging
import pickle
import socket
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Hits
from datamodules.retrieval.elasticsearch import server_retriever
from datamodules.retrieval.elasticsearch.dense_retriever import ElasticsearchDenseRetriever
from datamodules.retrieval.elasticsearch.retriever import (
    Document,
    ElasticsearchRetriever,
    OpenSearchRetriever,
)
from datamodules.retrieval.memories.index_memory import IndexMemory
from datamodules.retrieval.memories.memory import Neighbors, build_neighbors
from tests.conftest import ON_BOTH
from tests.datamodules.checks import refused
from tests.datamodules.corpus import in_processes, indexed, labelled_texts
from tests.elasticsearch.faults import Answer, Fault, cut_short, failing_items, proxy
from tests.elasticsearch.server import Server

FINGERPRINT = "0123456789abcdef-the-rest"
SECRET = "s3cret-w0rd"
BUSY: dict[str, Any] = {
    "error": {"type": "es_rejected_execution_exception", "reason": "queue is full"},
    "status": 429,
}
PRODUCT = {"X-Elastic-Product": "Elasticsearch", "Content-Type": "application/json"}
#: The refusal of OpenSearch's security plugin.
REALM = {"WWW-Authenticate": 'Basic realm="OpenSearch Security"', "Content-Type": "text/plain"}
DENIED = Answer(401, b"Unauthorized", REALM)
IS_OPENSEARCH = "this is OpenSearch; use OpenSearchRetriever, or DenseRetriever for"


def answer(status: int, content: Any, headers: dict[str, str] = PRODUCT) -> Answer:
    return Answer(status, json.dumps(content).encode(), headers)


TEXTS, _ = labelled_texts(300)
NEWS = [
    ("a", "Rain falls on the northern coast", "weather"),
    ("b", "rain  FALLS on the\tnorthern coast", "weather"),
    ("c", "Rain delays the final on the coast", "sport"),
    ("d", "Shares of the northern bank rise", "business"),
    ("e", "The bank of the river floods after rain", None),
]


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "USERNAME", "PASSWORD", "CA_CERTS", "URL"):
        for product in ("ELASTICSEARCH", "OPENSEARCH"):
            monkeypatch.delenv(f"{product}_{name}", raising=False)


@pytest.fixture
def product() -> str:
    """The server of `news`, unless a test is parametrized."""
    return "Elasticsearch"


@pytest.fixture
def news(product: str, on_server: Any) -> str:
    """An existing index with other names, another analyzer and unmapped fields."""
    retriever = on_server(product)()
    name = f"{retriever.index_prefix}-news"
    properties: dict[str, Any] = {
        "content": {"properties": {"body": {"type": "text", "analyzer": "english"}}},
        "topic": {"type": "text", "fields": {"keyword": {"type": "keyword"}}},
    }
    if product == "OpenSearch":  # which returns no other fields
        properties["key"] = {"type": "keyword"}
    mappings = {"dynamic": False, "properties": properties}
    retriever.server.call(lambda client: client.indices.create(index=name, mappings=mappings))
    for key, body, topic in NEWS:
        document = json.dumps({"key": key, "content": {"body": body}, "topic": topic})
        retriever.server.write(name, [f'{{"index":{{"_id":"_{key}"}}}}\n{document}\n'.encode()])
    retriever.server.call(lambda client: client.indices.refresh(index=name))
    return name


def same(hits: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-6)


def built(prefix: str, texts: list[str] = TEXTS, kind: Any = ElasticsearchRetriever, **options: Any) -> Any:
    return indexed(kind(index_prefix=prefix, **options), texts, Path("unused"), FINGERPRINT)


@pytest.mark.server
@pytest.mark.parametrize("similarity", ["BM25", "LMDirichlet"])
def test_shards_do_not_change_the_ranking(index_prefix: str, similarity: Any) -> None:
    single = built(f"{index_prefix}-1", similarity=similarity, mu=10.0)
    three = built(f"{index_prefix}-3", similarity=similarity, mu=10.0, shards=3)
    same(single.search(TEXTS, 20), three.search(TEXTS, 20))


@pytest.mark.server
def test_strange_texts(index_prefix: str) -> None:
    strange = ["lone \ud800 surrogate", "NUL \x00 inside", "x" * 1_000_000, 'quote " and \\ \n line', ""]
    strange += ["\u2028"]
    retriever = built(index_prefix, strange)
    queries = ["surrogate \udfff", "NUL\x00", "x" * 1_000_000, 'quote "', "", "\u2028", "unknown"]
    hits = retriever.search(queries, 2)
    assert hits.rows.tolist() == [[0, -1], [1, -1], [2, -1], [3, -1], [-1, -1], [-1, -1], [-1, -1]]
    np.testing.assert_array_equal(hits.scores > 0, hits.rows >= 0)
    assert retriever.search([], 5).rows.shape == (0, 5)


@pytest.mark.server
def test_long_queries_are_cut_to_512_terms(index_prefix: str) -> None:
    texts = ["inside", "outside", "inside inside filler0"]
    retriever = built(index_prefix, texts)
    filler = [f"filler{number}" for number in range(511)]
    long = " ".join(["inside", *filler, "outside", "inside"])
    with pytest.warns(UserWarning, match="more than 512 different terms"):
        hits = retriever.search([long], 3)
    assert sorted(hits.rows[0].tolist()) == [-1, 0, 2]
    twice = retriever.search([" ".join(["inside", *filler, "inside"])], 3)
    same(hits, twice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough, and many words aren't many different ones
        retriever.search([long, "inside " * 100_000], 3)
    once = retriever.search(["inside"], 1).scores[0, 0]
    many = retriever.search(["inside " * 5000], 1).scores[0, 0]
    assert many == pytest.approx(5000 * once, rel=1e-4)


@pytest.mark.server
def test_many_excluded_rows(index_prefix: str) -> None:
    texts = ["same"] * 10_500
    retriever = built(index_prefix, texts)
    hits = retriever.search(["same"], 3, [range(10_498)])
    assert hits.rows.tolist() == [[10_498, 10_499, -1]]


@pytest.mark.server
def test_index_describes_itself(elasticsearch_url: str, index_prefix: str) -> None:
    retriever = ElasticsearchRetriever(index_prefix=index_prefix)
    rows = Rows.from_lists(["red", "blue"], ["x", None], ["one", "two"])
    retriever.index(rows, FINGERPRINT, Path())
    name = f"{index_prefix}-{FINGERPRINT[:16]}"
    with Elasticsearch(elasticsearch_url) as client:
        sources = [hit["_source"] for hit in client.search(index=name, sort="row")["hits"]["hits"]]
        mapping = client.indices.get_mapping(index=name)[name]["mappings"]
    assert sources == [
        {"row": 0, "text": "red", "id": "one", "label": "x"},
        {"row": 1, "text": "blue", "id": "two", "label": None},
    ]
    meta = mapping["_meta"]["memory_zoo"]
    assert (meta["fingerprint"], meta["count"], meta["complete"]) == (FINGERPRINT, 2, True)
    assert set(mapping["properties"]) == {"row", "text"}


@pytest.mark.server
def test_half_loaded_index(
    elasticsearch_url: str, index_prefix: str, no_pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = built(f"{index_prefix}-whole").search(TEXTS, 10)
    monkeypatch.setattr(server_retriever, "_BULK_ROWS", 100)
    with proxy(elasticsearch_url) as between:
        between.target = "_bulk"
        between.faults.extend([lambda good: good, answer(400, {"error": {"type": "bad", "reason": "no"}})])
        with pytest.raises(InputError, match="400 bad: no"):
            built(index_prefix, url=between.url)
    retriever = ElasticsearchRetriever(index_prefix=index_prefix)
    with pytest.raises(InputError, match="half loaded"):
        retriever.open(Path(), FINGERPRINT)
    with proxy(elasticsearch_url) as between:
        built(index_prefix, url=between.url)
        # Existing documents are not sent again.
        assert sum(request.body.count(b'{"create"') for request in between.paths("_bulk")) == len(TEXTS) - 100
        loads = len(between.paths("_bulk"))
        same(expected, built(index_prefix, url=between.url).search(TEXTS, 10))
        assert len(between.paths("_bulk")) == loads  # a whole index is not loaded again
    with Elasticsearch(elasticsearch_url) as client:
        name = f"{index_prefix}-{FINGERPRINT[:16]}"
        assert client.indices.stats(index=name)["_all"]["primaries"]["docs"]["deleted"] == 0


@pytest.mark.server
def test_indexes_of_others_are_not_changed(elasticsearch_url: str, index_prefix: str) -> None:
    name = f"{index_prefix}-{FINGERPRINT[:16]}"
    with Elasticsearch(elasticsearch_url) as client:
        client.index(index=name, document={"text": "mine"}, refresh=True)
        before = client.indices.get(index=name).body
        with pytest.raises(InputError, match=f"index {name} was not made by memory-zoo"):
            built(index_prefix)
        assert client.indices.get(index=name).body == before
        assert client.count(index=name)["count"] == 1


@pytest.mark.server
def test_missing_other_and_damaged_index(elasticsearch_url: str, index_prefix: str) -> None:
    retriever = ElasticsearchRetriever(index_prefix=index_prefix)
    with pytest.raises(InputError, match=f"no index {index_prefix}-.*zoo index"):
        retriever.open(Path(), FINGERPRINT)
    built(index_prefix)
    with pytest.raises(InputError, match="another collection"):
        retriever.index(Rows.from_lists(TEXTS), FINGERPRINT[:16] + "-another", Path())
    with Elasticsearch(elasticsearch_url) as client:
        client.delete(index=f"{index_prefix}-{FINGERPRINT[:16]}", id="3", refresh=True)
    with pytest.raises(InputError, match="has 299 of its 300 documents"):
        retriever.open(Path(), FINGERPRINT)


def busy_items(key: str) -> Fault:
    item = {"create": BUSY} if key == "items" else BUSY
    return failing_items(key, item, slice(None, None, 3))


ANYWHERE: dict[str, Fault] = {
    "dropped": None,
    "cut": cut_short,
    "429": answer(429, BUSY),
    "503": answer(503, {"error": {"type": "unavailable", "reason": "no master"}, "status": 503}),
    "502 page of a gateway": Answer(502, b"<html>bad gateway</html>", {"Content-Type": "text/html"}),
}


@pytest.mark.server
@pytest.mark.usefixtures("elasticsearch_url", "opensearch_url")  # started with pauses
@pytest.mark.parametrize(
    ("product", "fault"),
    [
        *(("Elasticsearch", fault) for fault in [*ANYWHERE, "items"]),
        *(("OpenSearch", fault) for fault in ("dropped", "cut", "502 page of a gateway", "items")),
    ],
)
def test_loading_survives(
    product: str, fault: str, on_server: Any, no_pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = on_server(product)()
    kind, index_prefix = type(sound), sound.index_prefix
    expected = built(f"{index_prefix}-sound", kind=kind).search(TEXTS[:64], 10)
    monkeypatch.setattr(server_retriever, "_BULK_ROWS", 50)
    trouble = busy_items("items") if fault == "items" else ANYWHERE[fault]
    with proxy(sound.server.urls[0]) as between:
        between.target = "_bulk"
        between.faults.extend([lambda good: good, trouble, trouble])
        retriever = built(index_prefix, kind=kind, url=between.url)
        assert not between.faults
        assert len(between.paths("_bulk")) == 6 + 2
        same(expected, retriever.search(TEXTS[:64], 10))
    assert len(no_pauses) == 2
    assert no_pauses[1] > 0.1


@pytest.mark.server
@pytest.mark.parametrize("fault", [*ANYWHERE, "items", "timed out", "failed shards"])
def test_search_survives(
    fault: str, elasticsearch_url: str, index_prefix: str, no_pauses: list[float]
) -> None:
    inside: dict[str, Fault] = {
        "items": busy_items("responses"),
        "timed out": failing_items("responses", {"timed_out": True, "status": 200}, slice(0, 2)),
        "failed shards": failing_items("responses", {"_shards": {"failed": 1}, "status": 200}, slice(0, 2)),
    }
    expected = built(index_prefix).search(TEXTS[:64], 10)
    with proxy(elasticsearch_url) as between:
        retriever = ElasticsearchRetriever(url=between.url, index_prefix=index_prefix)
        retriever.batch_size = 16
        retriever.open(Path(), FINGERPRINT)
        between.target = "_msearch"
        between.faults.extend([{**ANYWHERE, **inside}[fault]] * 2)
        same(expected, retriever.search(TEXTS[:64], 10))
        sent = [len(request.body.splitlines()) // 2 for request in between.paths("_msearch")]
    assert len(no_pauses) == 2
    # If only some items fail, only these are sent again.
    again = {"items": {8, 12}, "timed out": {4}, "failed shards": {4}}.get(fault, {2 * 16})
    assert sum(sent) - 64 in again


@pytest.mark.server
def test_the_server_is_given_up(elasticsearch_url: str, index_prefix: str, no_pauses: list[float]) -> None:
    built(index_prefix)
    with proxy(elasticsearch_url) as between:
        retriever = ElasticsearchRetriever(url=between.url, index_prefix=index_prefix)
        retriever.open(Path(), FINGERPRINT)
        between.target = "_msearch"
        between.faults.extend([answer(429, BUSY)] * 100)
        refusal = f"after 9 tries: Elasticsearch answers 429 {BUSY['error']['type']}: queue is full"
        with pytest.raises(InputError, match=f"^{between.url}: no success {refusal}$") as error:
            retriever.search(["lion"], 3)
        assert isinstance(error.value.__cause__, ConnectionError)  # of which `zoo serve` makes a 503
        assert len(between.paths("_msearch")) == 9
    assert len(no_pauses) == 8
    assert all(0.1 * 2**n <= pause <= 0.2 * 2**n for n, pause in enumerate(no_pauses[:6]))


@pytest.mark.server
@pytest.mark.parametrize(
    ("place", "name"), [(ElasticsearchRetriever, "_match"), (server_retriever, "rows_of")]
)
def test_an_error_of_ours_is_not_the_servers(
    place: Any, name: str, index_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = built(index_prefix)
    monkeypatch.setattr(place, name, Mock(side_effect=TypeError("planted")))
    with pytest.raises(TypeError, match="planted"):
        retriever.search(["lion"], 3)


@ON_BOTH
@pytest.mark.server
def test_search_documents(product: str, news: str, on_server: Any) -> None:
    retriever = on_server(product)(index=news, text_field="content.body", label_field="topic", id_field="key")
    results = retriever.search_documents(["floods of the river", "nothing"], 2)
    assert results[1] == []
    (hit,) = results[0]
    assert hit == Document("e", NEWS[4][1], None, hit.score)
    assert hit.score > 0
    rain = retriever.search_documents(["rain on the coast"], 10)[0]
    assert {hit.id: hit.label for hit in rain} == {"a": "weather", "b": "weather", "c": "sport", "e": None}
    assert [hit.score for hit in rain] == sorted((hit.score for hit in rain), reverse=True)
    plain = on_server(product)(index=news, text_field="content.body")
    assert plain.search_documents(["floods"], 1)[0][0][:3] == ("_e", NEWS[4][1], None)
    results = plain.search_documents([NEWS[0][1], "bank"], 2, exclude_duplicates=True)
    assert {hit.id for hit in results[0]} <= {"_c", "_d", "_e"}
    assert len(results[0]) == 2
    assert {hit.id for hit in results[1]} == {"_d", "_e"}


@pytest.mark.server
def test_more_hits_are_requested_behind_many_duplicates(elasticsearch_url: str, index_prefix: str) -> None:
    name = f"{index_prefix}-duplicates"
    with Elasticsearch(elasticsearch_url) as client:
        for number in range(40):
            text = "Red  apple" if number < 38 else f"red apple number {number}"
            client.index(index=name, id=str(number), document={"text": text}, refresh=number == 39)
    retriever = ElasticsearchRetriever(index=name)
    results = retriever.search_documents(["red apple", "red"], 3, exclude_duplicates=True)
    assert {hit.id for hit in results[0]} == {"38", "39"}
    assert len(results[1]) == 3


@pytest.mark.server
def test_equal_ids_of_two_indexes_are_two_documents(elasticsearch_url: str, index_prefix: str) -> None:
    texts = {f"{index_prefix}-one": "red apple", f"{index_prefix}-two": "red car"}
    with Elasticsearch(elasticsearch_url) as client:
        for name, text in texts.items():
            client.index(index=name, id="1", document={"text": text}, refresh=True)
    pattern = ElasticsearchRetriever(index=f"{index_prefix}-*")
    memories = IndexMemory(pattern).search(["red"], 5).memories
    assert dict(zip(memories.ids, memories.texts, strict=True)) == {
        f"{name}/1": text for name, text in texts.items()
    }
    alone = ElasticsearchRetriever(index=f"{index_prefix}-one")
    assert [hit.id for hit in alone.search_documents(["red"], 5)[0]] == ["1"]


@ON_BOTH
@pytest.mark.server
def test_existing_index_is_only_read(product: str, news: str, on_server: Any) -> None:
    with proxy(on_server(product)().server.urls[0]) as between:
        retriever = on_server(product)(
            url=between.url, index=news, text_field="content.body", label_field="topic"
        )
        retriever.search_documents(["rain"], 2)
        retriever.describe_index()
        assert retriever.distinct_labels() == ["business", "sport", "weather"]
        with pytest.raises(InputError, match="read only"):
            retriever.index(Rows.from_lists(TEXTS), FINGERPRINT, Path())
        with pytest.raises(InputError, match="read only"):
            retriever.update(Rows.from_lists(TEXTS), FINGERPRINT, np.arange(len(TEXTS)), Path())
        reading = ("/_msearch", "/_search", "/_field_caps")
        for request in between.requests:
            assert request.method == "GET" or request.path.partition("?")[0].endswith(reading), request.path


@pytest.mark.server
@pytest.mark.parametrize("change", ["write", "close", "delete"])
def test_neighbors_of_an_index_that_changes_are_not_stored(
    elasticsearch_url: str, news: str, index_prefix: str, tmp_path: Path, change: str
) -> None:
    """An alias has two indexes, one of which is written to, closed or deleted after the first block."""
    other, alias = f"{index_prefix}-other", f"{index_prefix}-both"
    texts = Rows.from_lists([body for _, body, _ in NEWS])
    with Elasticsearch(elasticsearch_url) as client:
        document = {"content": {"body": "rain again"}, "topic": "weather"}
        client.index(index=other, id="1", document=document, refresh=True)
        for name in (news, other):
            client.indices.put_alias(index=name, name=alias)

        class Changed(IndexMemory):
            def search(self, *arguments: Any, **options: Any) -> Neighbors:
                neighbors = super().search(*arguments, **options)
                if change == "write":
                    client.index(index=other, id="2", document=document, refresh=True)
                else:
                    getattr(client.indices, change)(index=other)
                return neighbors

        retriever = ElasticsearchRetriever(index=alias, text_field="content.body")
        message = "index_closed" if change == "close" else f"index:{alias}: changed during retrieval"
        with pytest.raises(InputError, match=message):
            build_neighbors(texts, Changed(retriever), 2, False, tmp_path)
        assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
        if change == "close":
            client.indices.open(index=other, wait_for_active_shards=1)
        # The advice of the message.
        build_neighbors(texts, IndexMemory(retriever), 2, False, tmp_path)
        if change != "delete":
            client.indices.delete(index=other)


@pytest.mark.server
def test_an_own_index_that_is_deleted_while_it_is_loaded(
    elasticsearch_url: str, index_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server creates the index again for the first documents, with a mapping of its own."""
    retriever = ElasticsearchRetriever(index_prefix=index_prefix)
    name, documents = f"{index_prefix}-{FINGERPRINT[:16]}", retriever._documents

    def delete_first(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        retriever.server.call(lambda client: client.indices.delete(index=name))
        return documents(texts)

    with monkeypatch.context() as patch:
        patch.setattr(retriever, "_documents", delete_first)
        with pytest.raises(InputError, match=f"{name} was replaced during loading"):
            retriever.index(Rows.from_lists(TEXTS), FINGERPRINT, Path())
    with Elasticsearch(elasticsearch_url) as client:
        client.indices.delete(index=name)  # the advice of the message
    retriever.index(Rows.from_lists(TEXTS), FINGERPRINT, Path())
    assert retriever.search(["lion"], 3).rows[0, 0] >= 0


@pytest.mark.server
def test_existing_index_errors(news: str) -> None:
    def search(index: str = news, **options: Any) -> None:
        ElasticsearchRetriever(index=index, **options).search_documents(["rain"], 1)

    with pytest.raises(InputError, match=f"index {news}x is not there; GET _cat/indices lists"):
        search(index=f"{news}x")
    with pytest.raises(InputError, match=r"no field text \(text_field\); it has content.body, topic"):
        search()
    with pytest.raises(InputError, match=r"no field class \(label_field\)"):
        search(text_field="content.body", label_field="class")
    with pytest.raises(InputError, match=r"no field number \(id_field\)"):
        search(text_field="content.body", id_field="number")
    with pytest.raises(InputError, match="can't list the values of key"):
        ElasticsearchRetriever(index=news, text_field="content.body", label_field="key").distinct_labels()


@pytest.mark.server
def test_forked_processes(index_prefix: str) -> None:
    retriever = built(index_prefix)
    expected = retriever.search(TEXTS[:10], 5).rows.tolist()

    def check() -> None:
        assert retriever.search(TEXTS[:10], 5).rows.tolist() == expected

    assert in_processes(2, check) == [0, 0]
    check()


@pytest.mark.slow
@pytest.mark.server
def test_tls_and_password(
    secured_elasticsearch: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = secured_elasticsearch
    caplog.set_level(logging.DEBUG)
    with pytest.raises(InputError, match=r"TLS refused: .*ELASTICSEARCH_CA_CERTS"):
        built("zoo", url=server.url)
    with pytest.raises(InputError, match=r"no connection; .*http or https"):
        built("zoo", url=server.url.replace("https", "http"))
    monkeypatch.setenv("ELASTICSEARCH_CA_CERTS", str(server.ca_certs))
    with pytest.raises(
        InputError, match="refuses the credentials, or requires some; set ELASTICSEARCH_API_KEY"
    ):
        built("zoo", url=server.url)
    monkeypatch.setenv("ELASTICSEARCH_USERNAME", "elastic")
    monkeypatch.setenv("ELASTICSEARCH_PASSWORD", SECRET)
    with pytest.raises(InputError, match="refuses the credentials") as caught:
        built("zoo", url=server.url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("ELASTICSEARCH_PASSWORD", str(server.password))
    retriever = built("zoo", ["red"], url=server.url)
    assert retriever.search(["red"], 1).rows.tolist() == [[0]]
    for shown in (repr(retriever), str(retriever.describe()), str(pickle.dumps(retriever)), caplog.text):
        assert str(server.password) not in shown
        assert SECRET not in shown


NOT_YOU = answer(403, {"error": {"type": "security_exception", "reason": "not you"}})
USER = {"USERNAME": "me", "PASSWORD": SECRET}
BASIC = "Basic bWU6czNjcmV0LXcwcmQ="


@pytest.mark.parametrize(
    ("kind", "environment", "header", "refusal", "message"),
    [
        (ElasticsearchRetriever, {"API_KEY": SECRET}, f"ApiKey {SECRET}", NOT_YOU, "allow this .not you"),
        (ElasticsearchRetriever, USER, BASIC, NOT_YOU, "allow this .not you"),
        (OpenSearchRetriever, USER, BASIC, DENIED, "set OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD"),
    ],
)
def test_credentials_reach_the_server_and_nothing_else(
    kind: type[ElasticsearchRetriever],
    environment: dict[str, str],
    header: str,
    refusal: Answer,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, value in environment.items():
        monkeypatch.setenv(f"{kind.product.upper()}_{name}", value)
    with proxy() as between:
        between.faults.append(refusal)
        retriever = kind(url=between.url)
        with pytest.raises(InputError, match=message) as caught:
            retriever.open(Path(), FINGERPRINT)
        sent = {name.lower(): value for name, value in between.requests[0].headers.items()}
        assert sent["authorization"] == header
    error = "".join(traceback.format_exception(caught.value))
    shown = [repr(retriever), str(retriever.describe()), str(pickle.dumps(retriever)), caplog.text, error]
    assert not any(secret in each for each in shown for secret in (SECRET, header.split()[1]))


KINDS = [ElasticsearchRetriever, OpenSearchRetriever]


def opening_error(url: str, kind: type[ElasticsearchRetriever]) -> str:
    with pytest.raises(InputError) as caught:
        kind(url=url, timeout=5).open(Path(), FINGERPRINT)
    message = str(caught.value)
    assert message.startswith(f"{url}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_server_down(kind: type[ElasticsearchRetriever], no_pauses: list[float]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert f"no connection; is {kind.product} running" in opening_error(f"http://127.0.0.1:{port}", kind)
    assert len(no_pauses) == 2


OTHER_MAJOR = {
    "type": "media_type_header_exception",
    "reason": "Invalid media-type value; Accept version must be either version 8 or 7, but found 9.",
}
NEEDS_8 = answer(400, {"error": {"root_cause": [OTHER_MAJOR]}})


@pytest.mark.parametrize(
    ("kinds", "page", "scheme", "message"),
    [
        (KINDS[:1], answer(200, {}, {}), "http", "this is not Elasticsearch"),
        (KINDS[:1], Answer(200, b"<html>", {"Content-Type": "text/html"}), "http", "this is not Elastic"),
        (KINDS[1:], answer(200, {}, {}), "http", "an answer of another form than OpenSearch's"),
        (KINDS, Answer(404, b"", {}), "http", "this is not {0}"),
        (KINDS[:1], DENIED, "http", IS_OPENSEARCH),
        (KINDS[:1], NEEDS_8, "http", 'pip install "elasticsearch>=8,<9"'),
        (KINDS, answer(200, {}), "https", "does not support TLS; use http://"),
    ],
)
def test_another_server_answers(
    kinds: list[type[ElasticsearchRetriever]], page: Answer, scheme: str, message: str, no_pauses: list[float]
) -> None:
    for kind in kinds:
        with proxy() as between:
            between.faults.extend([page] * 10)
            error = opening_error(between.url.replace("http", scheme), kind)
            assert message.format(kind.product) in error


@pytest.mark.server
def test_the_other_product(elasticsearch_url: str, opensearch_url: str, tiny_encoder: str) -> None:
    for retriever in (
        ElasticsearchRetriever(url=opensearch_url),
        ElasticsearchDenseRetriever(tiny_encoder, url=opensearch_url),
    ):
        with refused(f"{opensearch_url}: {IS_OPENSEARCH}"):
            retriever.open(Path(), FINGERPRINT)
    with refused(f"{opensearch_url}: {IS_OPENSEARCH}"):
        ElasticsearchRetriever(url=opensearch_url, index="mine").describe_index()
    with refused(f"{opensearch_url}: {IS_OPENSEARCH}"):
        built("zoo", url=opensearch_url)
    with refused(f"{elasticsearch_url}: this is Elasticsearch; use ElasticsearchRetriever"):
        OpenSearchRetriever(url=elasticsearch_url).open(Path(), FINGERPRINT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, "shards=0"),
        ({"threads": 0}, "threads=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"index_prefix": "Upper"}, "index_prefix='Upper'"),
        ({"url": []}, "url: give at least one"),
        ({"similarity": "TFIDF"}, "similarity='TFIDF'"),
        ({"index": ""}, r"retriever\.index='': that would be every index"),
        ({"query": {"match": {"a": "{text}"}}}, "query: for an existing index only; name it with index"),
        ({"index": "mine", "query": {"match": {"{text}": "rain"}}}, r"query: no string has \{text\}"),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ElasticsearchRetriever(**options)
