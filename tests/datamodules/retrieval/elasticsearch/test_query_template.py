"""Existing indexes that are searched by a query of the user's own."""

import json
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from jsonargparse import ArgumentParser

from datamodules.retrieval import ElasticsearchRetriever, Retriever, make_retriever
from datamodules.retrieval.memories.index_memory import IndexMemory
from tests.datamodules.checks import refused

DOCUMENTS = [
    ("Rain falls on the coast", "Northern weather", "weather"),
    ("Shares of the bank rise", "Northern business", "business"),
    ("The final is delayed", "Rain", "sport"),
]
IN_BOTH = {"multi_match": {"query": "{text}", "fields": ["body", "title^4"]}}


@pytest.fixture
def index(elasticsearch_url: str, index_prefix: str) -> str:
    name = f"{index_prefix}-mine"
    properties: dict[str, Any] = {field: {"type": "text"} for field in ("body", "title")}
    with Elasticsearch(elasticsearch_url) as client:
        client.indices.create(
            index=name, mappings={"properties": {**properties, "topic": {"type": "keyword"}}}
        )
        for number, (body, title, topic) in enumerate(DOCUMENTS):
            client.index(index=name, id=str(number), document={"body": body, "title": title, "topic": topic})
        client.indices.refresh(index=name)
    return name


def retriever_of(index: str, query: dict[str, Any] | None) -> ElasticsearchRetriever:
    return ElasticsearchRetriever(index=index, text_field="body", label_field="topic", query=query)


@pytest.mark.server
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (None, ["0"]),
        (IN_BOTH, ["2", "0"]),
        ({"bool": {"must": [{"match": {"title": "rain"}}, {"match": {"body": "the {text}"}}]}}, ["2"]),
        ({"bool": {"must": IN_BOTH, "filter": {"term": {"topic": "weather"}}}}, ["0"]),
    ],
)
def test_documents_of_the_query(index: str, query: dict[str, Any] | None, expected: list[str]) -> None:
    (documents,) = retriever_of(index, query).search_documents(["rain"], 3)
    assert [document.id for document in documents] == expected
    assert [document.label for document in documents] == [DOCUMENTS[int(row)][2] for row in expected]


@pytest.mark.server
@pytest.mark.parametrize(
    "text",
    ['rain", "fields": ["topic"]', "rain {text} \\", 'a "quote"\n{"match_all": {}}', "rain \ud800", " \n"],
)
def test_a_text_stays_a_text(index: str, text: str) -> None:
    """Quotes, braces and placeholders of a text change nothing but the words of the query."""
    words = "".join(c if c.isalnum() else " " for c in text)
    retriever = retriever_of(index, IN_BOTH)
    given, plain = retriever.search_documents([text, words], 3)
    assert given == plain


@pytest.mark.server
def test_duplicates_of_a_text_are_excluded_by_its_text(index: str) -> None:
    memory = IndexMemory(retriever_of(index, IN_BOTH))
    neighbors = memory.search(["RAIN  falls on the coast"], 3, exclude_duplicates=True)
    assert neighbors.memories.ids == ["2", "1"]  # of the title, and of a common word


@pytest.mark.server
def test_the_query_is_part_of_the_memory(index: str) -> None:
    """Neighbors of another query are not taken from the cache."""
    prints = {IndexMemory(retriever_of(index, each)).fingerprint for each in (None, IN_BOTH)}
    assert len(prints) == 2


@pytest.mark.server
def test_a_query_that_the_server_refuses_is_one_line(index: str) -> None:
    retriever = retriever_of(index, {"no_such": {"body": "{text}"}})
    with refused("answers 400 parsing_exception: unknown query [no_such]"):
        retriever.search_documents(["rain"], 2)


def test_the_command_line_and_a_description_give_the_same_query() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--retriever", type=Retriever)
    options = ["--retriever=ElasticsearchRetriever", "--retriever.index=mine"]
    given = parser.parse_args([*options, f"--retriever.query={json.dumps(IN_BOTH)}"])
    retriever = parser.instantiate(given).retriever
    again = make_retriever(retriever.describe(), None)
    assert retriever.query == again.query == IN_BOTH
