"""The environment's credentials are sent to servers that the user named and to this machine only."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from datamodules.retrieval import ElasticsearchRetriever, make_retriever
from zoo.cli.lightning import _is_host_in, _said

FAR = "https://far.example:9200"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the last client."""
    arguments: dict[str, Any] = {}
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", "hunter2")
    monkeypatch.setattr("elasticsearch.Elasticsearch", lambda urls, **given: arguments.update(given))
    return arguments


def from_file(url: str | list[str]) -> Any:
    """Return a retriever whose servers a file names."""
    return make_retriever(ElasticsearchRetriever(url=url).describe())


def test_a_server_that_the_user_named(sent: dict[str, Any]) -> None:
    ElasticsearchRetriever(url=FAR).server._connect()
    assert sent["api_key"] == "hunter2"


@pytest.mark.parametrize("is_pickled", [False, True])
def test_a_server_that_a_file_named(
    is_pickled: bool, sent: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    retriever = from_file(FAR)
    retriever = pickle.loads(pickle.dumps(retriever)) if is_pickled else retriever
    retriever.server._connect()
    assert "api_key" not in sent
    assert "not sent the credentials" in caplog.text
    assert FAR in caplog.text


@pytest.mark.parametrize(
    ("named", "is_trusted"),
    [
        ([FAR], True),
        (["https://user:password@far.example:9200/"], True),
        ([], False),
        (["https://far.example:9300"], False),
        (["https://near.example:9200"], False),
    ],
)
def test_a_server_that_a_file_and_the_user_named(
    named: list[str], is_trusted: bool, sent: dict[str, Any]
) -> None:
    retriever = from_file(FAR)
    retriever.server.trust(named)
    retriever.server._connect()
    assert ("api_key" in sent) == is_trusted


def test_one_server_of_a_cluster_that_nobody_named(sent: dict[str, Any]) -> None:
    retriever = from_file([FAR, "https://other.example:9200"])
    retriever.server.trust([FAR])
    retriever.server._connect()
    assert "api_key" not in sent


@pytest.mark.parametrize("url", ["http://localhost:9200", "http://127.0.0.1:9201"])
def test_a_server_of_this_machine(url: str, sent: dict[str, Any]) -> None:
    from_file(url).server._connect()
    assert sent["api_key"] == "hunter2"


@pytest.mark.parametrize(
    ("hosts", "is_trusted"),
    [
        ("near.example, far.example", True),
        ("near.example:9200,far.example:9200", True),
        ("near.example", False),
        ("near.example,far.example:9300", False),
    ],
)
def test_servers_that_the_environment_names(
    hosts: str, is_trusted: bool, sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICSEARCH_HOSTS", hosts)
    from_file([FAR, "http://near.example:9200"]).server._connect()
    assert ("api_key" in sent) == is_trusted


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
