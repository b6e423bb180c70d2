"""Servers whose answers are valid JSON, but not of Elasticsearch's form: one line that names the server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import ElasticsearchRetriever
from datamodules.retrieval.elasticsearch import connection as server_connection
from tests.datamodules.retrieval.elasticsearch.test_elasticsearch import PRODUCT
from tests.elasticsearch.faults import Answer, proxy

ROWS = Rows.from_lists(["red apple", "blue sky"])
#: Answers of other forms.
FORMS: list[Any] = [
    {},
    [],
    [1],
    "text",
    3,
    None,
    True,
    *(
        {key: value}
        for key in ("error", "count", "responses", "items", "fields")
        for value in (None, 3, "x", [], [3], {})
    ),
    {"zoo": None},
    {"zoo": {"mappings": None}},
    {"zoo": {"mappings": {"_meta": 3}}},
    {"zoo": {"mappings": {"properties": [1]}}},
    *({"indices": ["zoo"], "fields": fields} for fields in (3, [3], {"text": None}, {"text": {"text": {}}})),
    {"responses": [{"status": "bad"}]},
    {"responses": [{"hits": {"hits": 3}}]},
    {"responses": [{"hits": {"hits": [{"sort": ["a", "b"]}]}}]},
    {"items": [{"create": 3}]},
]
REQUESTS: dict[str, Callable[[ElasticsearchRetriever, Path], object]] = {
    "index": lambda retriever, folder: retriever.index(ROWS, "f" * 64, folder),
    "open": lambda retriever, folder: retriever.open(folder, "f" * 64),
    "search_documents": lambda retriever, _: retriever.search_documents(["red"], 3),
    "describe_index": lambda retriever, _: retriever.describe_index(),
    "distinct_labels": lambda retriever, _: retriever.distinct_labels(),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.usefixtures("no_pauses")
def test_answers_of_another_form(request_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server_connection, "TRIES", 1)
    fields = {"index": "zoo", "text_field": "text", "label_field": "label"}
    existing = {} if request_name in ("index", "open") else fields
    refused = 0
    with proxy() as server:
        for form in FORMS:
            server.faults.extend([Answer(200, json.dumps(form).encode(), PRODUCT)] * 99)
            retriever = ElasticsearchRetriever(url=server.url, **existing)
            try:
                REQUESTS[request_name](retriever, tmp_path)
            except InputError as error:
                refused += 1
                assert server.url in str(error), error  # noqa: PT017
                assert len(str(error)) < 700  # noqa: PT017
            finally:
                retriever.close()
                server.faults.clear()
    assert refused > len(FORMS) // 2
