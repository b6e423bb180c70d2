"""What retrievers on an Elasticsearch server share: the connection, patience, and indexes of our own.

An own index holds the rows of one memory. It ranks by score and, where scores are equal, by row number. A
search asks for the two sort values of a hit and for nothing else, so the server never opens a stored
document: twice the throughput of asking for `_id`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import elastic_transport
import elasticsearch
from tqdm import tqdm

from datamodules.errors import InputError
from datamodules.retrieval.base import Hits, Retriever

logger = logging.getLogger(__name__)

#: How often a request is sent before the server counts as gone, and how often on first contact.
TRIES = 9
FIRST_TRIES = 3
#: Seconds before the second try; doubled for each further one up to the longest, less a random part.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 20.0
#: How a query of an own index ends: sort values only, no stored fields, no total.
SORTED = '"sort":["_score","row"],"_source":false,"stored_fields":"_none_","track_total_hits":false}\n'
#: The mapping of the row number: only sorted by, so only stored by column.
ROW = {"type": "integer", "index": False}
NO_HITS: dict[str, list[Any]] = {"hits": []}

_BULK_ROWS = 2000
_BULK_BYTES = 8_000_000
# What a cluster allows as k when an index doesn't say otherwise.
_DEFAULT_WINDOW = 10_000
# Merging a large index takes minutes and can't be done in parts.
_MERGE_SECONDS = 3600.0
_NDJSON = {"accept": "application/json", "content-type": "application/x-ndjson"}
_SEARCH_TROUBLE = (
    "responses.status,responses.timed_out,responses._shards.failed,responses._shards.failures.reason,"
    "responses.error.type,responses.error.reason,responses.error.root_cause"
)
_TEMPORARY = (
    elasticsearch.ConnectionError,
    elasticsearch.ConnectionTimeout,
    elasticsearch.SerializationError,
)
_SECRET_ARGS = frozenset(
    {"api_key", "basic_auth", "bearer_auth", "http_auth", "headers", "opaque_id", "ssl_context"}
)
_AUTH_ARGS = ("api_key", "basic_auth", "bearer_auth", "http_auth")
_AUTH_HELP = (
    "set ELASTICSEARCH_API_KEY, or ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD, in the environment"
)


class ServerRetriever(Retriever):
    """A retriever whose own indexes lie on an Elasticsearch 8 or 9 server.

    A kind of retriever says what a document holds (`_mapping`, `_documents`) and how it is asked for.

    Args:
        url: one server or several of a cluster, with scheme, host and port.
        index_prefix: own indexes are called `<prefix>-<16 digits>`.
        shards: of an own index.
        replicas: of an own index.
        batch_size: queries in one request.
        threads: requests under way at the same time.
        timeout: seconds that a request may take.
        client_args: further arguments of `elasticsearch.Elasticsearch`.

    Raises:
        InputError: an argument is out of range.
    """

    def __init__(
        self,
        url: str | list[str],
        index_prefix: str,
        shards: int,
        replicas: int,
        batch_size: int,
        threads: int,
        timeout: float,
        client_args: dict[str, Any] | None,
    ) -> None:
        pairs = [split_credentials(one) for one in ([url] if isinstance(url, str) else url)]
        if not pairs:
            raise InputError("url: give at least one, such as http://localhost:9200")
        self.urls = [pair[0] for pair in pairs]
        for name, value, least in (
            ("shards", shards, 1),
            ("replicas", replicas, 0),
            ("batch_size", batch_size, 1),
            ("threads", threads, 1),
        ):
            if value < least:
                raise InputError(f"{name}={value}: use {least} or more")
        if not timeout > 0:
            raise InputError(f"timeout={timeout}: give a number of seconds above 0")
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,199}", index_prefix):
            raise InputError(
                f"index_prefix={index_prefix!r}: use lower-case letters, digits, '.', '_' and '-'"
            )
        self.index_prefix = index_prefix
        self.shards = shards
        self.replicas = replicas
        self.batch_size = batch_size
        self.threads = threads
        self.timeout = timeout
        self.client_args = _Hidden(client_args or {})
        logins = [login for _, login in pairs if login is not None]
        self._login = _Hidden({"basic_auth": logins[0]} if logins else {})
        self._client: elasticsearch.Elasticsearch | None = None
        self._client_process = 0
        self._forget()

    def _forget(self) -> None:
        # The name of the open index, its shards and what a search may ask for.
        self._name: str | None = None
        self._window = _DEFAULT_WINDOW
        self._global_statistics = False

    def _describe_server(self) -> dict[str, Any]:
        """Arguments that make this specification again, without any credential."""
        return {
            "url": self.urls[0] if len(self.urls) == 1 else list(self.urls),
            "index_prefix": self.index_prefix,
            "shards": self.shards,
            "replicas": self.replicas,
            "timeout": self.timeout,
            "client_args": without_secrets(self.client_args) or None,
        }

    def __getstate__(self) -> dict[str, Any]:
        """The specification and the name of the open index: neither connection nor credential."""
        hidden = {"client_args": _Hidden(without_secrets(self.client_args)), "_login": _Hidden({})}
        return {**self.__dict__, **hidden, "_client": None, "_client_process": 0}

    # -----------------------------------------------------------------------------------------------------
    # Own indexes

    def index(
        self,
        texts: Sequence[str],
        folder: Path,
        fingerprint: str,
        progress: bool = True,
        *,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | None = None,
    ) -> None:
        """Build the index of `texts` on the server and open it; see `Retriever.index`.

        A whole index of the same fingerprint is used as it is. One that was left half loaded is completed:
        a document's `_id` is its row number, so what is there already stays and nothing is there twice,
        even if two processes load the same index at the same time.

        Args:
            texts: the collection.
            folder: not used; the index lies on the server.
            fingerprint: of the collection and the ranking; the index is named by it.
            progress: show a progress bar on standard error.
            ids: an id for each row, kept in the documents so that the index describes itself.
            labels: a label for each row, kept likewise.

        Raises:
            InputError: the server can't be reached or refuses, or an index of that name isn't ours.
        """
        name = self._own_name(fingerprint)
        meta = self._create(name, fingerprint, len(texts))
        if not meta["complete"]:
            self._load(name, texts, 0, progress, ids, labels)
            self._finish(name, meta)
        self.open(folder, fingerprint)

    def add(
        self,
        texts: Sequence[str],
        start_row: int,
        folder: Path,
        fingerprint: str,
        progress: bool = True,
        *,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | None = None,
    ) -> None:
        """Build the index of a collection that has grown; see `Retriever.add`.

        The server clones the open index, which copies no files where its disk knows hard links, and the new
        rows are loaded into the clone. In one index for both collections the new rows would change the term
        statistics, and so the rankings of the old one. The open index takes no more writes from then on.

        If it is interrupted, calling it again with the same arguments completes the clone.

        Args:
            texts: the grown collection.
            start_row: how many of its texts the open index has; they come first.
            folder: not used; the index lies on the server.
            fingerprint: of the grown collection and the ranking; the new index is named by it.
            progress: show a progress bar on standard error.
            ids: an id for each row.
            labels: a label for each row.

        Raises:
            InputError: the open index hasn't `start_row` rows, an index of the new name isn't ours, or the
                server can't be reached or refuses.
        """
        source, name = self._opened(), self._own_name(fingerprint)
        old = self._own_meta(source)
        if old["count"] != start_row:
            raise self._error(
                f"index {source} has {old['count']} rows, but rows from {start_row} are to be added"
            )
        meta = {**old, "fingerprint": fingerprint, "count": len(texts), "complete": False}
        there = self._clone(source, name)
        if there["fingerprint"] == old["fingerprint"]:
            self._call(lambda client: client.indices.put_mapping(index=name, meta={"memory_zoo": meta}))
        elif there != meta and there != {**meta, "complete": True}:
            raise self._error(
                f"index {name} belongs to another collection; delete it or choose another index_prefix"
            )
        elif there["complete"]:
            return
        new = slice(start_row, None)
        self._load(name, texts[new], start_row, progress, ids and ids[new], labels and labels[new])
        self._finish(name, meta)

    def open(self, folder: Path, fingerprint: str) -> None:
        """Open the index of this fingerprint on the server; see `Retriever.open`.

        Raises:
            InputError: no such index, one of another collection, a half loaded or damaged one, or the server
                can't be reached.
        """
        self._forget()
        name = self._own_name(fingerprint)
        meta = self._own_meta(name)
        if meta["fingerprint"] != fingerprint:
            raise self._error(f"index {name} belongs to another collection; build it again with `zoo index`")
        if not meta["complete"]:
            raise self._error(f"index {name} is half loaded; `zoo index` completes it")
        count = self._call(lambda client: client.count(index=name))["count"]
        if count != meta["count"]:
            raise self._error(
                f"index {name} has {count} of its {meta['count']} documents;"
                " delete it and run `zoo index` again"
            )
        self._open_index(name)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None and self._client_process == os.getpid():
            self._client.close()
        self._client = None
        self._forget()

    def _own_name(self, fingerprint: str) -> str:
        return f"{self.index_prefix}-{fingerprint[:16]}"

    def _own_meta(self, name: str) -> dict[str, Any]:
        mappings = self._call(lambda client: client.indices.get_mapping(index=name), tries=FIRST_TRIES)
        meta = next(iter(mappings.values()))["mappings"].get("_meta", {}).get("memory_zoo")
        if not isinstance(meta, dict):
            raise self._error(f"index {name} was not made by memory-zoo; choose another index_prefix")
        return meta

    def _create(self, name: str, fingerprint: str, count: int) -> dict[str, Any]:
        """Make the empty index unless it is there; returns what its `_meta` says."""
        meta: dict[str, Any] = {
            "format": 1,
            "fingerprint": fingerprint,
            "ranking": self.ranking.describe(),
            "count": count,
            "complete": False,
        }
        settings, mappings = self._mapping()
        try:
            self._call(
                lambda client: client.indices.create(
                    index=name,
                    settings={
                        "number_of_shards": self.shards,
                        "number_of_replicas": 0,
                        "refresh_interval": -1,
                        **settings,
                    },
                    mappings={"dynamic": False, "_meta": {"memory_zoo": meta}, **mappings},
                ),
                tries=FIRST_TRIES,
                expected=("resource_already_exists_exception", "invalid_index_name_exception"),
            )
            return meta
        except _Expected:
            there = self._own_meta(name)
        if there["fingerprint"] != fingerprint or there["count"] != count:
            raise self._error(
                f"index {name} belongs to another collection; delete it or choose another index_prefix"
            )
        return there

    @abstractmethod
    def _mapping(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings and mappings of an own index, beyond those that all have."""

    @abstractmethod
    def _documents(self, name: str, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yields the position of each text, in any order, and the document's further fields as JSON.

        The fields begin with a comma; every document has its row, text, id and label.
        """

    def _clone(self, source: str, name: str) -> dict[str, Any]:
        """Make a copy of an own index unless it is there; returns what its `_meta` says.

        That of a fresh copy says what the source's says.
        """
        # The server clones only what can't change meanwhile.
        self._call(lambda client: client.indices.put_settings(index=source, settings={"blocks.write": True}))
        settings = {"index.blocks.write": None, "index.number_of_replicas": 0, "index.refresh_interval": -1}
        self._call(
            lambda client: client.indices.clone(index=source, target=name, settings=settings),
            expected=("resource_already_exists_exception", "invalid_index_name_exception"),
            otherwise={},
        )
        return self._own_meta(name)

    def _load(
        self,
        name: str,
        texts: Sequence[str],
        start_row: int,
        progress: bool,
        ids: Sequence[str] | None,
        labels: Sequence[str | None] | None,
    ) -> None:
        for what, values in (("ids", ids), ("labels", labels)):
            if values is not None and len(values) != len(texts):
                raise InputError(f"{what}: {len(values)} values for {len(texts)} texts; give one for each")

        def lines() -> Iterator[bytes]:
            for position, fields in self._documents(name, texts):
                row = start_row + position
                source = f'{{"row":{row},"text":{as_json(texts[position])}'
                if ids is not None:
                    source += f',"id":{as_json(ids[position])}'
                if labels is not None:
                    source += f',"label":{as_json(labels[position])}'
                yield f'{{"create":{{"_id":"{row}"}}}}\n{source}{fields}}}\n'.encode()

        with tqdm(
            total=len(texts), desc=f"index {name}", unit=" rows", disable=None if progress else True
        ) as bar:
            for chunk in _chunks(lines()):
                self._exchange(
                    f"/{_path(name)}/_bulk",
                    {"filter_path": "items.create.status,items.create.error.type,items.create.error.reason"},
                    "items",
                    chunk,
                )
                bar.update(len(chunk))

    def _finish(self, name: str, meta: dict[str, Any]) -> None:
        self._call(lambda client: client.indices.refresh(index=name))
        self._call(
            lambda client: client.options(
                request_timeout=max(self.timeout, _MERGE_SECONDS)
            ).indices.forcemerge(index=name, max_num_segments=1)
        )
        self._call(
            lambda client: client.indices.put_settings(
                index=name,
                settings={
                    "refresh_interval": None,
                    "number_of_replicas": self.replicas,
                    "max_result_window": max(_DEFAULT_WINDOW, meta["count"]),
                },
            )
        )
        self._call(lambda client: client.indices.refresh(index=name))
        count = self._call(lambda client: client.count(index=name))["count"]
        if count != meta["count"]:
            raise self._error(
                f"index {name} has {count} documents after loading {meta['count']}; delete it and run again"
            )
        whole = {"memory_zoo": {**meta, "complete": True}}
        self._call(lambda client: client.indices.put_mapping(index=name, meta=whole))

    def _open_index(self, name: str) -> None:
        """Read from the index's settings how it is to be searched."""
        answer = self._call(
            lambda client: client.indices.get_settings(index=name, flat_settings=True, include_defaults=True)
        )
        per_index = [{**one.get("defaults", {}), **one["settings"]} for one in answer.values()]
        self._global_statistics = sum(int(one["index.number_of_shards"]) for one in per_index) > 1
        self._window = min(int(one.get("index.max_result_window", _DEFAULT_WINDOW)) for one in per_index)
        self._name = name

    def _opened(self) -> str:
        if self._name is None:
            raise RuntimeError("no index is open: call index() or open() first")
        return self._name

    def _fill(
        self,
        hits: Hits,
        queries: Sequence[int],
        item: Callable[[int], bytes],
        exclude: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Ask the open index for the best rows of queries.

        Args:
            hits: where their rows and scores go.
            queries: their numbers in `hits`.
            item: the two lines of a query, the last of which ends with `SORTED`.
            exclude: rows to drop from what each query of `hits` found.
        """
        name = self._opened()

        def search_batch(start: int) -> None:
            batch = queries[start : start + self.batch_size]
            answers = self._search_items(name, [item(query) for query in batch], "responses.hits.hits.sort")
            for query, answer in zip(batch, answers, strict=True):
                flat = answer.get("hits", NO_HITS)["hits"]
                if flat and isinstance(flat[0], dict):  # a gateway wrote the JSON anew
                    flat = [value for hit in flat for value in hit["sort"]]
                found_scores, found_rows = flat[::2], flat[1::2]
                if exclude is not None and len(exclude[query]):
                    left_out = {int(row) for row in exclude[query]}
                    kept = [place for place, row in enumerate(found_rows) if row not in left_out]
                    kept = kept[: hits.rows.shape[1]]
                    found_scores = [found_scores[place] for place in kept]
                    found_rows = [found_rows[place] for place in kept]
                hits.scores[query, : len(found_scores)] = found_scores
                hits.rows[query, : len(found_rows)] = found_rows

        self._in_threads(search_batch, range(0, len(queries), self.batch_size))

    def _search_items(self, name: str, items: Sequence[bytes], hits: str) -> list[dict[str, Any]]:
        parameters = {"filter_path": f"{hits},{_SEARCH_TROUBLE}"}
        return self._exchange(f"/{_path(name)}/_msearch", parameters, "responses", items)

    def _in_threads(self, work: Callable[[int], None], starts: Sequence[int]) -> None:
        """Do the batches, some at a time; the first error ends it."""
        self._connected()  # before the threads, who share it
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                for _ in pool.map(work, starts):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    # -----------------------------------------------------------------------------------------------------
    # Talking to the server

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
        elif not any(name in arguments for name in _AUTH_ARGS):
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

    def _call(
        self,
        action: Callable[[elasticsearch.Elasticsearch], Any],
        tries: int = TRIES,
        expected: Iterable[str] = (),
        otherwise: Any = None,
    ) -> Any:
        """Do one request, again after a pause while the trouble looks temporary.

        Args:
            action: the request.
            tries: how often to send it.
            expected: types of server errors that are an answer.
            otherwise: returned for such an answer; None raises `_Expected`.
        """
        client = self._connected()
        for attempt in range(tries):
            try:
                return action(client).body
            except elasticsearch.ApiError as error:
                kind, _ = _reason(error.body)
                if kind in expected:
                    if otherwise is None:
                        raise _Expected from None
                    return otherwise
                if not _is_temporary(error.meta.status) or attempt == tries - 1:
                    self._explain(error)
                cause = f"{error.meta.status} {kind}"
            except elasticsearch.TransportError as error:
                if isinstance(error, elasticsearch.SSLError) or not isinstance(error, _TEMPORARY):
                    self._explain(error)
                if attempt == tries - 1:
                    self._explain(error)
                cause = type(error).__name__
            self._pause(attempt, cause)
        raise AssertionError("tries must be positive")

    def _exchange(
        self, path: str, parameters: Mapping[str, str], key: str, items: Sequence[bytes]
    ) -> list[dict[str, Any]]:
        """Send items in one request and return an answer for each; send again only those that failed.

        Args:
            path: of the request.
            parameters: of the request.
            key: where the response lists its answers.
            items: the lines of each.
        """
        client = self._connected()
        answers: list[dict[str, Any]] = [{}] * len(items)
        waiting: list[int] = list(range(len(items)))
        cause = ""
        for attempt in range(TRIES):
            try:
                body = b"".join([items[position] for position in waiting])
                response = client.perform_request(
                    "POST", path, params=parameters, headers=_NDJSON, body=body
                ).body
                got = response[key]
                if len(got) != len(waiting):
                    raise KeyError(key)
            except elasticsearch.ApiError as error:
                if not _is_temporary(error.meta.status):
                    self._explain(error)
                cause = f"{error.meta.status} {_reason(error.body)[1]}"
            except elasticsearch.TransportError as error:
                if isinstance(error, elasticsearch.SSLError) or not isinstance(error, _TEMPORARY):
                    self._explain(error)
                cause = f"{type(error).__name__} {_first_line(error.message)}"
            except (KeyError, TypeError):
                cause = "an answer of another form than Elasticsearch's"
            else:
                failed = []
                for position, answer in zip(waiting, got, strict=True):
                    answer = answer.get("create", answer)
                    status, trouble = _trouble(answer)
                    if trouble is None:
                        answers[position] = answer
                    elif _is_temporary(status):
                        failed.append(position)
                        cause = trouble
                    else:
                        raise self._error(f"{path}: refused: {trouble}")
                waiting = failed
                if not waiting:
                    return answers
            if attempt < TRIES - 1:
                self._pause(attempt, cause)
        raise self._error(f"{path}: no success after {TRIES} tries: {cause}")

    def _pause(self, attempt: int, cause: str) -> None:
        """Wait, twice as long each time; randomly, so that many clients don't come back together."""
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)
        logger.info("%s: %s; next try in %.1f s", self.urls[0], cause, seconds)
        time.sleep(seconds)

    def _error(self, message: str) -> InputError:
        return InputError(f"{', '.join(self.urls)}: {message}")

    def _explain(self, error: elasticsearch.ApiError | elasticsearch.TransportError) -> NoReturn:
        """Turn the client's error into one line that says what to do."""
        if isinstance(error, elasticsearch.ApiError):
            kind, reason = _reason(error.body)
            status = error.meta.status
            if kind == "media_type_header_exception":
                found = re.search(r"either version (\d+)", reason)
                major = int(found[1]) if found else 8
                client = ".".join(map(str, elasticsearch.__version__))
                message = (
                    f"the server is version {major} and the client {client};"
                    f' pip install "elasticsearch>={major},<{major + 1}"'
                )
            elif status == 401:
                message = f"the server refuses the credentials or wants some; {_AUTH_HELP}"
            elif status == 403:
                message = f"the credentials don't allow this ({reason}); ask for the right or use others"
            elif kind == "index_not_found_exception":
                named = re.search(r"\[(.+?)\]", reason)
                message = f"there is no index {named[1] if named else ''}; build it with `zoo index`"
            elif error.meta.headers.get("x-elastic-product") != "Elasticsearch":
                message = f"this is not Elasticsearch (it answers {status}); check host and port"
            else:
                message = f"Elasticsearch answers {status} {kind}: {reason}"
        elif isinstance(error, elasticsearch.SSLError):
            if "WRONG_VERSION_NUMBER" in error.message or "record layer failure" in error.message:
                message = "the server speaks no TLS; use http:// in the URL"
            else:
                message = (
                    "TLS refused: the server's certificate isn't trusted;"
                    " set ELASTICSEARCH_CA_CERTS to the PEM file of its authority"
                    f" ({_first_line(error.message)})"
                )
        elif isinstance(error, elasticsearch.UnsupportedProductError):
            message = "this is not Elasticsearch; check host and port"
        elif isinstance(error, elasticsearch.ConnectionTimeout):
            message = f"no answer in {self.timeout:g} s; is the server busy? A longer timeout may help"
        elif isinstance(error, elastic_transport.SerializationError | elasticsearch.SerializationError):
            message = "this is not Elasticsearch (its answer can't be read); check host and port"
        else:
            message = (
                "no connection; is Elasticsearch running there, and is it http or https?"
                f" ({_first_line(error.message)})"
            )
        # Without the cause: it may hold the request with its headers.
        raise self._error(message) from None


# ---------------------------------------------------------------------------------------------------------
# Small parts

_encode = json.JSONEncoder(ensure_ascii=False).encode


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


class _Expected(Exception):
    """The server gave an error that the caller awaits."""


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


def whole_characters(text: str) -> str:
    """The text with lone surrogates, which no encoding has, replaced by U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_json(text: str | None) -> str:
    """The text as a JSON string that can be encoded, null for None."""
    return _encode(text if text is None or text.isascii() else whole_characters(text))


def _path(name: str) -> str:
    return quote(name, safe="*,")


def _chunks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Groups of lines, limited in number and size."""
    chunk: list[bytes] = []
    size = 0
    for line in lines:
        if chunk and (len(chunk) == _BULK_ROWS or size + len(line) > _BULK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += len(line)
    if chunk:
        yield chunk


def _is_temporary(status: int) -> bool:
    return status == 429 or status >= 500


def _trouble(answer: Mapping[str, Any]) -> tuple[int, str | None]:
    """The status of one answer among many, and what went wrong if something did."""
    status = int(answer.get("status", 503))
    if "error" in answer:
        kind, reason = _reason(answer)
        # Of a document that is to be created: it is there already.
        return status, None if status == 409 else f"{status} {kind}: {reason}"
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


def _first_line(text: str, longest: int = 200) -> str:
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= longest else line[: longest - 1] + "…"
