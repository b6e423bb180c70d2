"""The retriever that asks an Elasticsearch server for shared words.

Two ways to use it. Without `index` it builds indexes of its own, one a memory, whose documents are the rows
of the memory. With `index` it reads an index that is there already and writes nothing to it.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datamodules.core.errors import InputError
from datamodules.retrieval.base import (
    MAX_QUERY_TERMS,
    AnalyzerName,
    Hits,
    Ranking,
    Similarity,
    check_search,
)
from datamodules.retrieval.elasticsearch.connection import FIRST_TRIES, reads_answers
from datamodules.retrieval.elasticsearch.server_retriever import (
    NO_HITS,
    ROW,
    SORTED,
    ServerRetriever,
    as_json,
    whole_characters,
)
from datamodules.retrieval.embedded.analysis import Analyzer as TermMaker
from datamodules.retrieval.folding import fold


class Document(NamedTuple):
    """A hit in an index of the user's."""

    id: str
    text: str
    #: None where the document has no label or the retriever no `label_field`.
    label: str | None
    score: float


class ElasticsearchRetriever(ServerRetriever):
    """Ranks texts with an Elasticsearch 8 or 9 server.

    Credentials come from the environment: `ELASTICSEARCH_API_KEY`, or `ELASTICSEARCH_USERNAME` and
    `ELASTICSEARCH_PASSWORD`; `ELASTICSEARCH_CA_CERTS` names a PEM file for https. Those of a URL
    (`https://user:password@host:9200`) or of `client_args` work too. None of them is ever printed,
    logged, pickled or described, so a pickled copy has what the environment of its process gives.

    Args:
        similarity: see `Ranking`; with `index`, the index has its own and this isn't used.
        analyzer: see `Ranking`; with `index`, as above.
        k1: see `Ranking`.
        b: see `Ranking`.
        mu: see `Ranking`.
        index: an existing index (or alias, or pattern) to retrieve from with `search_documents`.
        text_field: field of the existing index that is searched and returned.
        label_field: its field with the label; None = documents have no labels.
        id_field: its field with the id; None = Elasticsearch's `_id`, behind the index's own name where
            `index` is an alias or a pattern.
        batch_size: queries in one request.
        threads: requests under way at the same time.
        server: where the server is and what own indexes are like, see `ServerRetriever`: `url`,
            `index_prefix`, `shards`, `replicas`, `timeout`, `client_args`.

    Raises:
        InputError: an argument is out of range.
    """

    ranking: Ranking

    def __init__(
        self,
        similarity: Similarity = "BM25",
        analyzer: AnalyzerName = "standard",
        k1: float = 1.2,
        b: float = 0.75,
        mu: float = 2000.0,
        index: str | None = None,
        text_field: str = "text",
        label_field: str | None = None,
        id_field: str | None = None,
        batch_size: int = 128,
        threads: int = 2,
        **server: Any,
    ) -> None:
        self.ranking = Ranking(similarity, analyzer, k1, b, mu)
        super().__init__(batch_size=batch_size, threads=threads, **server)
        if index is not None and not index.strip():
            raise InputError(
                "retriever.index='': that would be every index of the server; name one, or leave it out"
            )
        self.existing_index = index
        self.text_field = text_field
        self.label_field = label_field
        self.id_field = id_field

    def _forget(self) -> None:
        super()._forget()
        self._warned = False
        self._cutter: TermMaker | None = None

    def _init_args(self) -> dict[str, Any]:
        return {
            **super()._init_args(),
            **asdict(self.ranking),
            "index": self.existing_index,
            "text_field": self.text_field,
            "label_field": self.label_field,
            "id_field": self.id_field,
            "batch_size": self.batch_size,
            "threads": self.server.threads,
        }

    def __repr__(self) -> str:
        what = f"index={self.existing_index!r}" if self.existing_index else f"ranking={self.ranking}"
        return f"ElasticsearchRetriever(url={', '.join(self.server.urls)}, {what})"

    # -----------------------------------------------------------------------------------------------------
    # Own indexes

    @reads_answers
    def open(self, folder: Path, fingerprint: str) -> None:
        """Open the index of this fingerprint on the server, or the existing one; see `Retriever.open`."""
        if self.existing_index is None:
            super().open(folder, fingerprint)
        else:
            self._forget()
            self._open_existing(self.existing_index)

    def _mapping(self) -> tuple[dict[str, Any], dict[str, Any]]:
        parameters: dict[str, Any] = self.ranking.describe()
        similarity = {"type": parameters.pop("similarity")} | parameters
        analyzer = similarity.pop("analyzer")
        # Phrases aren't searched: no positions.
        text = {"type": "text", "analyzer": analyzer, "similarity": "memory", "index_options": "freqs"}
        return {"similarity": {"memory": similarity}}, {"properties": {"row": ROW, "text": text}}

    def _documents(self, name: str, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        return ((position, "") for position in range(len(texts)))

    @reads_answers
    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """Rank the rows of an own index; see `Retriever.search`."""
        if self.existing_index is not None:
            raise RuntimeError("an existing index has no row numbers: use search_documents")
        check_search(texts, k, exclude)
        hits = Hits.none(len(texts), k)

        def item(query: int) -> bytes:
            # Leaving rows out costs the server more than a few more hits.
            size = k if exclude is None else k + len(exclude[query])
            return self._item(texts[query], "text", min(size, self._window), SORTED)

        self._fill(hits, range(len(texts)), item, exclude)
        return hits

    # -----------------------------------------------------------------------------------------------------
    # An existing index

    @reads_answers
    def search_documents(
        self, texts: Sequence[str], k: int, leave_out_copies: bool = False
    ) -> list[list[Document]]:
        """The best documents of the existing index for each query text, best first.

        Args:
            texts: n queries.
            k: documents a query at most.
            leave_out_copies: leave out documents whose text is a copy of the query's.

        Returns:
            n lists of at most k documents.

        Raises:
            InputError: no such index or field, or the server can't be reached or refuses.
        """
        name = self._existing()
        fields = [self.text_field, *filter(None, (self.label_field, self.id_field))]
        asked = ",".join(f'{{"field":{as_json(field)},"include_unmapped":true}}' for field in fields)
        tail = f'"fields":[{asked}],"_source":false,"track_total_hits":false}}\n'
        wanted = ("_index", "_id", "_score", "fields")
        filter_path = ",".join(f"responses.hits.hits.{part}" for part in wanted)
        found: list[list[Document]] = [[] for _ in texts]

        def search_batch(start: int) -> None:
            waiting = list(range(start, min(start + self.batch_size, len(texts))))
            # A few more from the start, since a text has few copies.
            size = min(k + 4 if leave_out_copies else k, self._window)
            while waiting:
                items = [self._item(texts[query], self.text_field, size, tail) for query in waiting]
                answers = self.server.search(name, items, filter_path)
                short = []
                for query, answer in zip(waiting, answers, strict=True):
                    hits = answer.get("hits", NO_HITS)["hits"]
                    documents = [self._document(hit) for hit in hits]
                    if leave_out_copies:
                        own = fold(texts[query])
                        documents = [document for document in documents if fold(document.text) != own]
                    found[query] = documents[:k]
                    if len(documents) < k and len(hits) == size < self._window:
                        short.append(query)
                waiting, size = short, min(4 * size, self._window)

        self.server.in_threads(search_batch, range(0, len(texts), self.batch_size))
        return found

    @reads_answers
    def describe_index(self) -> dict[str, Any]:
        """What identifies the contents of the existing index: any write to it changes the answer."""
        name = self._existing()
        fields = {"index": name, "text": self.text_field, "label": self.label_field, "id": self.id_field}
        stats = self.server.call(
            lambda client: client.indices.stats(index=name, metric="docs", level="shards")
        )
        state = sorted(
            (one["uuid"], shard, primary["seq_no"]["max_seq_no"], primary["docs"]["count"])
            for one in stats["indices"].values()
            for shard, copies in one["shards"].items()
            for primary in copies
            if primary["routing"]["primary"]
        )
        return {**fields, "state": sha256(json.dumps(state).encode()).hexdigest()}

    @reads_answers
    def distinct_labels(self) -> list[str]:
        """The different labels of the existing index, sorted; none without a `label_field`."""
        if self.label_field is None:
            return []
        name, most = self._existing(), 10_000
        tried = (self.label_field, f"{self.label_field}.keyword")
        able = self.server.call(lambda client: client.field_caps(index=name, fields=list(tried)))["fields"]
        for field in tried:
            kinds = able.get(field, {}).values()
            if kinds and all(kind.get("aggregatable", False) for kind in kinds):
                break
        else:
            raise self.server.error(
                f"index {name}: field {self.label_field} can't list its values;"
                " give a keyword field as label_field"
            )
        terms = {"terms": {"field": field, "size": most}}
        answer = self.server.call(lambda client: client.search(index=name, size=0, aggs={"labels": terms}))
        values = answer["aggregations"]["labels"]
        if values["sum_other_doc_count"] > 0:
            raise self.server.error(
                f"index {name}: field {field} has more than {most} values; is it a label?"
            )
        return sorted(str(one.get("key_as_string", one["key"])) for one in values["buckets"])

    def _existing(self) -> str:
        """The name of the existing index, which is open."""
        if self.existing_index is None:
            raise RuntimeError("no existing index: give `index`")
        if self._name is None:
            self._open_existing(self.existing_index)
        return self.existing_index

    def _open_existing(self, name: str) -> None:
        mappings = self.server.call(
            lambda client: client.indices.get_mapping(index=name),
            tries=FIRST_TRIES,
            expected=("index_not_found_exception",),
        )
        if not mappings:
            raise self.server.error(f"index {name} is not there{self._others()}")
        there: set[str] = set()
        for one in mappings.values():
            there.update(_field_names(one["mappings"].get("properties", {})))
        if self.text_field not in there:
            raise self.server.error(
                f"index {name} has no field {self.text_field} (text_field); it has {_some(there)}"
            )
        for option, field in (("label_field", self.label_field), ("id_field", self.id_field)):
            if field is None or field in there:
                continue
            if not self._is_in_documents(name, field):
                raise self.server.error(
                    f"index {name} has no field {field} ({option}); it has {_some(there)}"
                )
        self._open_index(name)

    def _is_in_documents(self, name: str, field: str) -> bool:
        """What isn't mapped can still be in the documents."""
        asked = [{"field": field, "include_unmapped": True}]
        answer = self.server.call(
            lambda client: client.search(index=name, size=100, source=False, fields=asked)
        )
        return any(hit.get("fields") for hit in answer["hits"]["hits"])

    def _others(self) -> str:
        try:
            found = self.server.call(lambda client: client.indices.get_alias(index="*"), tries=1)
        except InputError:  # not everyone may list the indexes
            return ""
        return f"; there are {_some(set(found))}" if found else "; there is none"

    def _document(self, hit: Mapping[str, Any]) -> Document:
        fields = hit.get("fields", {})
        if self.text_field not in fields:
            raise self.server.error(
                f"index {self._opened()}: document {hit['_id']} matches, but its {self.text_field}"
                " can't be read (the index keeps no _source)"
            )
        # Of several indexes (a pattern, an alias) two may have documents of the same id.
        own = hit["_id"] if hit["_index"] == self._opened() else f"{hit['_index']}/{hit['_id']}"
        name = own if self.id_field is None else _value(fields, self.id_field)
        if name is None:
            raise self.server.error(
                f"index {self._opened()}: document {hit['_id']} has no {self.id_field} (id_field)"
            )
        label = None if self.label_field is None else _value(fields, self.label_field)
        text = " ".join(str(part) for part in fields[self.text_field])
        return Document(name, text, label, float(np.float32(hit["_score"])))

    # -----------------------------------------------------------------------------------------------------
    # Queries

    def _item(self, text: str, field: str, size: int, tail: str) -> bytes:
        """The two lines of a query in a multi-search request."""
        query = f'{{"match":{{{as_json(field)}:{as_json(text)}}}}}'
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
        terms = self._cutter.terms(whole_characters(text))
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
            return f'{{"match":{{{as_json(field)}:{as_json(" ".join(term for term, _ in first))}}}}}'
        clauses = ",".join(
            f'{{"term":{{"text":{{"value":{as_json(term)},"boost":{count}}}}}}}' for term, count in first
        )
        return f'{{"bool":{{"should":[{clauses}]}}}}'


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
