"""The command-line options of the retrievers on a server."""

from typing import Any

import pytest
from jsonargparse import ArgumentError, ArgumentParser

from datamodules.core.errors import InputError
from datamodules.retrieval import (
    ElasticsearchDenseRetriever,
    ElasticsearchRetriever,
    EmbeddedRetriever,
    FusedRetriever,
    OpenSearchRetriever,
    Retriever,
    make_retriever,
)

CLASSES: list[Any] = [(ElasticsearchRetriever, {}), (ElasticsearchDenseRetriever, {"encoder": "tiny"})]
CLASSES += [(OpenSearchRetriever, {})]


def parse(retriever: type[Retriever], *options: str) -> Any:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--retriever", type=Retriever)
    needed = [f"--retriever.{name}={value}" for name, value in dict(CLASSES)[retriever].items()]
    return parser.parse_args([f"--retriever={retriever.__name__}", *needed, *options]).retriever


@pytest.mark.parametrize(("retriever", "own"), CLASSES)
def test_shared_options_reach_the_retriever(retriever: Any, own: dict[str, Any]) -> None:
    given = {
        "url": ["http://a:1", "http://b:2"],
        "index_prefix": "mine",
        "shards": 3,
        "timeout": 5.0,
        "threads": 3,
    }
    made = retriever(**own, **given)
    assert made.server.urls == given.pop("url")
    assert made.describe()["init_args"].items() >= {**own, **given}.items()
    assert "url" not in made.describe()["init_args"]
    parsed = parse(retriever, "--retriever.url=http://a:1", "--retriever.shards=3")
    assert (parsed.init_args.url, parsed.init_args.shards) == ("http://a:1", 3)


@pytest.mark.parametrize(("retriever", "own"), CLASSES)
@pytest.mark.parametrize("option", ["nonsense", "server", "queries"])
def test_unknown_options_are_refused(retriever: type[Retriever], own: dict[str, Any], option: str) -> None:
    with pytest.raises(ArgumentError, match=option):
        parse(retriever, f"--retriever.{option}=1")
    with pytest.raises(TypeError, match=option):
        retriever(**{**own, option: 1})


@pytest.mark.parametrize(
    ("option", "environment", "urls"),
    [
        (None, "", ["http://localhost:9200"]),
        (None, "https://a.example:9200/", ["https://a.example:9200"]),
        (None, "http://a:1, http://b:2/es http://c:3", ["http://a:1", "http://b:2/es", "http://c:3"]),
        ("http://b:2", "http://a:1", ["http://b:2"]),
        (["http://b:2", "http://[::1]:9200"], "http://a:1", ["http://b:2", "http://[::1]:9200"]),
    ],
)
def test_the_option_or_the_environment_names_the_server(
    option: Any, environment: str, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTICSEARCH_URL", environment)
    assert ElasticsearchRetriever(url=option).server.urls == urls


@pytest.mark.parametrize(
    "url", ["localhost:9200", "http://localhost", "ftp://h:1", "http://h:x", "http://[::1", ""]
)
def test_incomplete_urls_are_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"^url: give scheme, host and port, such as http://localhost:9200$"):
        ElasticsearchRetriever(url=url)


@pytest.mark.parametrize(
    "url", ["http://me:word@host:9200", "http://host:9200?key=word", "http://host:9200#word"]
)
@pytest.mark.parametrize("is_option", [True, False])
def test_urls_with_secrets_are_refused(url: str, is_option: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICSEARCH_URL", "" if is_option else url)
    with pytest.raises(InputError, match=r"^url: holds more than scheme.*ELASTICSEARCH_API_KEY") as caught:
        ElasticsearchRetriever(url=url if is_option else None)
    assert "word" not in str(caught.value)


def test_no_file_names_a_server() -> None:
    """Texts and credentials would be sent to the servers of a stranger."""
    described = ElasticsearchRetriever(url="http://near.example:9200").describe()
    assert "example" not in str(described)
    described["init_args"]["url"] = "http://far.example:9200"
    fused = {"class_path": "FusedRetriever", "init_args": {"retrievers": [described, described]}}
    for description in (described, fused):
        with pytest.raises(InputError, match="has the option url, which files must not set"):
            make_retriever(description, None)


def test_a_retriever_on_a_server_is_known() -> None:
    assert ElasticsearchRetriever().is_on_server
    assert FusedRetriever(
        [EmbeddedRetriever(), FusedRetriever([EmbeddedRetriever(), ElasticsearchRetriever()])]
    ).is_on_server
    assert not FusedRetriever([EmbeddedRetriever(), EmbeddedRetriever()]).is_on_server
