"""Existing indexes with a field that is searched by meaning: semantic_text, sparse_vector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from elasticsearch import Elasticsearch

from datamodules.core.errors import InputError
from datamodules.retrieval import ElasticsearchRetriever, make_retriever
from datamodules.retrieval.elasticsearch import connection as server_connection
from datamodules.retrieval.memories.index_memory import IndexMemory
from tests.elasticsearch.faults import Answer, Proxy, Request, proxy

HEADERS = {"Content-Type": "application/json", "X-Elastic-Product": "Elasticsearch"}
#: Text, label and tokens of each document; the tokens are those that a learned sparse model might give.
DOCUMENTS: list[tuple[str, str, dict[str, float]]] = [
    ("Rain falls on the northern coast", "weather", {"rain": 2.0, "storm": 1.5, "coast": 1.0}),
    ("Shares of the northern bank rise", "business", {"shares": 2.0, "money": 1.0}),
    ("Thunder over the hills", "weather", {"thunder": 2.0, "storm": 1.75}),
    ("The final is delayed", "sport", {"final": 1.0, "match": 0.5}),
]
#: What the model gives for a query besides its own words.
MEANT = {"tempest": {"storm": 2.0}, "finance": {"money": 1.0, "shares": 0.25}}


class WithInference(Proxy):
    """Gives the test server, which has no inference module, the endpoint `my-elser` and the type semantic_text.

    It encodes the query of a sparse_vector field, shows the text field `meaning` as a semantic_text field, and answers
    its queries, which are those of the documentation, by the tokens of the field `tokens`.
    """

    def respond(self, request: Request) -> Answer | None:
        if request.path.partition("?")[0].endswith("_mapping"):
            answer = super().respond(request)
            assert answer is not None
            shown = json.loads(answer.body)
            for index in shown.values():
                properties = index["mappings"]["properties"]
                if "meaning" in properties:
                    properties["meaning"] = {"type": "semantic_text", "inference_id": "my-elser"}
            return answer._replace(body=json.dumps(shown).encode())
        if not request.path.partition("?")[0].endswith("_msearch"):
            return super().respond(request)
        lines = [json.loads(line) for line in request.body.splitlines()]
        for search in lines[1::2]:
            ((kind, query),) = search["query"].items()
            if kind == "semantic":
                assert set(query) == {"field", "query"}
                assert query["field"] == "meaning"
                query = {"field": "tokens", "inference_id": "my-elser", "query": query["query"]}
            if kind in ("semantic", "sparse_vector"):
                assert set(query) == {"field", "inference_id", "query"}
                if query["inference_id"] != "my-elser":
                    return _missing_endpoint(query["inference_id"], len(lines) // 2)
                search["query"] = {
                    "sparse_vector": {"field": query["field"], "query_vector": _tokens(query["query"])}
                }
        body = "".join(json.dumps(line) + "\n" for line in lines).encode()
        headers = {**request.headers, "Content-Length": str(len(body))}
        return super().respond(request._replace(body=body, headers=headers))


def _tokens(text: str) -> dict[str, float]:
    assert text.strip(), "an endpoint encodes no empty text"
    tokens = dict.fromkeys(text.lower().split(), 1.0)
    for word in text.lower().split():
        tokens |= MEANT.get(word, {})
    return tokens


def _missing_endpoint(name: str, queries: int) -> Answer:
    error = {"type": "resource_not_found_exception", "reason": f"Inference endpoint not found [{name}]"}
    item = {"error": {"root_cause": [error], **error}, "status": 404}
    return Answer(200, json.dumps({"took": 1, "responses": [item] * queries}).encode(), HEADERS)


@pytest.fixture
def index(elasticsearch_url: str, index_prefix: str) -> str:
    """An index with the tokens of its texts, and without an inference module."""
    name = f"{index_prefix}-mine"
    properties = {
        "body": {"type": "text", "fields": {"english": {"type": "text", "analyzer": "english"}}},
        "topic": {"type": "keyword"},
        "meaning": {"type": "text"},
        "tokens": {"type": "sparse_vector"},
        "ml": {"properties": {"tokens": {"type": "sparse_vector"}}},
        "vector": {"type": "dense_vector", "dims": 2},
    }
    with Elasticsearch(elasticsearch_url) as client:
        client.indices.create(index=name, mappings={"properties": properties})
        for number, (body, topic, tokens) in enumerate(DOCUMENTS):
            document = {"body": body, "meaning": body, "topic": topic, "tokens": tokens}
            document["ml"] = {"tokens": tokens}
            client.index(index=name, id=f"_{number}", document=document)
        client.indices.refresh(index=name)
    return name


@pytest.fixture
def between(elasticsearch_url: str) -> Iterator[Proxy]:
    with proxy(elasticsearch_url, WithInference) as inference:
        yield inference


def retriever_of(url: str, index: str, search_field: str, **options: Any) -> ElasticsearchRetriever:
    given = {"text_field": "body", "label_field": "topic", "inference_id": "my-elser", **options}
    return ElasticsearchRetriever(url=url, index=index, search_field=search_field, **given)


@pytest.mark.server
@pytest.mark.parametrize("field", ["tokens", "ml.tokens", "meaning"])
def test_hits_are_ranked_by_meaning(between: Proxy, index: str, field: str) -> None:
    memory = IndexMemory(retriever_of(between.url, index, field))
    assert memory.labels() == ["business", "sport", "weather"]
    neighbors = memory.search(["tempest", "finance", "", "nothing"], 3)
    texts = [[neighbors.memories.texts[row] for row in rows if row >= 0] for rows in neighbors.rows]
    assert texts == [[DOCUMENTS[2][0], DOCUMENTS[0][0]], [DOCUMENTS[1][0]], [], []]
    np.testing.assert_allclose(
        neighbors.scores, [[3.5, 3.0, 0], [1.5, 0, 0], [0, 0, 0], [0, 0, 0]], rtol=0.01
    )
    labels = neighbors.memories.labels
    assert labels is not None
    assert [labels[row] for row in neighbors.rows[0][:2]] == ["weather", "weather"]


@pytest.mark.server
def test_duplicates_of_a_text_are_excluded_by_its_text(between: Proxy, index: str) -> None:
    retriever = retriever_of(between.url, index, "tokens")
    (documents,) = retriever.search_documents(["RAIN falls on the northern  coast"], 3)
    assert [document.text for document in documents] == [DOCUMENTS[0][0]]
    text = "Thunder tempest"
    assert [document.id for document in retriever.search_documents([text], 3)[0]] == ["_2", "_0"]
    with Elasticsearch(str(between.upstream)) as client:
        client.index(index=index, id="_copy", document={"body": text, "tokens": {"storm": 9.0}}, refresh=True)
    assert [document.id for document in retriever.search_documents([text], 2)[0]] == ["_copy", "_2"]
    assert [document.id for document in retriever.search_documents([text], 2, True)[0]] == ["_2", "_0"]


@pytest.mark.server
def test_another_text_field_is_searched_by_its_words(elasticsearch_url: str, index: str) -> None:
    retriever = retriever_of(elasticsearch_url, index, "body.english")
    (documents,) = retriever.search_documents(["delaying"], 3)
    assert [(document.text, document.label) for document in documents] == [DOCUMENTS[3][:2]]


@pytest.mark.server
def test_queries_have_the_documented_form(between: Proxy, index: str) -> None:
    sent = []
    respond = between.respond

    def record(request: Request) -> Answer | None:
        if request.path.partition("?")[0].endswith("_msearch"):
            sent.append([json.loads(line) for line in request.body.splitlines()])
        return respond(request)

    between.respond = record  # type: ignore[method-assign]
    text = 'a "tempest"\n\ud800'
    retriever_of(between.url, index, "meaning").search_documents([text, " \n"], 2)
    retriever_of(between.url, index, "tokens").search_documents([text], 2)
    clean = 'a "tempest"\n\ufffd'
    assert [lines[1]["query"] for lines in sent] == [
        {"semantic": {"field": "meaning", "query": clean}},
        {"sparse_vector": {"field": "tokens", "inference_id": "my-elser", "query": clean}},
    ]
    assert [len(lines) for lines in sent] == [2, 2]
    assert all("tokens" not in str(lines[1]["fields"]) for lines in sent)


@pytest.mark.server
def test_the_server_reads_the_query_of_a_sparse_vector_field(
    elasticsearch_url: str, index: str, no_pauses: list[float]
) -> None:
    """The test server refuses it only after parsing, since it has no inference module."""
    with pytest.raises(InputError, match=r"failed to find action \[cluster:internal/xpack/ml/coordinatedinf"):
        retriever_of(elasticsearch_url, index, "tokens").search_documents(["storm"], 2)


@pytest.mark.server
def test_a_missing_endpoint_is_named_in_one_line(between: Proxy, index: str) -> None:
    retriever = ElasticsearchRetriever(url=between.url, index=index, text_field="body", search_field="tokens")
    with pytest.raises(InputError, match=r"Inference endpoint not found \[.elser-2-elasticsearch\]") as error:
        retriever.search_documents(["storm"], 2)
    assert between.url in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.server
def test_fields_that_cannot_be_searched(elasticsearch_url: str, index: str, index_prefix: str) -> None:
    def search(index: str, field: str) -> None:
        retriever_of(elasticsearch_url, index, field).search_documents(["storm"], 2)

    with pytest.raises(InputError, match=r"has no field token \(search_field\); it has body, body.english, "):
        search(index, "token")
    for field, type_ in (("vector", "dense_vector"), ("topic", "keyword")):
        with pytest.raises(
            InputError,
            match=rf"{field} \(search_field\) of type {type_}; it must be semantic_text or sparse_v",
        ):
            search(index, field)
    with Elasticsearch(elasticsearch_url) as client:
        client.indices.create(
            index=f"{index_prefix}-other",
            mappings={"properties": {"tokens": {"type": "text"}, "body": {"type": "text"}}},
        )
    with pytest.raises(
        InputError, match=r"tokens \(search_field\) of type sparse_vector and text; it must be"
    ):
        search(f"{index_prefix}-*", "tokens")


@pytest.mark.server
def test_a_hit_without_a_text(between: Proxy, index: str) -> None:
    with Elasticsearch(str(between.upstream)) as client:
        client.index(index=index, id="_bare", document={"tokens": {"storm": 9.0}}, refresh=True)
    with pytest.raises(
        InputError, match=r"has the document _bare without body \(text_field\), or keeps no _source"
    ):
        retriever_of(between.url, index, "tokens").search_documents(["tempest"], 2)


@pytest.mark.server
def test_the_description_names_field_and_endpoint(elasticsearch_url: str, index: str) -> None:
    """Neighbors that were found by other means are not taken from the cache."""
    options: list[dict[str, Any]] = [{}, {"search_field": "body.english"}, {"inference_id": "other"}]
    fingerprints = {
        IndexMemory(retriever_of(elasticsearch_url, index, **{"search_field": "tokens", **each})).fingerprint
        for each in options
    }
    assert len(fingerprints) == len(options)


def test_types_of_fields_in_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with dots are nested fields, fields in fields, or names as they are."""
    mapping = {
        "properties": {
            "body": {"type": "text", "fields": {"meaning": {"type": "semantic_text", "inference_id": "e"}}},
            "ml": {"properties": {"tokens": {"type": "sparse_vector"}}},
            "plain.dots": {"type": "sparse_vector"},
        }
    }
    names = ["body", "body.meaning", "ml", "ml.tokens", "plain.dots"]
    capabilities = {
        name: {"text": {"type": "text", "aggregatable": False, "searchable": True}} for name in names
    }
    answers = {
        "_field_caps": {"indices": ["mine"], "fields": capabilities},
        "_mapping": {"mine": {"mappings": mapping}},
        "_settings": {"mine": {"settings": {"index.number_of_shards": "1"}, "defaults": {}}},
        "_msearch": {"responses": [{"status": 200, "hits": {"hits": []}}]},
    }
    monkeypatch.setattr(server_connection, "TRIES", 1)
    with proxy() as stub:

        def respond(request: Request) -> Answer:
            stub.requests.append(request)
            name = request.path.partition("?")[0].rpartition("/")[2]
            return Answer(200, json.dumps(answers[name]).encode(), HEADERS)

        monkeypatch.setattr(stub, "respond", respond)
        kinds = []
        for name in names:
            retriever = ElasticsearchRetriever(
                url=stub.url, index="mine", text_field="body", search_field=name
            )
            if name == "ml":
                with pytest.raises(InputError, match=r"has ml \(search_field\) of type object"):
                    retriever.search_documents(["red"], 1)
                continue
            assert retriever.search_documents(["red"], 1) == [[]]
            query = json.loads(stub.requests[-1].body.splitlines()[1])["query"]
            kinds.append(next(iter(query)))
            retriever.close()
    assert kinds == ["match", "semantic", "sparse_vector", "sparse_vector"]


def test_a_search_field_without_an_index() -> None:
    with pytest.raises(
        InputError, match="search_field=tokens: for an existing index only; name it with index"
    ):
        ElasticsearchRetriever(search_field="tokens")


def test_description_makes_the_same_retriever() -> None:
    described = ElasticsearchRetriever(index="mine", search_field="tokens", inference_id="mine").describe()
    again = make_retriever(described, None)
    assert isinstance(again, ElasticsearchRetriever)
    assert again.describe() == described
    assert (again.search_field, again.inference_id) == ("tokens", "mine")
