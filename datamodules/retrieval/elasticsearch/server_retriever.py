"""Indexes of our own on an Elasticsearch server: how one is built, grown, opened and searched.

An own index holds the rows of one memory. It ranks by score and, where scores are equal, by row number. A
search asks for the two sort values of a hit and for nothing else, so the server never opens a stored
document: twice the throughput of asking for `_id`.
"""

from __future__ import annotations

import json
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from tqdm import tqdm

from datamodules.core.errors import InputError
from datamodules.retrieval.base import Collection, Hits, Retriever
from datamodules.retrieval.elasticsearch.connection import (
    FIRST_TRIES,
    ServerConnection,
    reads_answers,
    without_secrets,
)

log = logging.getLogger(__name__)

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
# After so many seconds the user is told what is waited for.
_PATIENCE = 20.0
# What a server answers where an index is to be made that is there already.
_IS_THERE = ("resource_already_exists_exception", "invalid_index_name_exception")

_encode = json.JSONEncoder(ensure_ascii=False).encode


class ServerRetriever(Retriever):
    """A retriever whose own indexes lie on an Elasticsearch 8 or 9 server.

    A kind of retriever says what a document holds (`_mapping`, `_documents`) and how it is asked for.

    Args:
        url: one server or several of a cluster, with scheme, host and port.
        index_prefix: own indexes are called `<prefix>-<16 digits>`.
        shards: of an own index. More than one ranks words alike (global term statistics) but costs a round
            more.
        replicas: of an own index.
        timeout: seconds that a request may take.
        client_args: further arguments of `elasticsearch.Elasticsearch`.
        batch_size: queries in one request.
        threads: requests under way at the same time.

    Raises:
        InputError: an argument is out of range.
    """

    def __init__(
        self,
        url: str | list[str] = "http://localhost:9200",
        index_prefix: str = "memory-zoo",
        shards: int = 1,
        replicas: int = 0,
        timeout: float = 60.0,
        client_args: dict[str, Any] | None = None,
        *,
        batch_size: int,
        threads: int,
    ) -> None:
        for name, value, least in (
            ("shards", shards, 1),
            ("replicas", replicas, 0),
            ("batch_size", batch_size, 1),
            ("threads", threads, 1),
        ):
            if value < least:
                raise InputError(f"{name}={value}: use {least} or more")
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,199}", index_prefix):
            raise InputError(
                f"index_prefix={index_prefix!r}: use lower-case letters, digits, '.', '_' and '-'"
            )
        self.server = ServerConnection(url, timeout, client_args, threads)
        self.index_prefix = index_prefix
        self.shards = shards
        self.replicas = replicas
        self.batch_size = batch_size
        self._forget()

    def _forget(self) -> None:
        # The name of the open index, its shards and what a search may ask for.
        self._name: str | None = None
        self._window = _DEFAULT_WINDOW
        self._global_statistics = False

    def _init_args(self) -> dict[str, Any]:
        urls = self.server.urls
        return {
            "url": urls[0] if len(urls) == 1 else list(urls),
            "index_prefix": self.index_prefix,
            "shards": self.shards,
            "replicas": self.replicas,
            "timeout": self.server.timeout,
            "client_args": without_secrets(self.server.client_args) or None,
        }

    def close(self) -> None:
        """Close the connections."""
        self.server.close()
        self._forget()

    @reads_answers
    def index(self, collection: Collection, folder: Path, progress: bool = True) -> None:
        """Build the index on the server and open it; see `Retriever.index`.

        A whole index of the same fingerprint is used as it is. One that was left half loaded is completed:
        a document's `_id` is its row number, so what is there already stays and nothing is there twice,
        even if two processes load the same index at the same time.

        The documents have the ids and labels of the collection, so that the index describes itself. Nothing
        is kept in `folder`.

        Raises:
            InputError: the server can't be reached or refuses, or an index of that name isn't ours.
        """
        name = self._own_name(collection.fingerprint)
        meta = self._create(name, collection)
        if not meta["complete"]:
            self._load(name, collection, 0, progress)
            self._finish(name, meta)
        self.open(folder, collection.fingerprint)

    @reads_answers
    def add(self, collection: Collection, start_row: int, folder: Path, progress: bool = True) -> None:
        """Build the index of a collection that has grown; see `Retriever.add`.

        The server clones the open index, which copies no files where its disk knows hard links, and the new
        rows are loaded into the clone. In one index for both collections the new rows would change the term
        statistics, and so the rankings of the old one. The open index takes no more writes from then on.

        If it is interrupted, calling it again with the same arguments completes the clone.

        Raises:
            InputError: the open index hasn't `start_row` rows, an index of the new name isn't ours, or the
                server can't be reached or refuses.
        """
        name, source = self._own_name(collection.fingerprint), self._opened()
        old = self._own_meta(source)
        if old["count"] != start_row:
            raise self.server.error(
                f"index {source} has {old['count']} rows, but rows from {start_row} are to be added"
            )
        grown = {"fingerprint": collection.fingerprint, "count": len(collection.texts), "complete": False}
        meta = {**old, **grown}
        there = self._clone(source, name)
        if there["fingerprint"] == old["fingerprint"]:
            self._write_meta(name, meta)
        elif there != meta and there != {**meta, "complete": True}:
            raise self._not_ours(name)
        elif there["complete"]:
            return
        self._load(name, collection, start_row, progress)
        self._finish(name, meta)

    @reads_answers
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
            raise self.server.error(
                f"index {name} belongs to another collection; build it again with `zoo index`"
            )
        if not meta["complete"]:
            raise self.server.error(f"index {name} is half loaded; `zoo index` completes it")
        count = self._count(name)
        if count != meta["count"]:
            raise self.server.error(
                f"index {name} has {count} of its {meta['count']} documents;"
                " delete it and run `zoo index` again"
            )
        self._open_index(name)

    @abstractmethod
    def _mapping(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings and mappings of an own index, beyond those that all have."""

    @abstractmethod
    def _documents(self, name: str, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yields the position of each text, in any order, and the document's further fields as JSON.

        The fields begin with a comma; every document has its row, text, id and label.
        """

    def _own_name(self, fingerprint: str) -> str:
        if self.existing_index is not None:
            raise InputError(
                f"index={self.existing_index!r} is read only: leave `index` out to build an index of our own"
            )
        return f"{self.index_prefix}-{fingerprint[:16]}"

    def _own_meta(self, name: str) -> dict[str, Any]:
        """What we noted in an own index about it."""
        mappings = self.server.call(lambda client: client.indices.get_mapping(index=name), tries=FIRST_TRIES)
        meta = next(iter(mappings.values()))["mappings"].get("_meta", {}).get("memory_zoo")
        if not isinstance(meta, dict):
            raise self.server.error(f"index {name} was not made by memory-zoo; choose another index_prefix")
        return meta

    def _write_meta(self, name: str, meta: dict[str, Any]) -> None:
        self.server.call(lambda client: client.indices.put_mapping(index=name, meta={"memory_zoo": meta}))

    def _not_ours(self, name: str) -> InputError:
        return self.server.error(
            f"index {name} belongs to another collection; delete it or choose another index_prefix"
        )

    def _create(self, name: str, collection: Collection) -> dict[str, Any]:
        """Make the empty index unless it is there; returns what its `_meta` says."""
        meta: dict[str, Any] = {
            "format": 1,
            "fingerprint": collection.fingerprint,
            "ranking": self.ranking.describe(),
            "count": len(collection.texts),
            "complete": False,
        }
        own_settings, own_mappings = self._mapping()
        settings = {
            "number_of_shards": self.shards,
            "number_of_replicas": 0,
            "refresh_interval": -1,
            **own_settings,
        }
        mappings = {"dynamic": False, "_meta": {"memory_zoo": meta}, **own_mappings}
        created = self.server.call(
            lambda client: client.indices.create(index=name, settings=settings, mappings=mappings),
            tries=FIRST_TRIES,
            expected=_IS_THERE,
        )
        if created:
            return meta
        there = self._own_meta(name)
        if there["fingerprint"] != meta["fingerprint"] or there["count"] != meta["count"]:
            raise self._not_ours(name)
        return there

    def _clone(self, source: str, name: str) -> dict[str, Any]:
        """Make a copy of an own index unless it is there; returns what its `_meta` says.

        That of a fresh copy says what the source's says.
        """
        # The server clones only what can't change meanwhile.
        block = {"blocks.write": True}
        self.server.call(lambda client: client.indices.put_settings(index=source, settings=block))
        settings = {"index.blocks.write": None, "index.number_of_replicas": 0, "index.refresh_interval": -1}
        self.server.call(
            lambda client: client.indices.clone(index=source, target=name, settings=settings),
            expected=_IS_THERE,
        )
        return self._own_meta(name)

    def _load(self, name: str, collection: Collection, start_row: int, progress: bool) -> None:
        """Write the documents of the rows from `start_row` on that an interrupted load has not written yet."""
        # One after another in one order: what is there is the beginning, and perhaps a part of the next chunk.
        is_there = self.server.call(
            lambda client: client.indices.refresh(index=name), expected=("index_not_found_exception",)
        )
        written = self._count(name) - start_row if is_there else 0  # one that has gone is noticed in the end
        done = 0
        texts = collection.texts[start_row:] if start_row else collection.texts
        ids, labels = collection.ids, collection.labels

        def lines() -> Iterator[bytes]:
            for position, fields in self._documents(name, texts):
                row = start_row + position
                source = f'{{"row":{row},"text":{as_json(texts[position])}'
                if ids is not None:
                    source += f',"id":{as_json(ids[row])}'
                if labels is not None:
                    source += f',"label":{as_json(labels[row])}'
                yield f'{{"create":{{"_id":"{row}"}}}}\n{source}{fields}}}\n'.encode()

        wanted = {"filter_path": "items.create.status,items.create.error.type,items.create.error.reason"}
        with tqdm(
            total=len(texts), desc=f"index {name}", unit=" rows", disable=None if progress else True
        ) as bar:
            for chunk in _chunks(lines()):
                done += len(chunk)
                if done > written:
                    self.server.exchange(name, "_bulk", wanted, "items", chunk)
                bar.update(len(chunk))

    def _finish(self, name: str, meta: dict[str, Any]) -> None:
        """Merge a loaded index, set it up for searching, and note that it is complete."""
        call = self.server.call
        mappings = call(lambda client: client.indices.get_mapping(index=name))
        there = next(iter(mappings.values()))["mappings"].get("_meta", {}).get("memory_zoo")
        if there != meta:
            # A server makes an index that is written to and is not there, with a mapping of its own.
            raise self.server.error(
                f"index {name} was deleted or replaced while it was being loaded; delete it and run the same command"
                " again"
            )
        seconds = max(self.server.timeout, _MERGE_SECONDS)
        settings = {
            "refresh_interval": None,
            "number_of_replicas": self.replicas,
            "max_result_window": max(_DEFAULT_WINDOW, meta["count"]),
        }
        call(lambda client: client.indices.refresh(index=name))
        waiting_for = (
            f"index {name} is loaded; the server merges its segments. From version 8.19 on it waits with that while"
            " its disk is more than 95 % full (GET _cat/allocation): then free some room"
        )
        with _told_if_long(waiting_for):
            call(
                lambda client: client.options(request_timeout=seconds).indices.forcemerge(
                    index=name, max_num_segments=1
                )
            )
        call(lambda client: client.indices.put_settings(index=name, settings=settings))
        call(lambda client: client.indices.refresh(index=name))
        count = self._count(name)
        if count != meta["count"]:
            raise self.server.error(
                f"index {name} has {count} documents after loading {meta['count']}; delete it and run again"
            )
        self._write_meta(name, {**meta, "complete": True})

    def _count(self, name: str) -> int:
        count: int = self.server.call(lambda client: client.count(index=name))["count"]
        return count

    def _open_index(self, name: str) -> None:
        """Read from the index's settings how it is to be searched."""
        answer = self.server.call(
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
            answers = self.server.search(name, [item(query) for query in batch], "responses.hits.hits.sort")
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

        self.server.in_threads(search_batch, range(0, len(queries), self.batch_size))


@contextmanager
def _told_if_long(what: str) -> Iterator[None]:
    """Say what is waited for, once it has taken long."""
    timer = Timer(_PATIENCE, log.info, [what])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def as_json(text: str | None) -> str:
    """The text as a JSON string that can be encoded, null for None."""
    return _encode(text if text is None or text.isascii() else whole_characters(text))


def whole_characters(text: str) -> str:
    """The text with lone surrogates, which no encoding has, replaced by U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
