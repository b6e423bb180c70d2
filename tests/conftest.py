"""Fixtures that start a real Elasticsearch, once a run and only if a test needs it."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from elasticsearch import Elasticsearch

from tests.elasticsearch import server

StartedT = TypeVar("StartedT")


def pytest_configure(config: pytest.Config) -> None:
    # The workers of pytest-xdist inherit the name, and so share the servers.
    if not hasattr(config, "workerinput"):
        os.environ["ZOO_TEST_RUN"] = tempfile.mkdtemp(prefix="memory-zoo-tests-")
        Path(os.environ["ZOO_TEST_RUN"]).chmod(0o755)  # the server may run as another user


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        folder = Path(os.environ["ZOO_TEST_RUN"])
        for name in ("plain", "secured"):
            server.stop(folder / name)
        shutil.rmtree(folder)


def _start(name: str, secured: bool, heap: str) -> server.Server:
    folder = Path(os.environ["ZOO_TEST_RUN"]) / name
    return _or_skip(lambda: server.start(folder, secured=secured, heap=heap))


def _or_skip(start: Callable[[], StartedT]) -> StartedT:
    try:
        return start()
    except server.NoServerError as error:
        if os.environ.get("ZOO_REQUIRE_ELASTICSEARCH") == "1":
            pytest.fail(f"no Elasticsearch: {error}", pytrace=False)
        pytest.skip(f"no Elasticsearch: {error}")


@pytest.fixture(scope="session")
def elasticsearch_url() -> str:
    """A real server: that of `ZOO_TEST_ES_URL`, else one that is started for the run."""
    return os.environ.get("ZOO_TEST_ES_URL") or _start("plain", secured=False, heap="1g").url


@pytest.fixture(scope="session")
def secured_elasticsearch() -> server.Server:
    """A real server that wants https and a password."""
    return _start("secured", secured=True, heap="512m")


@pytest.fixture
def elasticsearch_cluster() -> Iterator[list[server.Server]]:
    """Three real servers that are one cluster, for a test that ends some of them."""
    folder = Path(os.environ["ZOO_TEST_RUN"]) / f"cluster-{uuid.uuid4().hex[:12]}"
    yield _or_skip(lambda: server.start_cluster(folder))
    for node in folder.iterdir():
        server.stop(node)
    shutil.rmtree(folder)


@pytest.fixture
def index_prefix(elasticsearch_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A beginning of index names for one test, whose indexes are deleted in the end; memories name no server."""
    monkeypatch.setenv("ELASTICSEARCH_URL", elasticsearch_url)
    prefix = f"zoo-test-{uuid.uuid4().hex[:12]}"
    yield prefix
    with Elasticsearch(elasticsearch_url) as client:
        for name in client.indices.get(index=f"{prefix}*", ignore_unavailable=True):
            client.indices.delete(index=name)


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers encode texts in float32 also on a CPU that multiplies bfloat16."""
    monkeypatch.setattr("zoo.layers.encoders._has_bfloat16", lambda: False)
