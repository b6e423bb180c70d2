"""Queries, documents and judgements: the user's files, read and split by query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.corpora.judgements import Judgements, read_judgements
from datamodules.corpora.pair_readers import read_identified
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.duplicates import Duplicates
from datamodules.options import DataOptions
from datamodules.retrieval.folding import fold_hashes

#: A file, or several that are joined.
Files: TypeAlias = str | list[str] | None


@dataclass(frozen=True, kw_only=True)
class CollectionOptions(DataOptions):
    """Options of the files of a test collection.

    Attributes:
        corpus_file: the documents that are ranked: .jsonl or .parquet with `id` (or `_id`) and a text, or .tsv with id
            and text and no header.
        train_queries: the queries to train on, in the same formats; one file or several.
        train_judgements: the documents that answer them, and how well: lines `query 0 document grade` (TREC) or
            `query document grade` (BEIR, TSV), or a .jsonl or .parquet table.
        validation_queries: the queries for validation; None = the training queries' file.
        validation_judgements: None = a share of the training queries is split off (`validation_split`).
        test_queries: the queries for the test.
        test_judgements: the judgements for the test.
        query_column: name or number of a query's text; None = `text`, or the second column of a .tsv.
        document_column: name or number of a document's text, or several columns, which are joined; None = as for
            queries.
    """

    corpus_file: str | None = None
    train_queries: Files = None
    train_judgements: str | None = None
    validation_queries: Files = None
    validation_judgements: str | None = None
    test_queries: Files = None
    test_judgements: str | None = None
    query_column: Column | None = None
    document_column: Column | list[Column] | None = None

    training_table: ClassVar[str] = "train_judgements"


class CollectionTables:
    """Reads a test collection."""

    def __init__(self, options: CollectionOptions, duplicates: Duplicates) -> None:
        """Configure; nothing is read yet."""
        self.options, self.duplicates = options, duplicates
        self._documents: Rows | None = None

    @property
    def documents(self) -> Rows:
        """The documents."""
        if self._documents is None:
            if self.options.corpus_file is None:
                raise InputError("data.corpus_file: name the documents that are to be ranked")
            self._documents = read_identified(self.options.corpus_file, self.options.document_column)
        return self._documents

    def release_documents(self) -> None:
        """Forget the documents: from here on, they are mapped."""
        self._documents = None

    def read_tables(self, wanted: Sequence[str]) -> dict[str, Judgements]:
        """The wanted splits; no query of the training table is in two of them."""
        splits_off = "validation" in wanted and self.options.validation_judgements is None
        names = ["train" if splits_off and name == "validation" else name for name in wanted]
        tables = {name: self._read(name) for name in dict.fromkeys(names)}
        if splits_off:
            table = tables["train"]
            # Queries with a relevant document are distributed evenly: only these count.
            kinds = np.where(table.has_relevant, "with a relevant document", "without").tolist()
            train, validation = self.duplicates.split_off(kinds, duplicate_keys(table))
            tables |= {"train": table.select(train), "validation": table.select(validation)}
        return {name: tables[name] for name in wanted}

    def _read(self, name: str) -> Judgements:
        options = self.options
        judgements, queries = {
            "train": (options.train_judgements, options.train_queries),
            "validation": (
                options.validation_judgements,
                options.validation_queries or options.train_queries,
            ),
            "test": (options.test_judgements, options.test_queries),
        }[name]
        if judgements is None:
            raise InputError(f"data.{name}_judgements: name a file")
        if queries is None:
            raise InputError(f"data.{name}_queries: name a file")
        return read_judgements(judgements, self._read_queries(queries), self.documents)

    def _read_queries(self, files: str | list[str]) -> Rows:
        names = [files] if isinstance(files, str) else files
        queries = [read_identified(name, self.options.query_column) for name in names]
        return queries[0] if len(queries) == 1 else Rows.concat(queries)


def duplicate_keys(table: Judgements) -> NDArray[np.uint64]:
    """A key for each query."""
    return fold_hashes(table.queries.texts)
