"""A connection to an Elasticsearch or OpenSearch server: the client, its credentials, retries and error messages."""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

import elasticsearch
from elastic_transport import ApiResponse, HttpHeaders, Urllib3HttpNode
from elastic_transport.client_utils import DEFAULT
from typing_extensions import override

from datamodules.core.errors import DamagedError, InputError, excerpt, reason
from datamodules.core.secrets import ADVICE
from datamodules.core.types import PlainDict, Positive, check_value

if TYPE_CHECKING:
    from elastic_transport._node import NodeApiResponse

logger = logging.getLogger(__name__)

#: The number of times that a request is sent at most, and as long as the server has never answered.
TRIES = 9
FIRST_TRIES = 3
#: Seconds before the second try; doubled for each further try up to the longest, less a random part.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 20.0

_NDJSON = {"accept": "application/json", "content-type": "application/x-ndjson"}
_SEARCH_PROBLEMS = (
    "responses.status,responses.timed_out,responses._shards.failed,responses._shards.failures.reason,"
    "responses.error.type,responses.error.reason,responses.error.root_cause"
)
_BULK_PROBLEMS = "items.*.status,items.*.error.type,items.*.error.reason"
_JSON = "application/json"
#: Action -> the list of its answers.
_ANSWERS = {"_msearch": "responses", "_bulk": "items"}

Product: TypeAlias = Literal["Elasticsearch", "OpenSearch"]
Request: TypeAlias = Callable[[elasticsearch.Elasticsearch], ApiResponse[Any]]
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")


class _TemporaryError(ConnectionError):
    """A request failed, and may succeed if it is sent again."""


class ServerConnection:
    """Sends requests to a server, again after a pause if an error looks temporary; pickles no credentials."""

    def __init__(self, url: str | list[str] | None, timeout: float, threads: int, product: Product) -> None:
        self.product = product
        self._variables = product.upper()
        if url is None:
            named = os.environ.get(f"{self._variables}_URL", "")
            url = named.replace(",", " ").split() or "http://localhost:9200"
        self.urls = [checked_url(each) for each in ([url] if isinstance(url, str) else url)]
        if not self.urls:
            raise InputError("url: give at least one, such as http://localhost:9200")
        check_value("timeout", timeout, Positive)
        self.timeout = timeout
        self.threads = threads
        self._tries = FIRST_TRIES
        # One client for each process: a client that a fork copied shares its sockets with the parent's.
        self._clients: dict[int, elasticsearch.Elasticsearch] = {}

    def __getstate__(self) -> PlainDict:
        return {**self.__dict__, "_clients": {}}

    def _connected(self) -> elasticsearch.Elasticsearch:
        if os.getpid() not in self._clients:
            self._clients[os.getpid()] = self._connect()
        return self._clients[os.getpid()]

    def _connect(self) -> elasticsearch.Elasticsearch:
        arguments: PlainDict = {
            "request_timeout": self.timeout,
            "connections_per_node": max(10, self.threads),
            # The client would try again without a pause, and would not repeat items that fail inside a response 200.
            "max_retries": 0,
            "retry_on_timeout": False,
        }
        if self.product == "OpenSearch":
            arguments["node_class"] = _OpenSearchNode
        elif key := os.environ.get(f"{self._variables}_API_KEY"):
            arguments["api_key"] = key
        if "api_key" not in arguments and (user := os.environ.get(f"{self._variables}_USERNAME")):
            arguments["basic_auth"] = (user, os.environ.get(f"{self._variables}_PASSWORD", ""))
        ca_certs = os.environ.get(f"{self._variables}_CA_CERTS")
        if ca_certs and any(url.startswith("https:") for url in self.urls):
            if not Path(ca_certs).is_file():
                raise InputError(f"{self._variables}_CA_CERTS: there is no file {ca_certs}")
            arguments["ca_certs"] = ca_certs
        return elasticsearch.Elasticsearch(self.urls, **arguments)

    def close(self) -> None:
        """Close the connections of this process."""
        if client := self._clients.pop(os.getpid(), None):
            client.close()

    def call(self, request: Request, expected: Iterable[str] = ()) -> PlainDict:
        """Send one request and return the answer's body; {} for an error of an expected type."""
        return self._retry(lambda: self._send(request, expected))

    def read(self, request: Request, part: Callable[[Any], ResultT], expected: Iterable[str] = ()) -> ResultT:
        """Send one request and return a part of the answer's body; see `call`."""
        return self._parsed(part, self.call(request, expected))

    def search(
        self, index: str, items: Sequence[bytes], parts: Iterable[str], read: Callable[[list[Any]], ResultT]
    ) -> list[ResultT]:
        """Search an index for queries of two lines each; return what `read` makes of the hits of each query."""
        paths = [f"responses.hits.hits.{part}" for part in parts]
        answers = self._exchange(index, "_msearch", ",".join([*paths, _SEARCH_PROBLEMS]), items)
        return [
            self._parsed(lambda answer: read(answer["hits"]["hits"] if "hits" in answer else []), answer)
            for answer in answers
        ]

    def write(self, index: str, items: Sequence[bytes]) -> None:
        """Write or delete documents of an index; each item has the lines of one document."""
        self._exchange(index, "_bulk", _BULK_PROBLEMS, items)

    def _exchange(self, index: str, action: str, filter_path: str, items: Sequence[bytes]) -> list[PlainDict]:
        """Send items (their lines) in one request and return their answers; repeat only failed items."""
        path = f"/{quote(index, safe='*,')}/{action}"
        answers: list[PlainDict] = [{}] * len(items)
        waiting = list(range(len(items)))

        def send_waiting() -> None:
            body = b"".join([items[position] for position in waiting])
            sent: PlainDict = {"params": {"filter_path": filter_path}, "headers": _NDJSON, "body": body}
            response = self._send(lambda client: client.perform_request("POST", path, **sent))
            received = response.get(_ANSWERS[action]) if isinstance(response, dict) else None
            if not isinstance(received, list) or len(received) != len(waiting):
                raise _TemporaryError(f"an answer of another form than {self.product}'s")
            failed = {}
            for position, answer in zip(waiting, received, strict=True):
                answers[position] = answer
                status, problem = self._parsed(_status, answer)
                if problem and not _is_temporary(status):
                    raise self.error(f"{path}: refused: {problem}")
                if problem:
                    failed[position] = problem
            waiting[:] = failed
            if failed:
                raise _TemporaryError(failed[waiting[-1]])

        self._retry(send_waiting)
        return answers

    def _parsed(self, part: Callable[[Any], ResultT], answer: Any) -> ResultT:
        """Return a part of an answer; raise an `InputError` if the answer has another form."""
        try:
            return part(answer)
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            kind = f"{type(error).__name__}: {reason(error)}"
            problem = f"an answer of another form than {self.product}'s ({kind})"
            raise self.error(f"{problem}; is a gateway in between, or is it another server?") from error

    def _retry(self, send: Callable[[], ResultT]) -> ResultT:
        """Call `send` until it succeeds; pause after each failure, twice as long each time."""
        attempt = 0
        while True:
            try:
                return send()
            except _TemporaryError as error:
                if attempt >= self._tries - 1:
                    raise self.error(f"no success after {self._tries} tries: {error}") from error
                # Random, so that many clients don't return together.
                seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)
                logger.info("%s: %s; next try in %.1f s", self.urls[0], error, seconds)
                time.sleep(seconds)
                attempt += 1

    def _send(self, request: Request, expected: Iterable[str] = ()) -> PlainDict:
        """Send a request once and return the answer's body."""
        try:
            body: PlainDict = request(self._connected()).body
            self._tries = TRIES
            return body
        except elasticsearch.ApiError as error:
            kind, message = self._parsed(_type_and_reason, error.body)
            is_other = self.product == "Elasticsearch" and "x-elastic-product" not in error.meta.headers
            if kind in expected and not is_other:
                return {}
            may_pass = _is_temporary(error.meta.status)
            is_missing = kind == "index_not_found_exception" and not is_other
            message = self._refusal(error, kind, message, is_other)
        except elasticsearch.TransportError as error:
            message = self._silence(error)
            may_pass, is_missing = not isinstance(error, elasticsearch.SSLError), False
        # The client's error is not chained: it may contain the request with its headers.
        raise _TemporaryError(message) if may_pass else self.error(message, is_missing)

    def _refusal(self, error: elasticsearch.ApiError, kind: str, message: str, is_other: bool) -> str:
        """Return a message with advice for an error that a server answered."""
        status = error.meta.status
        version = re.search(r"either version (\d+)", message)
        if kind == "media_type_header_exception" and version:
            major = int(version[1])
            return f'the server is version {major}; pip install "elasticsearch>={major},<{major + 1}"'
        if is_other and self._is_opensearch(error):
            return "this is OpenSearch; use OpenSearchRetriever, or DenseRetriever for vectors"
        if status == 401:
            key = f"{self._variables}_API_KEY, or " if self.product == "Elasticsearch" else ""
            names = f"{key}{self._variables}_USERNAME and {self._variables}_PASSWORD"
            return f"the server refuses the credentials, or requires some; set {names}, in the environment"
        if status == 403:
            return f"the credentials don't allow this ({message}); request the privilege or use others"
        if kind == "index_not_found_exception":
            name = re.search(r"\[(.+?)\]", message)
            advice = f"build it with `zoo index`, or name its server in {self._variables}_URL"
            return f"there is no index {name[1] if name else ''}; {advice}"
        if is_other or (self.product == "OpenSearch" and not kind and not _is_temporary(status)):
            return f"this is not {self.product} (it answers {status}); check host and port"
        return f"{self.product} answers {status} {kind}: {message}"

    def _is_opensearch(self, error: elasticsearch.ApiError) -> bool:
        """Return True if OpenSearch answered: it is named by the headers, or by the server's first page."""
        named = str(error.meta.headers)
        if "OpenSearch" not in named and not _is_temporary(error.meta.status):
            try:
                self._connected().info()
            except elasticsearch.ApiError as page:
                named = str(page.body)
            except elasticsearch.TransportError:
                pass
        return "OpenSearch" in named

    def _silence(self, error: elasticsearch.TransportError) -> str:
        """Return a message with advice where no server answered, or the answer can't be read."""
        if isinstance(error, elasticsearch.SSLError):
            if "WRONG_VERSION_NUMBER" in error.message or "record layer failure" in error.message:
                return "the server does not support TLS; use http:// in the URL"
            advice = f"set {self._variables}_CA_CERTS to the PEM file of its authority"
            return f"TLS refused: the server's certificate isn't trusted; {advice} ({excerpt(error.message)})"
        if isinstance(error, elasticsearch.ConnectionTimeout):
            return f"no answer in {self.timeout:g} s; is the server busy? A longer timeout may help"
        if isinstance(error, elasticsearch.SerializationError):
            return f"this is not {self.product} (its answer can't be read); check host and port"
        problem = f"no connection; is {self.product} running there, and is it http or https?"
        return f"{problem} {self._variables}_URL names another server ({excerpt(error.message)})"

    def in_threads(self, work: Callable[[Sequence[ItemT]], None], items: Sequence[ItemT], size: int) -> None:
        """Do the work of batches of items, some at a time; the first error cancels the others."""
        self._connected()  # before the threads, which share the client
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(work, batches))

    def error(self, message: str, is_missing: bool = False) -> InputError:
        """Return an error that names the server; for a missing index, which a memory builds again, a `DamagedError`."""
        return (DamagedError if is_missing else InputError)(f"{', '.join(self.urls)}: {message}")


def checked_url(url: str) -> str:
    """Return the URL of a server; raise an `InputError` unless it has scheme, host and port, and no secret."""
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        complete = False
    # The message omits the URL, in which a password may be anywhere.
    if "@" in url or "?" in url or "#" in url:
        raise InputError(f"url: holds more than scheme, host, port and path; {ADVICE}")
    if not complete:
        raise InputError("url: give scheme, host and port, such as http://localhost:9200")
    return url.rstrip("/")


def _is_temporary(status: int) -> bool:
    return status == 429 or status >= 500


def _status(answer: PlainDict) -> tuple[int, str]:
    """Return the status of an answer to an item and its problem; empty if there is none."""
    action = next((each for each in ("create", "index", "delete") if each in answer), None)
    answer = answer if action is None else answer[action]
    status = int(answer.get("status", 503))
    if "error" in answer:
        kind, message = _type_and_reason(answer)
        # 409: the document that was to be created exists.
        return status, "" if status == 409 else f"{status} {kind}: {message}"
    if status >= 300 and (action, status) != ("delete", 404):  # the document does not exist
        return status, str(status)
    if answer.get("timed_out"):
        return 503, "the server stopped the search before its end"
    shards = answer.get("_shards", {})
    if shards.get("failed"):
        return 503, f"{shards['failed']} shards failed: {excerpt(shards.get('failures'))}"
    return status, ""


def _type_and_reason(body: object) -> tuple[str, str]:
    """Return type and reason of a server's error, on one line."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "", excerpt(error or body)
    root = (error.get("root_cause") or [error])[0]
    return str(root.get("type", error.get("type"))), excerpt(root.get("reason", error.get("reason")))


class _OpenSearchNode(Urllib3HttpNode):
    """Sends the requests that Elasticsearch's client builds to OpenSearch, which has the same paths and bodies."""

    @override
    def perform_request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: HttpHeaders | None = None,
        request_timeout: Any = DEFAULT,
    ) -> NodeApiResponse:
        """Send a request without the media types of Elasticsearch; raise an `InputError` if Elasticsearch answers."""
        sent = HttpHeaders({**(headers or {}), "accept": _JSON, "content-type": _JSON})
        response = super().perform_request(method, target, body, sent, request_timeout)
        if "x-elastic-product" in response.meta.headers:
            raise InputError(f"{self.base_url}: this is Elasticsearch; use ElasticsearchRetriever")
        response.meta.headers["x-elastic-product"] = "Elasticsearch"  # which the client requires
        return response
