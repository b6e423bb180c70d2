"""The retriever that asks an Elasticsearch server.

Two ways to use it. Without `index` it builds indexes of its own, one a memory, whose documents are the rows
of the memory. With `index` it reads an index that is there already and writes nothing to it.

An own index ranks by score and, where scores are equal, by row number. It asks for the two sort values of a
hit and for nothing else, so the server never opens a stored document: twice the throughput of asking
for `_id`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import elastic_transport
import elasticsearch
import numpy as np
from tqdm import tqdm

from datamodules.errors import InputError
from datamodules.retrieval.analysis import Analyzer as TermMaker
from datamodules.retrieval.base import Analyzer, Hits, Ranking, Retriever, Similarity
from datamodules.retrieval.folding import fold

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: A query is cut to this many different terms, as in the embedded retriever. Servers refuse long queries.
MAX_QUERY_TERMS = 512
#: How often a request is sent before the server counts as gone, and how often on first contact.
TRIES = 9
FIRST_TRIES = 3
#: Seconds before the second try; doubled for each further one up to the longest, less a random part.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 20.0

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


class Document(NamedTuple):
    """A hit in an index of the user's."""

    id: str
    text: str
    #: None where the document has no label or the retriever no `label_field`.
    label: str | None
    score: float


class ElasticsearchRetriever(Retriever):
    """Ranks texts with an Elasticsearch 8 or 9 server.

    Credentials come from the environment: `ELASTICSEARCH_API_KEY`, or `ELASTICSEARCH_USERNAME` and
    `ELASTICSEARCH_PASSWORD`; `ELASTICSEARCH_CA_CERTS` names a PEM file for https. Those of a URL
    (`https://user:password@host:9200`) or of `client_args` work too. None of them is ever printed,
    logged, pickled or described, so a pickled copy has what the environment of its process gives.

    Args:
        url: one server or several of a cluster, with scheme, host and port.
        similarity: see `Ranking`; with `index`, the index has its own and this isn't used.
        analyzer: see `Ranking`; with `index`, as above.
        k1: see `Ranking`.
        b: see `Ranking`.
        mu: see `Ranking`.
        index: an existing index (or alias, or pattern) to retrieve from with `search_documents`.
        text_field: field of the existing index that is searched and returned.
        label_field: its field with the label; None = documents have no labels.
        id_field: its field with the id; None = Elasticsearch's `_id`.
        index_prefix: own indexes are called `<prefix>-<16 digits>`.
        shards: of an own index. More than one ranks alike (global term statistics) but costs a round more.
        replicas: of an own index.
        batch_size: queries in one request.
        threads: requests under way at the same time.
        timeout: seconds that a request may take.
        client_args: further arguments of `elasticsearch.Elasticsearch`.

    Raises:
        InputError: an argument is out of range.
    """

    ranking: Ranking

    def __init__(
        self,
        url: str | list[str] = "http://localhost:9200",
        similarity: Similarity = "BM25",
        analyzer: Analyzer = "standard",
        k1: float = 1.2,
        b: float = 0.75,
        mu: float = 2000.0,
        index: str | None = None,
        text_field: str = "text",
        label_field: str | None = None,
        id_field: str | None = None,
        index_prefix: str = "memory-zoo",
        shards: int = 1,
        replicas: int = 0,
        batch_size: int = 128,
        threads: int = 2,
        timeout: float = 60.0,
        client_args: dict[str, Any] | None = None,
    ) -> None:
        self.ranking = Ranking(similarity, analyzer, k1, b, mu)
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
        self.existing_index = index
        self.text_field = text_field
        self.label_field = label_field
        self.id_field = id_field
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
        self._warned = False
        self._cutter: TermMaker | None = None

    def describe(self) -> dict[str, Any]:
        """`class_path` and `init_args` that make this specification again, without any credential."""
        arguments: dict[str, Any] = {
            "url": self.urls[0] if len(self.urls) == 1 else list(self.urls),
            "similarity": self.ranking.similarity,
            "analyzer": self.ranking.analyzer,
            "k1": self.ranking.k1,
            "b": self.ranking.b,
            "mu": self.ranking.mu,
            "index": self.existing_index,
            "text_field": self.text_field,
            "label_field": self.label_field,
            "id_field": self.id_field,
            "index_prefix": self.index_prefix,
            "shards": self.shards,
            "replicas": self.replicas,
            "batch_size": self.batch_size,
            "threads": self.threads,
            "timeout": self.timeout,
            "client_args": without_secrets(self.client_args) or None,
        }
        return {"class_path": f"{type(self).__module__}.{type(self).__qualname__}", "init_args": arguments}

    def __repr__(self) -> str:
        what = f"index={self.existing_index!r}" if self.existing_index else f"ranking={self.ranking}"
        return f"ElasticsearchRetriever(url={', '.join(self.urls)}, {what})"

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
        self._refuse_to_write()
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
        self._refuse_to_write()
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
        """Open the index of this fingerprint on the server, or the existing one; see `Retriever.open`."""
        self._forget()
        if self.existing_index is not None:
            self._open_existing()
            return
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

    def _refuse_to_write(self) -> None:
        if self.existing_index is not None:
            raise InputError(
                f"index={self.existing_index!r} is read only: leave `index` out to build an index of our own"
            )

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
        parameters: dict[str, Any] = self.ranking.describe()
        similarity = {"type": parameters.pop("similarity")} | parameters
        analyzer = similarity.pop("analyzer")
        try:
            self._call(
                lambda client: client.indices.create(
                    index=name,
                    settings={
                        "number_of_shards": self.shards,
                        "number_of_replicas": 0,
                        "refresh_interval": -1,
                        "similarity": {"memory": similarity},
                    },
                    mappings={
                        "dynamic": False,
                        "_meta": {"memory_zoo": meta},
                        "properties": {
                            # Only sorted by, so only stored by column.
                            "row": {"type": "integer", "index": False},
                            # Phrases aren't searched: no positions.
                            "text": {
                                "type": "text",
                                "analyzer": analyzer,
                                "similarity": "memory",
                                "index_options": "freqs",
                            },
                        },
                    },
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
            for position, text in enumerate(texts):
                row = start_row + position
                fields = ""
                if ids is not None:
                    fields += f',"id":{_quote(ids[position])}'
                if labels is not None:
                    fields += f',"label":{_quote(labels[position])}'
                source = f'{{"row":{row},"text":{_quote(text)}{fields}}}'
                yield f'{{"create":{{"_id":"{row}"}}}}\n{source}\n'.encode()

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

    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """Rank the rows of an own index; see `Retriever.search`."""
        if self.existing_index is not None:
            raise RuntimeError("an existing index has no row numbers: use search_documents")
        name = self._opened()
        rows = np.full((len(texts), k), -1, np.int32)
        scores = np.zeros((len(texts), k), np.float32)
        # Sort values only: no stored fields, no total.
        tail = '"sort":["_score","row"],"_source":false,"stored_fields":"_none_","track_total_hits":false}\n'

        def search_batch(start: int) -> None:
            batch = range(start, min(start + self.batch_size, len(texts)))
            items = []
            for query in batch:
                # Leaving rows out costs the server more than a few more hits.
                size = k if exclude is None else k + len(exclude[query])
                items.append(self._item(texts[query], "text", min(size, self._window), tail))
            answers = self._search_items(name, items, "responses.hits.hits.sort")
            for query, answer in zip(batch, answers, strict=True):
                flat = answer.get("hits", _NO_HITS)["hits"]
                if flat and isinstance(flat[0], dict):  # a gateway wrote the JSON anew
                    flat = [value for hit in flat for value in hit["sort"]]
                found_scores, found_rows = flat[::2], flat[1::2]
                if exclude is not None and len(exclude[query]):
                    left_out = {int(row) for row in exclude[query]}
                    kept = [place for place, row in enumerate(found_rows) if row not in left_out][:k]
                    found_scores = [found_scores[place] for place in kept]
                    found_rows = [found_rows[place] for place in kept]
                scores[query, : len(found_scores)] = found_scores
                rows[query, : len(found_rows)] = found_rows

        self._in_threads(search_batch, range(0, len(texts), self.batch_size))
        return Hits(rows, scores)

    # -----------------------------------------------------------------------------------------------------
    # An existing index

    def search_documents(
        self, texts: Sequence[str], k: int, leave_out_copies: bool = False
    ) -> list[list[Document]]:
        """The best documents of the existing index for each query text, best first.

        Args:
            texts: n queries.
            k: documents a query at most.
            leave_out_copies: leave out documents whose text is the query's, case and white space folded.

        Returns:
            n lists of at most k documents.

        Raises:
            InputError: no such index or field, or the server can't be reached or refuses.
        """
        if self._name is None:
            self._open_existing()
        name = self._opened()
        fields = [self.text_field, *filter(None, (self.label_field, self.id_field))]
        asked = ",".join(f'{{"field":{_quote(field)},"include_unmapped":true}}' for field in fields)
        tail = f'"fields":[{asked}],"_source":false,"track_total_hits":false}}\n'
        filter_path = "responses.hits.hits._id,responses.hits.hits._score,responses.hits.hits.fields"
        found: list[list[Document]] = [[] for _ in texts]

        def search_batch(start: int) -> None:
            waiting = list(range(start, min(start + self.batch_size, len(texts))))
            # A few more from the start, since a text has few copies.
            size = min(k + 4 if leave_out_copies else k, self._window)
            while waiting:
                items = [self._item(texts[query], self.text_field, size, tail) for query in waiting]
                answers = self._search_items(name, items, filter_path)
                short = []
                for query, answer in zip(waiting, answers, strict=True):
                    hits = answer.get("hits", _NO_HITS)["hits"]
                    documents = [self._document(hit) for hit in hits]
                    if leave_out_copies:
                        own = fold(texts[query])
                        documents = [document for document in documents if fold(document.text) != own]
                    found[query] = documents[:k]
                    if len(documents) < k and len(hits) == size < self._window:
                        short.append(query)
                waiting, size = short, min(4 * size, self._window)

        self._in_threads(search_batch, range(0, len(texts), self.batch_size))
        return found

    def describe_index(self) -> dict[str, Any]:
        """What identifies the contents of the existing index: any write to it changes the answer."""
        name = self._existing_name()
        fields = {"index": name, "text": self.text_field, "label": self.label_field, "id": self.id_field}
        if self._name is None:
            self._open_existing()
        stats = self._call(lambda client: client.indices.stats(index=name, metric="docs", level="shards"))
        state = sorted(
            (one["uuid"], shard, primary["seq_no"]["max_seq_no"], primary["docs"]["count"])
            for one in stats["indices"].values()
            for shard, copies in one["shards"].items()
            for primary in copies
            if primary["routing"]["primary"]
        )
        return {**fields, "state": sha256(json.dumps(state).encode()).hexdigest()}

    def distinct_labels(self) -> list[str]:
        """The different labels of the existing index, sorted; none without a `label_field`."""
        if self.label_field is None:
            return []
        if self._name is None:
            self._open_existing()
        name, most = self._opened(), 10_000
        tried = (self.label_field, f"{self.label_field}.keyword")
        able = self._call(lambda client: client.field_caps(index=name, fields=list(tried)))["fields"]
        for field in tried:
            kinds = able.get(field, {}).values()
            if kinds and all(kind.get("aggregatable", False) for kind in kinds):
                break
        else:
            raise self._error(
                f"index {name}: field {self.label_field} can't list its values;"
                " give a keyword field as label_field"
            )
        terms = {"terms": {"field": field, "size": most}}
        answer = self._call(lambda client: client.search(index=name, size=0, aggs={"labels": terms}))
        values = answer["aggregations"]["labels"]
        if values["sum_other_doc_count"] > 0:
            raise self._error(f"index {name}: field {field} has more than {most} values; is it a label?")
        return sorted(str(one.get("key_as_string", one["key"])) for one in values["buckets"])

    def _existing_name(self) -> str:
        if self.existing_index is None:
            raise RuntimeError("no existing index: give `index`")
        return self.existing_index

    def _open_existing(self) -> None:
        name = self._existing_name()
        mappings = self._call(
            lambda client: client.indices.get_mapping(index=name),
            tries=FIRST_TRIES,
            expected=("index_not_found_exception",),
            otherwise={},
        )
        if not mappings:
            raise self._error(f"index {name} is not there{self._others()}")
        there: set[str] = set()
        for one in mappings.values():
            there.update(_field_names(one["mappings"].get("properties", {})))
        if self.text_field not in there:
            raise self._error(
                f"index {name} has no field {self.text_field} (text_field); it has {_some(there)}"
            )
        for option, field in (("label_field", self.label_field), ("id_field", self.id_field)):
            if field is None or field in there:
                continue
            if not self._is_in_documents(name, field):
                raise self._error(f"index {name} has no field {field} ({option}); it has {_some(there)}")
        self._open_index(name)

    def _is_in_documents(self, name: str, field: str) -> bool:
        """What isn't mapped can still be in the documents."""
        asked = [{"field": field, "include_unmapped": True}]
        answer = self._call(lambda client: client.search(index=name, size=100, source=False, fields=asked))
        return any(hit.get("fields") for hit in answer["hits"]["hits"])

    def _others(self) -> str:
        try:
            found = self._call(lambda client: client.indices.get_alias(index="*"), tries=1)
        except InputError:  # not everyone may list the indexes
            return ""
        return f"; there are {_some(set(found))}" if found else "; there is none"

    def _document(self, hit: Mapping[str, Any]) -> Document:
        fields = hit.get("fields", {})
        if self.text_field not in fields:
            raise self._error(
                f"index {self._opened()}: document {hit['_id']} matches, but its {self.text_field}"
                " can't be read (the index keeps no _source)"
            )
        name = hit["_id"] if self.id_field is None else _value(fields, self.id_field)
        if name is None:
            raise self._error(
                f"index {self._opened()}: document {hit['_id']} has no {self.id_field} (id_field)"
            )
        label = None if self.label_field is None else _value(fields, self.label_field)
        text = " ".join(str(part) for part in fields[self.text_field])
        return Document(name, text, label, float(np.float32(hit["_score"])))

    # -----------------------------------------------------------------------------------------------------
    # Queries

    def _item(self, text: str, field: str, size: int, tail: str) -> bytes:
        """The two lines of a query in a multi-search request."""
        query = f'{{"match":{{{_quote(field)}:{_quote(text)}}}}}'
        # A term takes a character, in ASCII also one that parts it from the next.
        if len(text) > (2 * MAX_QUERY_TERMS if text.isascii() else MAX_QUERY_TERMS):
            query = self._long_query(text, field) or query
        search_type = '"search_type":"dfs_query_then_fetch"' if self._global_statistics else ""
        if self.existing_index is not None:
            # Always the same copy of a shard: replicas may break ties differently.
            search_type += ("," if search_type else "") + '"preference":"memory-zoo"'
        return f'{{{search_type}}}\n{{"query":{query},"size":{size},{tail}'.encode()

    def _long_query(self, text: str, field: str) -> str | None:
        """The query of the first terms of a long text, None if the text has few terms after all."""
        if self._cutter is None:
            self._cutter = TermMaker("standard" if self.existing_index else self.ranking.analyzer)
        terms = self._cutter.terms(_whole_characters(text))
        counts = Counter(terms)
        if len(terms) <= 2 * MAX_QUERY_TERMS and len(counts) <= MAX_QUERY_TERMS:
            return None
        if len(counts) > MAX_QUERY_TERMS and not self._warned:
            self._warned = True
            warnings.warn(
                f"a query has more than {MAX_QUERY_TERMS} different terms:"
                f" only the first {MAX_QUERY_TERMS} are used",
                stacklevel=2,
            )
        first = list(counts.items())[:MAX_QUERY_TERMS]
        if self.existing_index is not None:
            # The field's analyzer is the user's, so it is given words.
            return f'{{"match":{{{_quote(field)}:{_quote(" ".join(term for term, _ in first))}}}}}'
        clauses = ",".join(
            f'{{"term":{{"text":{{"value":{_quote(term)},"boost":{count}}}}}}}' for term, count in first
        )
        return f'{{"bool":{{"should":[{clauses}]}}}}'

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

_NO_HITS: dict[str, list[Any]] = {"hits": []}
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


def _whole_characters(text: str) -> str:
    """The text with lone surrogates, which no encoding has, replaced by U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _quote(text: str | None) -> str:
    """The text as a JSON string that can be encoded, null for None."""
    return _encode(text if text is None or text.isascii() else _whole_characters(text))


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


def _field_names(properties: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all fields of a mapping."""
    for name, field in properties.items():
        if "properties" in field:
            yield from _field_names(field["properties"], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
        yield from _field_names(field.get("fields", {}), f"{prefix}{name}.")


def _some(names: set[str], most: int = 20) -> str:
    ordered = sorted(name for name in names if not name.startswith("."))
    return ", ".join(ordered[:most]) + (" …" if len(ordered) > most else "") if ordered else "none"


def _value(fields: Mapping[str, Any], name: str) -> str | None:
    """The first value of a field as text."""
    values = fields.get(name)
    if not values or values[0] is None:
        return None
    first = values[0]
    return str(first).lower() if isinstance(first, bool) else str(first)
