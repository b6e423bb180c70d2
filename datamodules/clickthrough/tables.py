"""Which queries, documents and judgements there are: the user's files, read and split by query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.corpora.judgements import Judgements, read_judgements
from datamodules.corpora.pair_readers import read_identified
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.duplicates import CopyPart
from datamodules.retrieval.folding import fold_hashes

#: A file, or several that are joined.
Files = str | list[str] | None


class ClickTables(CopyPart):
    """Reads a test collection."""

    table_options = ("train_judgements",)

    def __init__(
        self,
        corpus_file: str | None = None,
        train_queries: Files = None,
        train_judgements: str | None = None,
        validation_queries: Files = None,
        validation_judgements: str | None = None,
        test_queries: Files = None,
        test_judgements: str | None = None,
        query_column: Column | None = None,
        document_column: Column | list[Column] | None = None,
        **shared: Any,
    ) -> None:
        """Describe the files.

        Args:
            corpus_file: the documents that are ranked: .jsonl or .parquet with `id` (or `_id`) and a text, or .tsv
                with id and text and no header.
            train_queries: the queries to train on, likewise; one file or several.
            train_judgements: which documents answer them, and how well: lines `query 0 document grade` (TREC) or
                `query document grade` (BEIR, TSV), or a .jsonl or .parquet table.
            validation_queries: the same for validation; None = the training queries' file.
            validation_judgements: None = a share of the training queries is split off (`validation_split`).
            test_queries: the same for the test.
            test_judgements: the same for the test.
            query_column: name or number of a query's text; None = `text`, or the second column of a .tsv.
            document_column: of a document's text, or several columns, which are joined; None = likewise.
            **shared: options of the other parts.
        """
        super().__init__(**shared)
        self._documents: Rows | None = None
        for name in ("train", "validation", "test"):
            if self.options[f"{name}_file"] is not None:
                raise InputError(
                    f"data.{name}_file: name data.{name}_queries and data.{name}_judgements in its place"
                )

    @property
    def documents(self) -> Rows:
        """The collection."""
        if self._documents is None:
            if self.options.corpus_file is None:
                raise InputError("data.corpus_file: name the documents that are to be ranked")
            self._documents = read_identified(self.options.corpus_file, self.options.document_column)
        return self._documents

    def read_queries(self, files: Files) -> Rows:
        """The queries of one file or several."""
        names = [files] if isinstance(files, str) else files or []
        queries = [read_identified(name, self.options.query_column) for name in names]
        return queries[0] if len(queries) == 1 else Rows.concat(queries)

    def copy_keys(self, table: Judgements) -> NDArray[np.uint64]:
        """Of each query."""
        return fold_hashes(table.queries.texts)

    def is_split_off(self, name: str) -> bool:
        """Whether the queries of a split come from the training table."""
        return bool(name == "validation" and self.options.validation_judgements is None)

    def _read(self, name: str) -> Judgements:
        options = self.options
        judgements = options[f"{name}_judgements"]
        queries = options[f"{name}_queries"] or (options.train_queries if name == "validation" else None)
        for option, value in (("judgements", judgements), ("queries", queries)):
            if value is None:
                raise InputError(f"data.{name}_{option}: name a file")
        return read_judgements(judgements, self.read_queries(queries), self.documents)

    def read_tables(self, wanted: Sequence[str]) -> dict[str, Judgements]:
        """The wanted splits; no query of the training table is in two of them."""
        read = ["train" if self.is_split_off(name) else name for name in wanted]
        tables = {name: self._read(name) for name in dict.fromkeys(read)}
        if "validation" in wanted and self.is_split_off("validation"):
            table = tables["train"]
            # Queries with a relevant document are shared out evenly: only these count.
            kinds = np.where(table.has_relevant, "with a relevant document", "without").tolist()
            train, validation = self.split_off(kinds, table)
            tables |= {"train": table.select(train), "validation": table.select(validation)}
        return {name: tables[name] for name in wanted}
