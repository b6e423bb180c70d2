"""Own indexes on an Elasticsearch server, each with the rows of one memory."""

from __future__ import annotations

import json
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.progress import progress_bar
from datamodules.core.types import PlainDict, Size, check_value
from datamodules.corpora.rows import Rows, whole_characters
from datamodules.retrieval.base import ExcludedRows, Hits, Retriever

if TYPE_CHECKING:
    from datamodules.retrieval.elasticsearch.connection import Product

log = logging.getLogger(__name__)

#: The end of a query of an own index: sort values only, which doubles the throughput of a search with `_id`.
SORTED = '"sort":["_score","row"],"_source":false,"stored_fields":"_none_","track_total_hits":false}\n'

_BULK_ROWS = 2000
# Numbers that no document has are noted in the index; with more of them, an index is loaded again.
_MOST_GONE = 10_000
_BULK_BYTES = 8_000_000
# The limit for k in a cluster if an index sets no other.
_DEFAULT_WINDOW = 10_000
# Merging a large index takes minutes and can't be done in parts.
_MERGE_SECONDS = 3600.0
_EXISTS = ("resource_already_exists_exception", "invalid_index_name_exception")

_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True)
class _Notes:
    """The record of an own index in its mapping."""

    fingerprint: str
    #: `Retriever.describe_ranking`, for other programs.
    ranking: PlainDict
    #: the number of documents.
    count: int
    #: the numbers below the last one that no document has.
    gone: list[int]
    complete: bool = False

    @classmethod
    def of(cls, mapping: PlainDict) -> _Notes | None:
        """Return the notes in a mapping; None if there are none."""
        notes = mapping.get("_meta", {}).get("memory_zoo")
        return cls(**notes) if notes else None

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The number of each row's document [n]; rows that were removed leave gaps."""
        return np.delete(np.arange(self.count + len(self.gone)), self.gone)


class ServerRetriever(Retriever):
    """A retriever whose own indexes are on an Elasticsearch 8 or 9 server.

    Args:
        url: one server or several of a cluster, with scheme, host and port; None = `ELASTICSEARCH_URL` of the
            environment, or http://localhost:9200. No model and no memory has it.
        index_prefix: own indexes are called `<prefix>-<16 digits>`.
        shards: of an own index; the ranking is the same for any number. In a cluster, each has a replica.
        timeout: the longest duration of a request, in seconds.
        threads: the number of concurrent requests.
    """

    local_options = frozenset({"url"})
    is_on_server = True
    product: Product = "Elasticsearch"
    #: queries in one request.
    batch_size = 128

    def __init__(
        self,
        url: str | list[str] | None = None,
        index_prefix: str = "memory-zoo",
        shards: int = 1,
        timeout: float = 60.0,
        threads: int = 2,
    ) -> None:
        check_value("shards", shards, Size)
        check_value("threads", threads, Size)
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,199}", index_prefix):
            raise InputError(f"index_prefix={index_prefix!r}: use a-z, 0-9, '.', '_' and '-'")
        # The client takes a third of a second, also where no server is named.
        from datamodules.retrieval.elasticsearch.connection import ServerConnection

        self.server = ServerConnection(url, timeout, threads, self.product)
        self.index_prefix = index_prefix
        self.shards = shards
        self._forget()

    def _forget(self) -> None:
        # The name of the open index, the limit for k, and whether term statistics are collected from several shards.
        self._name: str | None = None
        # The number of each row's document, int64 [n], and the numbers below the last one that no document has.
        self._numbers = np.empty(0, np.int64)
        self._gone = np.empty(0, np.int64)
        self._window = _DEFAULT_WINDOW
        self._global_statistics = False

    @override
    def close(self) -> None:
        self.server.close()
        self._forget()

    def index(self, rows: Rows, fingerprint: str, folder: Path) -> None:
        """See `Retriever.index`; a half loaded index is completed, and no file is written to `folder`."""
        name = self._own_name(fingerprint)
        self._create(name, len(rows), fingerprint)
        self._complete(name, rows, fingerprint, np.arange(len(rows)))
        self.open(folder, fingerprint)

    def update(self, rows: Rows, fingerprint: str, known: NDArray[np.int64], folder: Path) -> None:
        """See `Retriever.update`; a clone is changed, and so the old term statistics stay as they are."""
        name, source = self._own_name(fingerprint), self._opened()
        old = self._own_notes(source)
        numbers = _numbers_after(old.numbers, known)
        gone = [] if numbers is None else np.setdiff1d(np.arange(numbers[-1] + 1), numbers).tolist()
        if numbers is None or len(gone) > _MOST_GONE:
            self.index(rows, fingerprint, folder)
            return
        self._clone(source, name)
        if self._notes(name) == old:
            facts: PlainDict = {"fingerprint": fingerprint, "count": len(numbers), "gone": gone}
            self._write_notes(name, replace(old, complete=False, **facts))
        replaced = np.setdiff1d(old.numbers, numbers[known >= 0])
        if len(replaced) and not self._own_notes(name, fingerprint).complete:
            deleted = np.union1d(replaced, numbers[known < 0]).tolist()
            for chunk in chunks(f'{{"delete":{{"_id":"{number}"}}}}\n'.encode() for number in deleted):
                self.server.write(name, chunk)
        self._complete(name, rows, fingerprint, np.flatnonzero(known < 0))

    def delete(self, folder: Path, fingerprint: str) -> None:
        """See `Retriever.delete`."""
        self._delete(self._own_name(fingerprint))

    def _delete(self, name: str) -> None:
        missing = ("index_not_found_exception",)
        self.server.call(lambda client: client.indices.delete(index=name), expected=missing)

    @override
    def use_scratch(self, name: str) -> None:
        self.index_prefix += f"-{name}"
        self.options = {**self.options, "index_prefix": self.index_prefix}

    @override
    def delete_scratch(self, name: str) -> None:
        # Each by its name: a server may refuse patterns.
        for index in self.server.read(lambda client: client.indices.get(index=f"*-{name}-*"), list):
            self._delete(index)

    def open(self, folder: Path, fingerprint: str) -> None:
        """See `Retriever.open`."""
        self._forget()
        name = self._own_name(fingerprint)
        notes = self._own_notes(name, fingerprint)
        if not notes.complete:
            raise self._error(name, "is half loaded; `zoo index` completes it")
        self._check_count(name, notes.count)
        self._open_index(name)
        self._numbers, self._gone = notes.numbers, np.array(notes.gone, np.int64)

    @abstractmethod
    def _mapping(self) -> tuple[PlainDict, PlainDict]:
        """Return settings and mappings of an own index, in addition to those that all have."""

    @abstractmethod
    def _documents(self, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yield the position of each text, in any order, and further fields as JSON, which begin with a comma."""

    def _error(self, name: str, message: str) -> InputError:
        return self.server.error(f"index {name} {message}")

    def _own_name(self, fingerprint: str) -> str:
        if self.existing_index is not None:
            raise InputError(f"index={self.existing_index!r} is read only: omit it to build an own index")
        return f"{self.index_prefix}-{fingerprint[:16]}"

    def _notes(self, name: str) -> _Notes | None:
        return self.server.read(
            lambda client: client.indices.get_mapping(index=name),
            lambda answer: _Notes.of(*(each["mappings"] for each in answer.values())),
        )

    def _own_notes(self, name: str, fingerprint: str | None = None) -> _Notes:
        """Return the notes in an own index, which must have this fingerprint if one is given."""
        notes = self._notes(name)
        if notes is None:
            raise self._error(name, "was not made by memory-zoo; choose another index_prefix")
        if fingerprint not in (None, notes.fingerprint):
            raise self._error(name, "belongs to another collection; delete it or choose another index_prefix")
        return notes

    def _write_notes(self, name: str, notes: _Notes) -> None:
        meta = {"memory_zoo": asdict(notes)}
        self.server.call(lambda client: client.indices.put_mapping(index=name, meta=meta))

    def _create(self, name: str, count: int, fingerprint: str) -> None:
        """Create the empty index unless it exists."""
        notes = _Notes(fingerprint, self.describe_ranking(), count, [])
        settings, mappings = self._mapping()
        settings |= {"refresh_interval": -1, "number_of_shards": self.shards, "number_of_replicas": 0}
        # The row number is used for sorting only, so it is stored by column only.
        mappings["properties"]["row"] = {"type": "integer", "index": False}
        mappings |= {"dynamic": False, "_meta": {"memory_zoo": asdict(notes)}}
        self.server.call(
            lambda client: client.indices.create(index=name, settings=settings, mappings=mappings),
            expected=_EXISTS,
        )

    def _clone(self, source: str, name: str) -> None:
        """Copy an own index, with its notes, unless the copy exists."""
        # The server clones only an index that can't change at the same time.
        self.server.call(lambda client: client.indices.add_block(index=source, block="write"))
        settings = {
            "index.blocks.write": None,
            "index.auto_expand_replicas": False,
            "index.number_of_replicas": 0,
            "index.refresh_interval": -1,
        }
        self.server.call(
            lambda client: client.indices.clone(index=source, target=name, settings=settings),
            expected=_EXISTS,
        )

    def _complete(self, name: str, rows: Rows, fingerprint: str, new: NDArray[np.int64]) -> None:
        """Load the new rows of a table and set the index up for searching, unless it is complete."""
        notes = self._own_notes(name, fingerprint)
        if notes.complete:
            return
        self._load(name, rows, new, notes.numbers)
        # A write to a missing index creates an index with a mapping of the server's.
        if self._notes(name) != notes:
            raise self._error(name, "was replaced during loading; delete it and run the command again")
        self.server.call(lambda client: client.indices.refresh(index=name))
        self._repair(name, rows)
        log.info("index %s is loaded; the server merges its segments", name)
        seconds = max(self.server.timeout, _MERGE_SECONDS)
        self.server.call(
            lambda client: client.options(request_timeout=seconds).indices.forcemerge(
                index=name, max_num_segments=1
            )
        )
        window = max(_DEFAULT_WINDOW, notes.count)
        settings = {"refresh_interval": None, "auto_expand_replicas": "0-1", "max_result_window": window}
        self.server.call(lambda client: client.indices.put_settings(index=name, settings=settings))
        self.server.call(lambda client: client.indices.refresh(index=name))
        self._check_count(name, notes.count)
        self._write_notes(name, replace(notes, complete=True))

    def _load(self, name: str, rows: Rows, new: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Write the documents of some rows, except those of an interrupted load; all rows have the numbers [n]."""
        # Documents are written in order, so existing ones are the first ones, and perhaps a part of a chunk.
        self.server.call(lambda client: client.indices.refresh(index=name))
        written, done = self._count(name) - (len(numbers) - len(new)), 0
        loaded = rows if len(new) == len(numbers) else rows.select(new)

        def lines() -> Iterator[bytes]:
            for position, fields in self._documents(loaded.texts):
                yield bulk_lines("create", loaded, position, int(numbers[new[position]]), fields)

        with progress_bar(desc=f"index {name}", total=len(loaded), unit=" rows") as bar:
            for chunk in chunks(lines()):
                done += len(chunk)
                if done > written:
                    self.server.write(name, chunk)
                bar.update(len(chunk))

    def _repair(self, name: str, rows: Rows) -> None:
        """Write again what the server has lost, if that is possible, before the index is complete."""
        return

    def _count(self, name: str, query: PlainDict | None = None) -> int:
        return self.server.read(
            lambda client: client.count(index=name, query=query), lambda answer: int(answer["count"])
        )

    def _check_count(self, name: str, expected: int) -> None:
        if (count := self._count(name)) != expected:
            problem = f"has {count} of its {expected} documents"
            raise self._error(name, f"{problem}; delete it and run `zoo index` again")

    def _open_index(self, name: str) -> None:
        """Read from the settings of an index how it is to be searched."""
        self._global_statistics, self._window = self.server.read(
            lambda client: client.indices.get_settings(index=name, flat_settings=True, include_defaults=True),
            _shards_and_window,
        )
        self._name = name

    def _opened(self) -> str:
        assert self._name is not None, "no index is open: call index() or open() first"
        return self._name

    def _fill(
        self, hits: Hits, queries: Sequence[int], item: Callable[[int], bytes], exclude: ExcludedRows | None
    ) -> None:
        """Fill in the hits of some queries; `item` returns the two lines of a query, ending with `SORTED`."""
        name = self._opened()

        def search_batch(batch: Sequence[int]) -> None:
            items = [item(query) for query in batch]
            results = self.server.search(name, items, ["sort"], _scores_and_numbers)
            for query, (scores, numbers) in zip(batch, results, strict=True):
                rows = rows_of(numbers, self._gone)
                if exclude is not None and len(exclude[query]):
                    excluded = {int(row) for row in exclude[query]}
                    kept = [rank for rank, row in enumerate(rows.tolist()) if row not in excluded]
                    kept = kept[: hits.rows.shape[1]]
                    scores, rows = scores[kept], rows[kept]
                hits.scores[query, : len(scores)] = scores
                hits.rows[query, : len(rows)] = rows

        self.server.in_threads(search_batch, queries, self.batch_size)


def _shards_and_window(answer: PlainDict) -> tuple[bool, int]:
    """Return whether indexes have several shards, and their limit for k, from their settings."""
    settings = [{**index.get("defaults", {}), **index["settings"]} for index in answer.values()]
    windows = [int(each.get("index.max_result_window", _DEFAULT_WINDOW)) for each in settings]
    return sum(int(each["index.number_of_shards"]) for each in settings) > 1, min(windows)


def _scores_and_numbers(hits: list[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the sort values of a query's hits: scores, and numbers of documents."""
    values = [value for hit in hits for value in hit["sort"]]
    return np.array(values[::2], np.float32), np.array(values[1::2], np.int64)


def rows_of(numbers: NDArray[np.int64], gone: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the documents with these numbers."""
    return numbers - np.searchsorted(gone, numbers) if len(gone) else numbers


def _numbers_after(numbers: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return ascending numbers [n] for rows that are known rows or, for -1, new; None if no numbers are free there.

    A known row keeps its number, and a new one takes the next number after the row before.
    """
    is_known = known >= 0
    positions = np.arange(len(known))
    before = np.maximum.accumulate(np.where(is_known, positions, -1))
    base = np.where(before >= 0, numbers[known[before]], -1)
    after: NDArray[np.int64] = base + (positions - before)
    return after if (np.diff(after) > 0).all() else None


def bulk_lines(action: Literal["create", "index"], rows: Rows, row: int, number: int, fields: str) -> bytes:
    """Return the two lines of a row's document; `index` replaces one that exists. `fields` begin with a comma."""
    # Other programs that read the index find ids and labels in it.
    id_, text, label = (as_json(column[row].as_py()) for column in rows.table.columns)
    source = f'{{"row":{number},"text":{text},"id":{id_},"label":{label}{fields}}}'
    return f'{{"{action}":{{"_id":"{number}"}}}}\n{source}\n'.encode()


def as_json(text: str | None) -> str:
    """Return the text as a JSON string that can be encoded; None as null."""
    return "null" if text is None else _encode(whole_characters(text))


def chunks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group lines, limited in number and size."""
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
