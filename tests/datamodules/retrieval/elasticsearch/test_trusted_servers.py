"""The environment's credentials go to servers that the user named, and to this machine."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from datamodules.retrieval import ElasticsearchRetriever, make_retriever
from zoo.cli.lightning import _is_host_in, _said

FAR = "https://far.example:9200"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the client that was made last."""
    arguments: dict[str, Any] = {}
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", "hunter2")
    monkeypatch.setattr("elasticsearch.Elasticsearch", lambda urls, **given: arguments.update(given))
    return arguments


def test_a_server_that_the_user_named(sent: dict[str, Any]) -> None:
    ElasticsearchRetriever(url=FAR).server._connect()
    assert sent["api_key"] == "hunter2"


@pytest.mark.parametrize("copied", [False, True])
def test_a_server_that_a_file_named(
    copied: bool, sent: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    retriever: Any = make_retriever(ElasticsearchRetriever(url=FAR).describe())
    retriever = pickle.loads(pickle.dumps(retriever)) if copied else retriever
    retriever.server._connect()
    assert "api_key" not in sent
    assert "not sent the credentials" in caplog.text
    assert FAR in caplog.text


@pytest.mark.parametrize("url", ["http://localhost:9200", "http://127.0.0.1:9201"])
def test_a_server_of_this_machine(url: str, sent: dict[str, Any]) -> None:
    retriever: Any = make_retriever(ElasticsearchRetriever(url=url).describe())
    retriever.server._connect()
    assert sent["api_key"] == "hunter2"


def test_a_server_that_the_environment_names(sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICSEARCH_HOSTS", "near.example, far.example")
    retriever: Any = make_retriever(ElasticsearchRetriever(url=[FAR, "http://near.example:9200"]).describe())
    retriever.server._connect()
    assert sent["api_key"] == "hunter2"


def test_what_the_user_said_is_his_options_and_his_files(tmp_path: Any) -> None:
    (tmp_path / "a.yaml").write_text("first")
    (tmp_path / "b.yaml").write_text("second")
    said = _said(
        ["--config", f"{tmp_path}/a.yaml", f"--config={tmp_path}/b.yaml", "--data.retriever.url", FAR]
    )
    assert all(word in said for word in ("first", "second", FAR))


def test_a_host_is_named_by_a_url_and_not_by_chance() -> None:
    assert _is_host_in("--data.retriever.url=https://a:b@far.example:9200", "far.example")
    assert _is_host_in("url: http://far.example", "far.example")
    for said in (
        "/data/far.example",
        "https://far.example.org:9200",
        "https://not-far.example:9200",
        "far.example",
    ):
        assert not _is_host_in(said, "far.example")
