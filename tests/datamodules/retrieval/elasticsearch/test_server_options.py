"""The command-line options of the retrievers on a server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jsonargparse import ArgumentError, ArgumentParser

from datamodules.retrieval import ElasticsearchDenseRetriever, ElasticsearchRetriever, Retriever

SHARED: dict[str, Any] = {
    "url": "http://localhost:9200",
    "index_prefix": "memory-zoo",
    "shards": 1,
    "replicas": 0,
    "timeout": 60.0,
    "client_args": None,
}
WORDS: dict[str, Any] = {
    "similarity": "BM25",
    "analyzer": "standard",
    "k1": 1.2,
    "b": 0.75,
    "mu": 2000.0,
    "index": None,
    "text_field": "text",
    "label_field": None,
    "id_field": None,
    "query": None,
    "batch_size": 128,
    "threads": 2,
}
MEANING: dict[str, Any] = {
    "encoder": "tiny",
    "pooling": None,
    "batch_size": 64,
    "max_length": 256,
    "device": None,
    "threads": None,
    "num_candidates": None,
    "query_prompt": None,
    "document_prompt": None,
    "quantization": None,
    "oversample": None,
}
CLASSES = [(ElasticsearchRetriever, WORDS), (ElasticsearchDenseRetriever, MEANING)]


def parse(retriever: type[Retriever], *options: str) -> Any:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--retriever", type=Retriever)
    needed = ["--retriever.encoder=tiny"] if retriever is ElasticsearchDenseRetriever else []
    return parser.parse_args([f"--retriever={retriever.__name__}", *needed, *options]).retriever


@pytest.mark.parametrize(("retriever", "own"), CLASSES)
def test_options_and_defaults(retriever: type[Retriever], own: dict[str, Any]) -> None:
    parsed = parse(retriever)
    assert parsed.class_path == f"datamodules.retrieval.{retriever.__name__}"
    assert dict(parsed.init_args) == {**own, **SHARED}


@pytest.mark.parametrize(("retriever", "own"), CLASSES)
def test_options_are_documented(
    retriever: type[Retriever], own: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--retriever", type=Retriever)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--retriever.help={retriever.__name__}"])
    listed = " ".join(capsys.readouterr().out.partition("Help for")[2].split())
    described = dict(re.findall(r"--retriever\.(\w+) \S*[^ ,] (.*?) \((?:required, )?type: ", listed))
    described["url"] = listed.partition("--retriever.url+ URL ")[2]
    for name in (*own, *SHARED):
        assert len(described[name]) > 10, name
    assert described["batch_size"].startswith(
        "texts encoded" if "encoder" in own else "queries in one request"
    )
    assert described["url"].startswith("one server or several of a cluster, with scheme, host and port.")
    assert described["client_args"] == "further arguments of `elasticsearch.Elasticsearch`."


@pytest.mark.parametrize(("retriever", "own"), CLASSES)
def test_shared_options_reach_the_retriever(retriever: Any, own: dict[str, Any]) -> None:
    given = {
        "url": ["http://a:1", "http://b:2"],
        "index_prefix": "mine",
        "shards": 3,
        "replicas": 1,
        "timeout": 5.0,
        "client_args": {"http_compress": True},
    }
    described = retriever(**own, **given).describe()
    assert described["init_args"] == {**own, **given}
    parsed = parse(retriever, "--retriever.url=http://a:1", "--retriever.shards=3")
    assert (parsed.init_args.url, parsed.init_args.shards) == ("http://a:1", 3)


@pytest.mark.parametrize(("retriever", "own"), CLASSES)
@pytest.mark.parametrize("option", ["nonsense", "server", "queries"])
def test_unknown_options_are_refused(retriever: type[Retriever], own: dict[str, Any], option: str) -> None:
    with pytest.raises(ArgumentError, match=option):
        parse(retriever, f"--retriever.{option}=1")
    with pytest.raises(TypeError, match=option):
        retriever(**{**own, option: 1})
