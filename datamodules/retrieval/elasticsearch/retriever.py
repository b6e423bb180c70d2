"""The retrievers that search an Elasticsearch or OpenSearch server for common words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from typing_extensions import override

from datamodules.core.errors import InputError, excerpt
from datamodules.core.types import PlainDict, mapped
from datamodules.corpora.rows import whole_characters
from datamodules.retrieval import base
from datamodules.retrieval.elasticsearch.server_retriever import SORTED, ServerRetriever, as_json
from datamodules.retrieval.embedded.analysis import terms_of
from datamodules.retrieval.folding import fold

_MOST_LABELS = 10_000
#: What stands for the text in the strings of a query template.
_PLACEHOLDER = "{text}"


class Document(NamedTuple):
    """A hit in an existing index."""

    id: str
    text: str
    #: None where the document has no label or the retriever no `label_field`.
    label: str | None
    score: float


class ElasticsearchRetriever(base.TermRetriever, ServerRetriever):
    """Ranks texts with an Elasticsearch 8 or 9 server, in an own index for each memory or in an existing `index`.

    Credentials come from the environment (`ELASTICSEARCH_API_KEY`, or `ELASTICSEARCH_USERNAME` and
    `ELASTICSEARCH_PASSWORD`; `ELASTICSEARCH_CA_CERTS` names a PEM file).

    Args:
        index: an existing index (or alias, or pattern) to retrieve from with `search_documents`.
        text_field: field of the existing index that is returned, and searched unless there is a `query`.
        label_field: its field with the label; None = no labels.
        id_field: its field with the id; None = Elasticsearch's `_id`.
        query: a query of the existing index in Elasticsearch's query language, with `{text}` in strings for the text,
            such as `{"semantic": {"field": "meaning", "query": "{text}"}}`. None = a `match` query of `text_field`.
        others: options of `TermRetriever`, which an existing `index` does not read, and of `ServerRetriever`.
    """

    def __init__(
        self,
        index: str | None = None,
        text_field: str = "text",
        label_field: str | None = None,
        id_field: str | None = None,
        query: PlainDict | None = None,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        if index is not None and not index.strip():
            raise InputError("retriever.index='': that would be every index; name one, or omit the option")
        self.existing_index = index
        self.text_field = text_field
        self.label_field = label_field
        self.id_field = id_field
        if query is not None and index is None:
            raise InputError("query: for an existing index only; name it with index")
        if query is not None and _filled(query, "") == query:
            raise InputError(f'query: no string has {_PLACEHOLDER}; write it in quotes: "{_PLACEHOLDER}"')
        self.query = query
        self._field_options = {"text_field": text_field, "label_field": label_field, "id_field": id_field}

    def _forget(self) -> None:
        super()._forget()
        # The fields of the existing index, and whether their values can be listed.
        self._fields: dict[str, bool] = {}

    @override
    def _mapping(self) -> tuple[PlainDict, PlainDict]:
        parameters: PlainDict = self.describe_ranking()
        similarity = {"type": parameters.pop("similarity")} | parameters
        analyzer = similarity.pop("analyzer")
        # Phrases aren't searched: no positions.
        text = {"type": "text", "analyzer": analyzer, "similarity": "memory", "index_options": "freqs"}
        return {"similarity": {"memory": similarity}}, {"properties": {"text": text}}

    @override
    def _documents(self, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        return ((position, "") for position in range(len(texts)))

    @override
    def search(self, texts: Sequence[str], k: int, exclude: base.ExcludedRows | None = None) -> base.Hits:
        """See `Retriever.search`; for own indexes only."""
        assert self.existing_index is None, "an existing index has no row numbers: use search_documents"
        base.check_search(texts, k, exclude)
        hits = base.Hits.none(len(texts), k)

        def item(query: int) -> bytes:
            # Excluding rows in the query costs the server more than a few more hits.
            size = k if exclude is None else k + len(exclude[query])
            return self._item(self._match(texts[query], "text"), min(size, self._window), SORTED)

        self._fill(hits, range(len(texts)), item, exclude)
        return hits

    def search_documents(
        self, texts: Sequence[str], k: int, exclude_duplicates: bool = False
    ) -> list[list[Document]]:
        """Return at most k documents of the existing index for each query text, best first."""
        name = self._existing()
        names = filter(None, (self.text_field, self.label_field, self.id_field))
        fields = json.dumps([self._returned(field) for field in names])
        tail = f'"fields":{fields},"_source":false,"track_total_hits":false}}\n'
        parts = "_index", "_id", "_score", "fields"
        best: list[list[Document]] = [[] for _ in texts]

        def search_batch(waiting: Sequence[int]) -> None:
            # A few more hits from the start, since a text has few duplicates.
            size = min(k + 4 if exclude_duplicates else k, self._window)
            while waiting:
                items = [self._item(self._query(texts[query]), size, tail) for query in waiting]
                results = self.server.search(
                    name, items, parts, lambda hits: [self._document(hit) for hit in hits]
                )
                short = []
                for query, documents in zip(waiting, results, strict=True):
                    own = fold(texts[query]) if exclude_duplicates else None
                    others = [each for each in documents if own is None or fold(each.text) != own]
                    best[query] = others[:k]
                    if len(others) < k and len(documents) == size < self._window:
                        short.append(query)
                waiting, size = short, min(4 * size, self._window)

        # An endpoint encodes no empty text.
        queries = [query for query, text in enumerate(texts) if text.strip()]
        self.server.in_threads(search_batch, queries, self.batch_size)
        return best

    def describe_index(self) -> PlainDict:
        """Return a description of the existing index that any write to it changes."""
        name = self._existing()
        state = self.server.read(
            lambda client: client.indices.stats(index=name, metric="docs", level="shards"), _state_of
        )
        digest = sha256(json.dumps(state).encode()).hexdigest()
        return {"index": name, **self._field_options, "query": self.query, "state": digest}

    def distinct_labels(self) -> list[str]:
        """Return the distinct labels of the existing index, sorted; empty without a `label_field`."""
        if self.label_field is None:
            return []
        name = self._existing()
        candidates = (self.label_field, f"{self.label_field}.keyword")
        field = next((field for field in candidates if self._fields.get(field)), None)
        if field is None:
            raise self._error(name, f"can't list the values of {self.label_field}; name a keyword field")
        terms = {"terms": {"field": field, "size": _MOST_LABELS}}
        others, labels = self.server.read(
            lambda client: client.search(index=name, size=0, aggs={"labels": terms}), _labels_of
        )
        if others > 0:
            raise self._error(name, f"has more than {_MOST_LABELS} values of {field}; is it a label?")
        return labels

    def _existing(self) -> str:
        """Return the name of the existing index, after opening it."""
        name = self.existing_index
        assert name is not None, "no existing index: give `index`"
        if self._name is None:
            self._read_fields(name)
            self._open_index(name)
        return name

    def _read_fields(self, name: str) -> None:
        """Read the fields of an existing index; refuse an index without the named ones."""
        # OpenSearch reads the fields from the path, where the client's own method does not write them.
        path = f"/{quote(name, safe='*,')}/_field_caps?fields=*"
        known = self.server.read(
            lambda client: client.perform_request("GET", path, headers={"accept": "application/json"}),
            _fields_of,
            expected=("index_not_found_exception",),
        )
        if known is None:
            raise self._error(name, "is not there; GET _cat/indices lists those there are")
        self._fields = known
        for option, field in self._field_options.items():
            if field is None or field in self._fields:
                continue
            if option == "text_field" or not self._is_in_documents(name, field):
                fields = excerpt(", ".join(sorted(self._fields)) or "none")
                raise self._error(name, f"has no field {field} ({option}); it has {fields}")

    def _returned(self, field: str) -> PlainDict:
        """Return the specification of a field in the answers; OpenSearch knows no parameter `include_unmapped`."""
        return {"field": field} | ({"include_unmapped": True} if self.product == "Elasticsearch" else {})

    def _is_in_documents(self, name: str, field: str) -> bool:
        # Labels and ids can be in the documents without being mapped.
        return self.server.read(
            lambda client: client.search(index=name, size=100, source=False, fields=[self._returned(field)]),
            lambda answer: any(hit.get("fields") for hit in answer["hits"]["hits"]),
        )

    def _document(self, hit: PlainDict) -> Document:
        fields, name, id_ = hit.get("fields", {}), self._opened(), hit["_id"]
        if self.text_field not in fields:
            problem = f"has the document {id_} without {self.text_field} (text_field), or keeps no _source"
            raise self._error(name, problem)
        # Two indexes of a pattern or an alias may have documents of the same id.
        document_id = id_ if hit["_index"] == name else f"{hit['_index']}/{id_}"
        if self.id_field is not None:
            document_id = _value(fields, self.id_field)
        if document_id is None:
            raise self._error(name, f"has the document {id_} without {self.id_field} (id_field)")
        label = None if self.label_field is None else _value(fields, self.label_field)
        text = " ".join(str(part) for part in fields[self.text_field])
        return Document(document_id, text, label, float(np.float32(hit["_score"])))

    def _item(self, query: str, size: int, tail: str) -> bytes:
        """Return the two lines of a query in a multi-search request."""
        parameters = []
        if self._global_statistics:
            parameters.append('"search_type":"dfs_query_then_fetch"')
        if self.existing_index is not None:
            # Always the same replica of a shard: replicas may break ties differently.
            parameters.append('"preference":"memory-zoo"')
        return f'{{{",".join(parameters)}}}\n{{"query":{query},"size":{size},{tail}'.encode()

    def _query(self, text: str) -> str:
        """Return the query of the existing index for a text."""
        if self.query is None:
            return self._match(text, self.text_field)
        return json.dumps(_filled(self.query, whole_characters(text)))

    def _match(self, text: str, field: str) -> str:
        """Return the query for documents with terms of a text."""
        # A term takes a character and, in ASCII, another one that separates it from the next.
        is_long = len(text) > (2 * base.MAX_QUERY_TERMS if text.isascii() else base.MAX_QUERY_TERMS)
        query = self._long_query(text, field) if is_long else None
        return query or f'{{"match":{{{as_json(field)}:{as_json(text)}}}}}'

    def _long_query(self, text: str, field: str) -> str | None:
        """Return the query of the first terms of a long text, None if the text has few terms after all."""
        analyzer = "standard" if self.existing_index else self.ranking.analyzer
        terms = terms_of(analyzer, text)
        counts = Counter(terms)
        if len(terms) <= 2 * base.MAX_QUERY_TERMS and len(counts) <= base.MAX_QUERY_TERMS:
            return None
        if len(counts) > base.MAX_QUERY_TERMS:
            self.warn_of_long_query()
        first = list(counts.items())[: base.MAX_QUERY_TERMS]
        if self.existing_index is not None:
            # The field has an analyzer of the user's, which needs words.
            return f'{{"match":{{{as_json(field)}:{as_json(" ".join(term for term, _ in first))}}}}}'
        clauses = ",".join(
            f'{{"term":{{"text":{{"value":{as_json(term)},"boost":{count}}}}}}}' for term, count in first
        )
        return f'{{"bool":{{"should":[{clauses}]}}}}'


class OpenSearchRetriever(ElasticsearchRetriever):
    """Ranks texts with an OpenSearch 2 or 3 server; its options are those of `ElasticsearchRetriever`.

    `OPENSEARCH_URL` names the server, `OPENSEARCH_USERNAME`, `OPENSEARCH_PASSWORD` and `OPENSEARCH_CA_CERTS` are the
    credentials. The named fields of an existing index must be in its mapping.
    """

    product = "OpenSearch"

    @override
    def _mapping(self) -> tuple[PlainDict, PlainDict]:
        settings, mappings = super()._mapping()
        similarity = settings["similarity"]["memory"]
        lucene = self.server.read(
            lambda client: client.info(), lambda page: int(page["version"]["lucene_version"].split(".")[0])
        )
        # The scores of BM25 lack the factor k1 + 1 since version 3, which has Lucene 10.
        if similarity["type"] == "BM25" and lucene >= 10:
            similarity["type"] = "LegacyBM25"
        return settings, mappings


def _filled(template: Any, text: str) -> Any:
    """Return a query template with the text in place of the placeholder, in string values only."""
    return mapped(lambda each: each.replace(_PLACEHOLDER, text) if isinstance(each, str) else each, template)


def _fields_of(answer: PlainDict) -> dict[str, bool] | None:
    """Return the fields of an index, and whether their values can be listed; None if there is no index."""
    if not answer.get("indices"):
        return None
    return {
        field: all(kind["aggregatable"] for kind in kinds.values())
        for field, kinds in answer["fields"].items()
        if not field.startswith("_") and not kinds.keys() & {"object", "nested"}
    }


def _state_of(stats: PlainDict) -> list[tuple[object, ...]]:
    """Return the last write and the number of documents of each shard."""
    return sorted(
        (index["uuid"], shard, primary["seq_no"]["max_seq_no"], primary["docs"]["count"])
        for index in stats["indices"].values()
        for shard, replicas in index["shards"].items()
        for primary in replicas
        if primary["routing"]["primary"]
    )


def _labels_of(answer: PlainDict) -> tuple[int, list[str]]:
    """Return the number of documents with labels that are not listed, and the listed labels, sorted."""
    values = answer["aggregations"]["labels"]
    labels = sorted(str(bucket.get("key_as_string", bucket["key"])) for bucket in values["buckets"])
    return int(values["sum_other_doc_count"]), labels


def _value(fields: PlainDict, name: str) -> str | None:
    """Return the first value of a field as text."""
    values = fields.get(name)
    if not values or values[0] is None:
        return None
    first = values[0]
    return str(first).lower() if isinstance(first, bool) else str(first)
