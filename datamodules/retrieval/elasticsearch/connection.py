"""A connection to an Elasticsearch server: the client, patience with it, and errors that say what to do."""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import elasticsearch

from datamodules.core.errors import InputError, excerpt, reason

logger = logging.getLogger(__name__)

#: How often a request is sent before the server counts as gone, and how often on first contact.
TRIES = 9
FIRST_TRIES = 3
#: Seconds before the second try; doubled for each further one up to the longest, less a random part.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 20.0

_NDJSON = {"accept": "application/json", "content-type": "application/x-ndjson"}
_SEARCH_TROUBLE = (
    "responses.status,responses.timed_out,responses._shards.failed,responses._shards.failures.reason,"
    "responses.error.type,responses.error.reason,responses.error.root_cause"
)
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
_Error: TypeAlias = elasticsearch.ApiError | elasticsearch.TransportError
_TEMPORARY = (
    elasticsearch.ConnectionError,
    elasticsearch.ConnectionTimeout,
    elasticsearch.SerializationError,
)
_SECRET_ARGS = frozenset(
    {"api_key", "basic_auth", "bearer_auth", "http_auth", "headers", "opaque_id", "ssl_context"}
)
_AUTH_ARGS = ("api_key", "basic_auth", "bearer_auth", "http_auth")
#: Hosts that are this machine.
_NEAR = ("localhost", "127.0.0.1", "::1")
_AUTH_HELP = (
    "set ELASTICSEARCH_API_KEY, or ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD, in the environment"
)


class ServerConnection:
    """Sends requests to a server, again after a pause while the trouble looks temporary.

    A pickled copy carries no connection and no credential.

    Args:
        url: one server or several of a cluster, with scheme, host and port.
        timeout: seconds that a request may take.
        client_args: further arguments of `elasticsearch.Elasticsearch`.
        threads: requests under way at the same time.

    Raises:
        InputError: an argument is out of range.
    """

    def __init__(
        self, url: str | list[str], timeout: float, client_args: dict[str, Any] | None, threads: int
    ) -> None:
        pairs = [split_credentials(one) for one in ([url] if isinstance(url, str) else url)]
        if not pairs:
            raise InputError("url: give at least one, such as http://localhost:9200")
        if not timeout > 0:
            raise InputError(f"timeout={timeout}: give a number of seconds above 0")
        self.urls = [pair[0] for pair in pairs]
        self.timeout = timeout
        self.client_args = _Hidden(client_args or {})
        self.threads = threads
        logins = [login for _, login in pairs if login is not None]
        self._login = _Hidden({"basic_auth": logins[0]} if logins else {})
        #: whether the user named the server, and not a file that somebody may have given him.
        self.is_named = True
        self._client: elasticsearch.Elasticsearch | None = None
        self._client_process = 0

    def __getstate__(self) -> dict[str, Any]:
        hidden = {"client_args": _Hidden(without_secrets(self.client_args)), "_login": _Hidden({})}
        return {**self.__dict__, **hidden, "_client": None, "_client_process": 0}

    def _connected(self) -> elasticsearch.Elasticsearch:
        """The client of this process. One that a fork copied shares its sockets with the parent."""
        if self._client is None or self._client_process != os.getpid():
            self._client = self._connect()
            self._client_process = os.getpid()
        return self._client

    def _connect(self) -> elasticsearch.Elasticsearch:
        arguments: dict[str, Any] = {
            "request_timeout": self.timeout,
            "connections_per_node": max(10, self.threads),
            **self.client_args,
            # The client would try again without a pause, and not at all what fails inside a 200.
            "max_retries": 0,
            "retry_on_timeout": False,
            "serializers": dict.fromkeys(
                ("application/json", "application/vnd.elasticsearch+json"), _FlatHits()
            ),
        }
        if self._login:
            arguments.update(self._login)
        elif self._is_trusted() and not any(name in arguments for name in _AUTH_ARGS):
            key, user = os.environ.get("ELASTICSEARCH_API_KEY"), os.environ.get("ELASTICSEARCH_USERNAME")
            if key:
                arguments["api_key"] = key
            elif user:
                arguments["basic_auth"] = (user, os.environ.get("ELASTICSEARCH_PASSWORD", ""))
        ca_certs = os.environ.get("ELASTICSEARCH_CA_CERTS")
        if ca_certs and any(url.startswith("https:") for url in self.urls):
            if not Path(ca_certs).is_file():
                raise InputError(f"ELASTICSEARCH_CA_CERTS: there is no file {ca_certs}")
            arguments.setdefault("ca_certs", ca_certs)
        try:
            return elasticsearch.Elasticsearch(self.urls, **arguments)
        except (TypeError, ValueError, OSError) as error:
            # Not the error's own words: they may quote a credential.
            names = ", ".join(sorted(self.client_args)) or "none given"
            raise InputError(
                f"{self.urls[0]}: the Elasticsearch client refuses its arguments (client_args: {names};"
                f" {type(error).__name__}); see the client's documentation"
            ) from None

    @property
    def hosts(self) -> list[str]:
        """The names of the servers."""
        return [urlsplit(url).hostname or "" for url in self.urls]

    def _is_trusted(self) -> bool:
        """Whether the environment's credentials may be sent: not to where a stranger's checkpoint points."""
        known = {*_NEAR, *re.split(r"[,\s]+", os.environ.get("ELASTICSEARCH_HOSTS", ""))}
        if self.is_named or known.issuperset(self.hosts):
            return True
        if any(os.environ.get(name) for name in ("ELASTICSEARCH_API_KEY", "ELASTICSEARCH_USERNAME")):
            logger.warning(
                "%s: named by a checkpoint or a memory, and not by you: it is not sent the credentials of the"
                " environment. Name it with --data.retriever.url (of zoo predict, --retriever.url) or in"
                " ELASTICSEARCH_HOSTS",
                ", ".join(self.urls),
            )
        return False

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._client is not None and self._client_process == os.getpid():
            self._client.close()
        self._client = None

    def call(
        self,
        action: Callable[[elasticsearch.Elasticsearch], Any],
        tries: int = TRIES,
        expected: Iterable[str] = (),
    ) -> Any:
        """Do one request.

        Args:
            action: the request.
            tries: how often to send it.
            expected: types of server errors that are an answer: {}.

        Raises:
            InputError: the server can't be reached or refuses.
        """
        attempt = 0
        while True:
            answer, error = self._try(action, expected)
            if error is None:
                return answer
            if attempt == tries - 1:
                self._fail(error)
            self._pause(attempt, _cause(error))
            attempt += 1

    def search(self, index: str, items: Sequence[bytes], wanted: str) -> list[dict[str, Any]]:
        """Ask an index several queries; see `exchange`.

        Args:
            index: its name, or a pattern.
            items: the two lines of each query.
            wanted: what the answers shall have, as a `filter_path`.
        """
        return self.exchange(
            index, "_msearch", {"filter_path": f"{wanted},{_SEARCH_TROUBLE}"}, "responses", items
        )

    def exchange(
        self, index: str, action: str, parameters: Mapping[str, str], key: str, items: Sequence[bytes]
    ) -> list[dict[str, Any]]:
        """Send items in one request and return an answer for each; send again only those that failed.

        Args:
            index: its name, or a pattern.
            action: what is asked of it.
            parameters: of the request.
            key: where the response lists its answers.
            items: the lines of each.

        Raises:
            InputError: the server can't be reached, refuses, or fails again and again.
        """
        path = f"/{quote(index, safe='*,')}/{action}"
        answers: list[dict[str, Any]] = [{}] * len(items)
        waiting = list(range(len(items)))

        def send(client: elasticsearch.Elasticsearch) -> Any:
            body = b"".join([items[position] for position in waiting])
            return client.perform_request("POST", path, params=parameters, headers=_NDJSON, body=body)

        cause = ""
        for attempt in range(TRIES):
            if attempt > 0:
                self._pause(attempt - 1, cause)
            response, error = self._try(send)
            got = response.get(key) if isinstance(response, dict) else None
            if error is not None:
                cause = _cause(error)
            elif not isinstance(got, list) or len(got) != len(waiting):
                cause = "an answer of another form than Elasticsearch's"
            else:
                failed = []
                for position, answer in zip(waiting, got, strict=True):
                    answers[position] = answer.get("create", answer)
                    status, trouble = _trouble(answers[position])
                    if trouble is None:
                        continue
                    if not _is_temporary(status):
                        raise self.error(f"{path}: refused: {trouble}")
                    failed.append(position)
                    cause = trouble
                waiting = failed
                if not waiting:
                    return answers
        raise self.error(f"{path}: no success after {TRIES} tries: {cause}")

    def _try(
        self, action: Callable[[elasticsearch.Elasticsearch], Any], expected: Iterable[str] = ()
    ) -> tuple[Any, _Error | None]:
        """Do a request once: the answer, or the error if another try may help."""
        try:
            return action(self._connected()).body, None
        except (elasticsearch.ApiError, elasticsearch.TransportError) as error:
            if isinstance(error, elasticsearch.ApiError) and _reason(error.body)[0] in expected:
                return {}, None
            if not _may_pass(error):
                self._fail(error)
            return None, error

    def in_threads(self, work: Callable[[int], None], starts: Sequence[int]) -> None:
        """Do batches of requests, some at a time; the first error ends it."""
        self._connected()  # before the threads, who share it
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                for _ in pool.map(work, starts):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _pause(self, attempt: int, cause: str) -> None:
        """Wait, twice as long each time; randomly, so that many clients don't come back together."""
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)
        logger.info("%s: %s; next try in %.1f s", self.urls[0], cause, seconds)
        time.sleep(seconds)

    def error(self, message: str) -> InputError:
        """An error that names the server."""
        return InputError(f"{', '.join(self.urls)}: {message}")

    def _fail(self, error: _Error) -> NoReturn:
        """Turn the client's error into one line that says what to do."""
        if isinstance(error, elasticsearch.ApiError):
            message = _explain_refusal(error)
        else:
            message = _explain_silence(error, self.timeout)
        # Without the cause: it may hold the request with its headers.
        raise self.error(message) from None


def reads_answers(method: MethodT) -> MethodT:
    """For methods of retrievers that read what a server answers: JSON of another form is not Elasticsearch's.

    Raises:
        InputError: of the method, names the server.
    """

    @wraps(method)
    def reading(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except InputError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
            raise self.server.error(
                f"an answer of another form than Elasticsearch's ({type(error).__name__}: {reason(error)}); is there"
                " something between, or another server?"
            ) from error

    return reading  # type: ignore[return-value]


def _is_temporary(status: int) -> bool:
    return status == 429 or status >= 500


def _may_pass(error: _Error) -> bool:
    if isinstance(error, elasticsearch.ApiError):
        return _is_temporary(error.meta.status)
    return isinstance(error, _TEMPORARY) and not isinstance(error, elasticsearch.SSLError)


def _cause(error: _Error) -> str:
    if isinstance(error, elasticsearch.ApiError):
        return f"{error.meta.status} {_reason(error.body)[1]}"
    return f"{type(error).__name__} {_first_line(error.message)}"


def _trouble(answer: Mapping[str, Any]) -> tuple[int, str | None]:
    """The status of one answer among many, and what went wrong if something did."""
    status = int(answer.get("status", 503))
    if "error" in answer:
        kind, said = _reason(answer)
        # Of a document that is to be created: it is there already.
        return status, None if status == 409 else f"{status} {kind}: {said}"
    if status >= 300:
        return status, str(status)
    if answer.get("timed_out"):
        return 503, "the server stopped the search before its end"
    shards = answer.get("_shards", {})
    if shards.get("failed"):
        reasons = [one["reason"].get("reason") for one in shards.get("failures", [])]
        return 503, f"{shards['failed']} shards failed: {_first_line(str(reasons[:1]))}"
    return status, None


def _reason(body: Any) -> tuple[str, str]:
    """Type and reason of a server's error, on one line."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "", _first_line(str(error or body))
    root = (error.get("root_cause") or [error])[0]
    return str(root.get("type", error.get("type"))), _first_line(str(root.get("reason", error.get("reason"))))


def _first_line(text: str) -> str:
    return excerpt((text.strip().splitlines() or [""])[0])


def _explain_refusal(error: elasticsearch.ApiError) -> str:
    """What to do about an error that a server answered."""
    kind, said = _reason(error.body)
    status = error.meta.status
    if kind == "media_type_header_exception":
        found = re.search(r"either version (\d+)", said)
        major = int(found[1]) if found else 8
        client = ".".join(map(str, elasticsearch.__version__))
        return (
            f"the server is version {major} and the client {client};"
            f' pip install "elasticsearch>={major},<{major + 1}"'
        )
    if status == 401:
        return f"the server refuses the credentials or wants some; {_AUTH_HELP}"
    if status == 403:
        return f"the credentials don't allow this ({said}); ask for the right or use others"
    if kind == "index_not_found_exception":
        named = re.search(r"\[(.+?)\]", said)
        return f"there is no index {named[1] if named else ''}; build it with `zoo index`"
    if error.meta.headers.get("x-elastic-product") != "Elasticsearch":
        return f"this is not Elasticsearch (it answers {status}); check host and port"
    return f"Elasticsearch answers {status} {kind}: {said}"


def _explain_silence(error: elasticsearch.TransportError, timeout: float) -> str:
    """What to do where no server answered, or none that is understood."""
    if isinstance(error, elasticsearch.SSLError):
        if "WRONG_VERSION_NUMBER" in error.message or "record layer failure" in error.message:
            return "the server speaks no TLS; use http:// in the URL"
        return (
            "TLS refused: the server's certificate isn't trusted;"
            " set ELASTICSEARCH_CA_CERTS to the PEM file of its authority"
            f" ({_first_line(error.message)})"
        )
    if isinstance(error, elasticsearch.ConnectionTimeout):
        return f"no answer in {timeout:g} s; is the server busy? A longer timeout may help"
    if isinstance(error, elasticsearch.SerializationError):
        return "this is not Elasticsearch (its answer can't be read); check host and port"
    return (
        "no connection; is Elasticsearch running there, and is it http or https?"
        f" ({_first_line(error.message)})"
    )


class _Hidden(dict[str, Any]):
    """A dictionary that doesn't print its values."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: ...' for name in self)}}}"


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """Part a URL from the user name and password in it.

    Returns:
        The URL without them, and them if there are.

    Raises:
        InputError: the URL lacks scheme, host or port.
    """
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        shown = url.rpartition("@")[2]
        raise InputError(f"url {shown!r}: give scheme, host and port, such as http://localhost:9200")
    login = None
    if parts.username is not None:
        login = (unquote(parts.username), unquote(parts.password or ""))
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")), login


def without_secrets(client_args: Mapping[str, Any]) -> dict[str, Any]:
    """The client's arguments that may be recorded."""
    return {name: value for name, value in client_args.items() if name not in _SECRET_ARGS}


class _FlatHits(elasticsearch.JsonSerializer):
    """Reads JSON, the sort values of a query's hits as one list: score, row, score, row ...

    A list and a dictionary for each hit would cost the collector of garbage more time than all the rest of
    the client. A quotation mark inside a string is escaped, so only hits look like this.
    """

    def json_loads(self, data: bytes) -> Any:
        if b'"hits":[{"sort":[' in data:
            data = data.replace(b']},{"sort":[', b",")
            data = data.replace(b'"hits":[{"sort":[', b'"hits":[').replace(b"]}]}", b"]}")
        return super().json_loads(data)
