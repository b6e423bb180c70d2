"""Texts are sent to servers that this user has named only, and credentials to those that the command names."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from datamodules.core.errors import InputError
from datamodules.retrieval import ElasticsearchRetriever, make_retriever
from zoo.cli.options import named_servers

FAR = "https://far.example:9200"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the last client."""
    arguments: dict[str, Any] = {}
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", "hunter2")
    monkeypatch.setattr("elasticsearch.Elasticsearch", lambda urls, **given: arguments.update(given))
    return arguments


def from_file(url: str | list[str], stranger: Path | None = None) -> Any:
    """Return a retriever whose servers a file of the user, or of a stranger, names."""
    return make_retriever(ElasticsearchRetriever(url=url).describe(), stranger)


@pytest.mark.parametrize("is_pickled", [False, True])
def test_a_strangers_server_is_used_only_if_the_user_names_it(
    is_pickled: bool, sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = from_file(FAR, stranger=Path("model"))
    retriever = pickle.loads(pickle.dumps(retriever)) if is_pickled else retriever
    with pytest.raises(InputError, match=r"far.example:9200: .*no text is sent .*--retriever.url"):
        retriever.open(Path("index"), "fingerprint")
    assert not sent
    monkeypatch.setenv("ELASTICSEARCH_HOSTS", FAR)
    retriever.server._connect()
    assert sent["api_key"] == "hunter2"


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
    retriever.server.trust(named, is_own=True)
    retriever.server._connect()
    assert ("api_key" in sent) == is_trusted


def test_one_server_of_a_cluster_that_nobody_named(sent: dict[str, Any]) -> None:
    retriever = from_file([FAR, "https://other.example:9200"])
    retriever.server.trust([FAR], is_own=True)
    retriever.server._connect()
    assert "api_key" not in sent


@pytest.mark.parametrize("url", ["http://localhost:9200", "http://127.0.0.1:9201"])
def test_a_port_of_this_machine_that_a_file_named(url: str, sent: dict[str, Any]) -> None:
    """Another user of the machine may listen there."""
    from_file(url).server._connect()
    assert "api_key" not in sent


@pytest.mark.parametrize(
    "weakened",
    [
        {"verify_certs": False},
        {"ssl_assert_hostname": False},
        {"ca_certs": "strange.pem"},
        {"sniff_on_start": True},
    ],
)
def test_a_file_weakens_no_tls(weakened: dict[str, Any], sent: dict[str, Any]) -> None:
    described = ElasticsearchRetriever(url=FAR, client_args={**weakened, "http_compress": True}).describe()
    fused = {"class_path": "FusedRetriever", "init_args": {"retrievers": [described, described]}}
    for retriever in (make_retriever(described, None), make_retriever(fused, None).retrievers[0]):
        retriever.server.trust([FAR])  # type: ignore[attr-defined]
        retriever.server._connect()  # type: ignore[attr-defined]
        assert not weakened.keys() & sent.keys()
        assert sent["http_compress"] is True
        assert sent["api_key"] == "hunter2"


@pytest.mark.parametrize(
    ("hosts", "is_trusted"),
    [
        ("http://near.example:9200, far.example", True),
        ("http://near.example:9200,https://far.example:9200/", True),
        ("http://near.example:9200,far.example,localhost", True),
        ("near.example:9200,far.example:9200", False),  # near without TLS, which the user did not name
        ("http://near.example:9200", False),
        ("http://near.example:9200,far.example:9300", False),
    ],
)
def test_servers_that_the_environment_names(
    hosts: str, is_trusted: bool, sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICSEARCH_HOSTS", hosts)
    from_file([FAR, "http://near.example:9200"]).server._connect()
    assert ("api_key" in sent) == is_trusted


def test_the_servers_of_options_and_files(tmp_path: Any) -> None:
    """Only those of retrievers: any other text may be a stranger's."""
    (tmp_path / "a.yaml").write_text(
        "data: {init_args: {retriever: {init_args: {retrievers: [{init_args: {url: a}}, {init_args: {url: b}}]}}}}"
    )
    (tmp_path / "b.yaml").write_text(f"url: {FAR}/\ntrainer: {{logger: {{url: {FAR}}}}}")
    servers = named_servers(
        [
            f"--config={tmp_path}/a.yaml",
            "--config",
            f"{tmp_path}/b.yaml",
            "--data.retriever.url",
            "[c, d]",
            '--data={"retriever": {"init_args": {"url": "e"}}}',
            f"--data.text_column={FAR}",
            f"--data.retriever.index_prefix={FAR}",
        ]
    )
    assert servers == {*"abcde"}


@pytest.mark.parametrize(
    ("option", "is_trusted"),
    [
        ("--data.retriever.url=https://a:b@far.example:9200", True),
        ("--data.retriever.url=[https://near.example, https://far.example:9200/]", True),
        ("--data.train_file=/data/far.example", False),
        ("--data.retriever.url=https://far.example.org:9200", False),
        ("--data.retriever.url=https://not-far.example:9200", False),
        ("--data.retriever.url=http://far.example:9200", False),
        ("--data.train_file=https://far.example:9200", False),
        ("--url=https://far.example:9200", False),
        ("--retriever.url=https://far.example:9200", True),
        ("--retriever.init_args.url=https://far.example:9200", True),
    ],
)
def test_only_the_whole_url_in_an_option_names_a_server(
    option: str, is_trusted: bool, sent: dict[str, Any]
) -> None:
    retriever = from_file(FAR)
    retriever.server.trust(named_servers([option]), is_own=True)
    retriever.server._connect()
    assert ("api_key" in sent) == is_trusted
