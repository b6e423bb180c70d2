"""Fixtures that start a real Elasticsearch or OpenSearch, once a run and only if a test needs it."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

# Networks are tiny: more threads only wait for each other. NumPy and PyTorch read it when they are imported.
os.environ["OMP_NUM_THREADS"] = "1"

from datamodules.retrieval.elasticsearch.connection import Product, ServerConnection
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever, OpenSearchRetriever
from tests.elasticsearch import server

StartedT = TypeVar("StartedT")
ON_BOTH = pytest.mark.parametrize("product", ["Elasticsearch", "OpenSearch"])
OnServer = Callable[[Product], Callable[..., ElasticsearchRetriever]]


def pytest_configure(config: pytest.Config) -> None:
    # The workers of pytest-xdist inherit the name, and so share the servers.
    if not hasattr(config, "workerinput"):
        os.environ["ZOO_TEST_RUN"] = tempfile.mkdtemp(prefix="memory-zoo-tests-")
        Path(os.environ["ZOO_TEST_RUN"]).chmod(0o755)  # the server may run as another user


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        folder = Path(os.environ["ZOO_TEST_RUN"])
        for name in ("plain", "secured", "opensearch"):
            server.stop(folder / name)
        shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def _no_syncing() -> Iterator[None]:
    """Leave out `fsync`, a quarter of the time of many tests: only a power cut needs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def _start(name: str, **options: Any) -> server.Server:
    folder = Path(os.environ["ZOO_TEST_RUN"]) / name
    return _or_skip(lambda: server.start(folder, **options))


def _or_skip(start: Callable[[], StartedT]) -> StartedT:
    try:
        return start()
    except server.NoServerError as error:
        if os.environ.get("ZOO_REQUIRE_ELASTICSEARCH") == "1":
            pytest.fail(f"no server: {error}", pytrace=False)
        pytest.skip(f"no server: {error}")


@pytest.fixture(scope="session")
def elasticsearch_url() -> str:
    """A real server: that of `ZOO_TEST_ES_URL`, else one that is started for the run."""
    return os.environ.get("ZOO_TEST_ES_URL") or _start("plain").url


@pytest.fixture(scope="session")
def opensearch_url() -> str:
    """A real OpenSearch: that of `ZOO_TEST_OPENSEARCH_URL`, else one that is started for the run."""
    return os.environ.get("ZOO_TEST_OPENSEARCH_URL") or _start("opensearch", product=server.OPENSEARCH).url


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
def on_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnServer]:
    """Makes the retrievers of a product; their indexes have a prefix of the test, and are deleted in the end."""
    prefix = f"zoo-test-{uuid.uuid4().hex[:12]}"
    servers: dict[Product, ServerConnection] = {}

    def makes(product: Product) -> Callable[..., ElasticsearchRetriever]:
        url = request.getfixturevalue(f"{product.lower()}_url")
        monkeypatch.setenv(f"{product.upper()}_URL", url)  # memories name no server
        servers[product] = ServerConnection(url, 60, 1, product)
        kind = OpenSearchRetriever if product == "OpenSearch" else ElasticsearchRetriever
        return partial(kind, index_prefix=prefix)

    yield makes
    for each in servers.values():
        if names := ",".join(each.call(lambda client: client.indices.get(index=f"{prefix}*"))):
            each.call(lambda client, names=names: client.indices.delete(index=names))
        each.close()


@pytest.fixture
def index_prefix(elasticsearch_url: str, on_server: OnServer) -> str:
    """The prefix of the test's indexes on Elasticsearch."""
    return on_server("Elasticsearch")().index_prefix


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers encode texts in float32 also on a CPU that multiplies bfloat16."""
    monkeypatch.setattr("zoo.layers.encoders._has_bfloat16", lambda: False)
