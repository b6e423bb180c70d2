"""Tables of pairs: read, and split by question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

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
from datamodules.duplicates import Duplicates
from datamodules.options import DataOptions, check_choice
from datamodules.retrieval.folding import fold_hashes

#: A table whose columns the user names, or a published release.
Layout: TypeAlias = Literal["table", "wikiqa", "quora", "trec"]


@dataclass(frozen=True, kw_only=True)
class PairTableOptions(DataOptions):
    """Options of the tables of pairs.

    Attributes:
        train_file: the table to train on.
        validation_file: the table for validation; None = questions are split off the training table.
        test_file: the table for the test.
        goal: `ranking` orders a question's candidates (labels are grades of 0 or more); `classification` decides
            whether two texts match (labels are 0 and 1). None = classification for Quora's pairs, ranking for all
            others.
        layout: `table` has the columns named below; `wikiqa` is the official release; `quora` is Quora's release, or
            label, two questions and id without a header; in `trec` the files are judgements (`query 0 document grade`
            or `query document grade`) of the texts in the two files below.
        first_column: name or number (from 0) of the first text (the question).
        second_column: name or number of the second text (the answer).
        label_column: name or number of the grade or label.
        question_column: name or number of an id of the question; None = pairs of equal first texts are one question.
        id_column: name or number of an id of the pair; None = row numbers.
        header: whether CSV files have a header line; None detects it.
        quotes: whether fields may be enclosed in double quotes; None = in CSV files, not in TSV files.
        encoding_errors: `strict` refuses bytes that are not UTF-8, `replace` replaces them by U+FFFD.
        queries_file: with `trec`, the queries of all splits: .jsonl with `id` (or `_id`) and `text`, or .tsv with id
            and text and no header; one file or several.
        documents_file: with `trec`, the documents, in the same formats. All of them are then the memory.
        document_column: name or number of the documents' text, or several, which are joined; None = `text`, or the
            second column of a .tsv.
        test_split: share of the training table's questions that is split off for the test, before the validation
            questions; it replaces a test file. None = no such test.
    """

    train_file: str | None = None
    validation_file: str | None = None
    test_file: str | None = None
    goal: Goal | None = None
    layout: Layout = "table"
    first_column: Column = "first"
    second_column: Column = "second"
    label_column: Column = "label"
    question_column: Column | None = None
    id_column: Column | None = None
    header: bool | None = None
    quotes: bool | None = None
    encoding_errors: EncodingErrors = "strict"
    queries_file: str | list[str] | None = None
    documents_file: str | None = None
    document_column: Column | list[Column] | None = None
    test_split: float | None = None

    splitting: ClassVar[tuple[str, ...]] = (*DataOptions.splitting, "test_split")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "layout", ("table", "wikiqa", "quora", "trec"))
        check_choice(self, "goal", (None, "ranking", "classification"))
        check_choice(self, "encoding_errors", ("strict", "replace"))
        for name in ("validation_split", "test_split"):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise InputError(f"data.{name}={share}: give a share between 0 and 1")
        if self.test_split is not None and self.test_file is not None:
            raise InputError("data.test_split and data.test_file: give one of them")
        if self.layout == "trec":
            if self.queries_file is None or self.documents_file is None:
                raise InputError("data.layout=trec: name data.queries_file and data.documents_file")
            if self.goal == "classification":
                raise InputError(
                    "data.goal=classification: pairs to classify have no candidates; set goal=ranking"
                )

    @property
    def chosen_goal(self) -> Goal:
        """The goal, after the default of the layout."""
        return self.goal or ("classification" if self.layout == "quora" else "ranking")


class PairTables:
    """Reads tables of pairs and splits them by question."""

    def __init__(self, options: PairTableOptions, duplicates: Duplicates) -> None:
        """Configure; nothing is read yet."""
        self.options, self.duplicates = options, duplicates
        self._collection: tuple[Rows, Rows] | None = None

    @property
    def collection(self) -> tuple[Rows, Rows]:
        """Queries and documents of a test collection."""
        if self._collection is None:
            files, documents = self.options.queries_file or [], self.options.documents_file
            assert documents is not None  # checked by the options
            queries = [read_identified(file) for file in ([files] if isinstance(files, str) else files)]
            self._collection = (
                Rows.concat(queries),
                read_identified(documents, self.options.document_column),
            )
        return self._collection

    def release_collection(self) -> None:
        """Forget the texts of the collection."""
        self._collection = None

    # --- reading ---

    def read(self, path: str, labelled: bool = True) -> Pairs:
        """A table; without `labelled`, labels may be missing (prediction)."""
        options = self.options
        if options.layout == "wikiqa":
            return read_wikiqa(path, options.encoding_errors, labelled=labelled)
        if options.layout == "quora":
            return read_quora(path, options.encoding_errors, labelled=labelled)
        if options.layout == "trec":
            if not labelled:
                raise InputError(
                    f"{path}: give the columns of the pairs with --first_column and --second_column"
                )
            return read_trec(path, *self.collection, options.encoding_errors)
        return read_pairs(
            path,
            options.first_column,
            options.second_column,
            label_column=options.label_column if labelled else None,
            question_column=options.question_column if labelled else None,
            id_column=options.id_column if labelled else None,
            header=options.header,
            quotes=options.quotes,
            encoding_errors=options.encoding_errors,
            goal=options.chosen_goal,
        )

    def read_tables(self, wanted: Sequence[str]) -> dict[str, Pairs]:
        """The wanted splits; no question of the training table is in two of them."""
        options = self.options
        files = {
            "train": options.train_file,
            "validation": options.validation_file,
            "test": options.test_file,
        }
        shares = {"test": options.test_split, "validation": options.validation_split}
        if "test" in wanted and files["test"] is None and shares["test"] is None:
            raise InputError("data.test_file: name a table of pairs, or a share with data.test_split")
        is_split_off = {
            name: share for name, share in shares.items() if share is not None and files[name] is None
        }
        tables: dict[str, Pairs] = {}
        if "train" in wanted or is_split_off.keys() & set(wanted):
            if files["train"] is None:
                raise InputError("data.train_file: name a table of pairs")
            tables = self._split(self.read(files["train"]), is_split_off)
        others = {name: files[name] for name in wanted if name not in tables}
        return {
            **{name: table for name, table in tables.items() if name in wanted},
            **{name: self.read(file) for name, file in others.items() if file is not None},
        }

    def _split(self, table: Pairs, shares: dict[str, float | int]) -> dict[str, Pairs]:
        """The training table, and the splits that take a share of its questions."""
        if not shares:
            return {"train": table}
        left = np.arange(table.num_questions)
        groups = self.duplicates.groups(self._question_groups(table))
        # Questions with a positive are distributed evenly: only these count.
        kinds = np.where(table.has_positive, "with a positive", "without").tolist()
        parts = {}
        for name, share in shares.items():
            together = None if groups is None else groups[left]
            labels = [kinds[question] for question in left]
            rest, chosen = stratified_split(labels, share, self.options.split_seed, together)
            left, parts[name] = left[rest], left[chosen]
        return {name: table.select_questions(part) for name, part in {"train": left, **parts}.items()}

    # --- duplicates ---

    def duplicate_keys(self, table: Pairs) -> NDArray[np.uint64]:
        """A key for each pair to classify, independent of the order of its texts; for each question to rank."""
        first = fold_hashes(table.first.texts)
        keys: NDArray[np.uint64]
        if self.options.chosen_goal == "ranking":
            keys = first[table.question_row]
            return keys
        one, other = first[table.first_row], fold_hashes(table.second.texts)[table.second_row]
        # The factor distinguishes a pair from another pair of the same sum.
        keys = np.minimum(one, other) * np.uint64(0x9E3779B97F4A7C15) + np.maximum(one, other)
        return keys

    def _question_groups(self, table: Pairs) -> NDArray[np.int64]:
        """int64 [questions]: equal for questions that are duplicates or share a duplicate of a pair."""
        texts = fold_hashes(table.first.texts)[table.question_row]
        numbers = np.arange(table.num_questions)
        links = [(numbers, np.unique(texts, return_inverse=True)[1].reshape(-1))]
        if self.options.chosen_goal == "classification":
            pairs = np.unique(self.duplicate_keys(table), return_inverse=True)[1].reshape(-1)
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
