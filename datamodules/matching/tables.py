"""Which pairs there are: the user's tables, read and split by question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.corpora.pair_readers import (
    Goal,
    read_identified,
    read_pairs,
    read_quora,
    read_trec,
    read_wikiqa,
)
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.readers import EncodingErrors
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import stratified_split
from datamodules.duplicates import CopyPart
from datamodules.options import check_choices
from datamodules.retrieval.folding import fold_hashes

#: What a file looks like: columns that the user names, or a published release.
Layout: TypeAlias = Literal["table", "wikiqa", "quora", "trec"]


class PairTables(CopyPart):
    """Reads tables of pairs."""

    def __init__(
        self,
        goal: Goal | None = None,
        layout: Layout = "table",
        first_column: Column = "first",
        second_column: Column = "second",
        label_column: Column = "label",
        question_column: Column | None = None,
        id_column: Column | None = None,
        header: bool | None = None,
        quotes: bool | None = None,
        encoding_errors: EncodingErrors = "strict",
        queries_file: str | list[str] | None = None,
        documents_file: str | None = None,
        document_column: Column | list[Column] | None = None,
        test_split: float | None = None,
        **shared: Any,
    ) -> None:
        """Describe the tables.

        Args:
            goal: `ranking` puts a question's candidates in order (labels are grades of 0 or more);
                `classification` tells whether two texts match (labels are 0 and 1). None = classification of
                Quora's pairs, ranking of all others.
            layout: `table` has the columns named below; `wikiqa` is the official release; `quora` is Quora's
                release, or label, two questions and id without a header; in `trec` the files are judgements
                (`query 0 document grade` or `query document grade`) of the texts in the two files below.
            first_column: name or number (from 0) of the first text (the question).
            second_column: of the second text (the answer).
            label_column: of the grade or label.
            question_column: of an id of the question; None = pairs of equal first texts are one question.
            id_column: of an id of the pair; None = row numbers.
            header: whether CSV files have a header line; None finds out.
            quotes: whether fields may stand in double quotes; None = in CSV files, not in TSV files.
            encoding_errors: `strict` refuses bytes that are not UTF-8, `replace` puts U+FFFD in their place.
            queries_file: with `trec`, the queries of all splits: .jsonl with `id` (or `_id`) and `text`, or .tsv
                with id and text and no header; one file or several.
            documents_file: with `trec`, the documents, likewise. All of them are then the memory.
            document_column: name or number of the documents' text, or several, which are joined; None =
                `text`, or the second column of a .tsv.
            test_split: share of the training table's questions that is split off for the test before the
                validation questions are, to be used in place of a test file; None = no such test.
            **shared: options of the other parts.
        """
        super().__init__(**shared)
        options = self.options
        options.goal = goal or ("classification" if layout == "quora" else "ranking")
        choices = {
            "layout": ("table", "wikiqa", "quora", "trec"),
            "goal": ("ranking", "classification"),
            "encoding_errors": ("strict", "replace"),
        }
        check_choices(options, choices)
        for name in ("validation_split", "test_split"):
            if options[name] is not None and not 0 < options[name] < 1:
                raise InputError(f"data.{name}={options[name]}: give a share between 0 and 1")
        if test_split is not None and options.test_file is not None:
            raise InputError("data.test_split and data.test_file: give one of them")
        if layout == "trec" and None in (queries_file, documents_file):
            raise InputError("data.layout=trec: name data.queries_file and data.documents_file")
        if layout == "trec" and options.goal == "classification":
            raise InputError(
                "data.goal=classification: pairs to classify have no candidates; set goal=ranking"
            )
        self._collection: tuple[Rows, Rows] | None = None

    @property
    def collection(self) -> tuple[Rows, Rows]:
        """Queries and documents of a test collection."""
        if self._collection is None:
            files = self.options.queries_file
            queries = [read_identified(file) for file in ([files] if isinstance(files, str) else files)]
            documents = read_identified(self.options.documents_file, self.options.document_column)
            self._collection = Rows.concat(queries), documents
        return self._collection

    def copy_keys(self, table: Pairs) -> NDArray[np.uint64]:
        """Of each pair to classify, whichever text is the first; of each question to rank."""
        first = fold_hashes(table.first.texts)
        keys: NDArray[np.uint64]
        if self.options.goal == "ranking":
            keys = first[table.question_row]
            return keys
        one, other = first[table.first_row], fold_hashes(table.second.texts)[table.second_row]
        # Their order does not count; the factor tells a pair from another of the same sum.
        keys = np.minimum(one, other) * np.uint64(0x9E3779B97F4A7C15) + np.maximum(one, other)
        return keys

    def _question_groups(self, table: Pairs) -> NDArray[np.int64]:
        """A number for each question, equal for those that are copies or share a copy of a pair: int64 [questions]."""
        texts = fold_hashes(table.first.texts)[table.question_row]
        numbers = np.arange(table.num_questions)
        links = [(numbers, np.unique(texts, return_inverse=True)[1].reshape(-1))]
        if self.options.goal == "classification":
            pairs = np.unique(self.copy_keys(table), return_inverse=True)[1].reshape(-1)
            links.append((table.question.astype(np.int64), pairs))
        groups = numbers
        while True:
            before = groups
            for question, code in links:
                lowest = np.full(code.max(initial=0) + 1, len(numbers))
                np.minimum.at(lowest, code, groups[question])
                groups = groups.copy()
                np.minimum.at(groups, question, lowest[code])
            if np.array_equal(before, groups):
                return groups

    def _read(self, path: str) -> Pairs:
        options = self.options
        if options.layout == "wikiqa":
            return read_wikiqa(path, options.encoding_errors)
        if options.layout == "quora":
            return read_quora(path, options.encoding_errors)
        if options.layout == "trec":
            return read_trec(path, *self.collection, options.encoding_errors)
        names = ("first_column", "second_column", "label_column", "question_column", "id_column", "header")
        return read_pairs(
            path, **{name: options[name] for name in (*names, "quotes", "encoding_errors", "goal")}
        )

    def read_unlabelled(self, path: str) -> Pairs:
        """Pairs to score, of a table like the training table; labels need not be there."""
        options = self.options
        if options.layout == "wikiqa":
            return read_wikiqa(path, options.encoding_errors, labelled=False)
        if options.layout == "quora":
            return read_quora(path, options.encoding_errors, labelled=False)
        if options.layout == "trec":
            raise InputError(f"{path}: give the columns of the pairs with --first_column and --second_column")
        names = ("first_column", "second_column", "header", "quotes", "encoding_errors")
        return read_pairs(path, **{name: options[name] for name in names})

    def read_tables(self, wanted: Sequence[str]) -> dict[str, Pairs]:
        """The wanted splits; no question of the training table is in two of them."""
        options = self.options
        files = {"validation": options.validation_file, "test": options.test_file}
        if "test" in wanted and files["test"] is None and options.test_split is None:
            raise InputError("data.test_file: name a table of pairs, or a share with data.test_split")
        if all(files.get(name) is not None for name in wanted):
            return {name: self._read(files[name]) for name in wanted}
        if options.train_file is None:
            raise InputError("data.train_file: name a table of pairs")
        table = self._read(options.train_file)
        parts = {"train": np.arange(table.num_questions)}
        groups = self.copy_groups(self._question_groups(table))
        # Questions with a positive are shared out evenly: only these count.
        kinds = np.where(table.has_positive, "with a positive", "without").tolist()
        for name, share in (("test", options.test_split), ("validation", options.validation_split)):
            if share is not None and files[name] is None:
                left = parts["train"]
                together = None if groups is None else groups[left]
                rest, chosen = stratified_split([kinds[q] for q in left], share, options.split_seed, together)
                parts["train"], parts[name] = left[rest], left[chosen]
        return {
            name: (table if len(parts) == 1 else table.select_questions(parts[name]))
            if name in parts
            else self._read(files[name])
            for name in wanted
        }
