"""Pairs of texts, in lists: a question's candidates with their grades, or texts that match or do not; and readers."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import is_number
from datamodules.core.ragged import Ragged, offsets_of
from datamodules.core.sharing import cached_property
from datamodules.corpora.judgements import judged_pairs
from datamodules.corpora.readers import open_lines, read_blocks
from datamodules.corpora.records import Column, Columns
from datamodules.corpora.rows import SCHEMA, Repairs, Rows, StoredTable

log = logging.getLogger(__name__)

#: `ranking`: grades of 0 or more; `classification`: 0 or 1.
Goal: TypeAlias = Literal["ranking", "classification"]


@dataclass(frozen=True, eq=False)
class Pairs(StoredTable):
    """A table of P pairs."""

    #: the distinct first texts (questions), and the second ones, in order of first occurrence; ids are row numbers.
    first: Rows
    second: Rows
    #: [P], rows of `first`, and of `second`.
    first_row: NDArray[np.int32]
    second_row: NDArray[np.int32]
    #: [P], the question that a pair belongs to, numbered from 0 in order of first occurrence.
    question: NDArray[np.int32]
    #: [P], grades; nan = unknown.
    target: NDArray[np.float32]
    #: [P], ids of the pairs.
    ids: pa.StringArray
    #: [questions].
    question_ids: pa.StringArray
    source: str = "a table"

    @staticmethod
    def from_lists(
        first: Sequence[str],
        second: Sequence[str],
        targets: Sequence[float] | None = None,
        questions: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        source: str = "pairs",
    ) -> Pairs:
        """Make a table of P pairs with grades as targets; without questions, equal first texts are one question."""
        repairs = Repairs()
        first_texts, first_row = _distinct(repairs.column(list(first), pa.large_string()))
        second_texts, second_row = _distinct(repairs.column(list(second), pa.large_string()))
        firsts, seconds = _numbered(first_texts, source), _numbered(second_texts, source)
        question_ids, question = firsts.table.column("id").combine_chunks(), first_row
        if questions is not None:
            question_ids, question = _distinct(repairs.column(list(questions), pa.string()))
        named = repairs.column(list(map(str, range(len(first))) if ids is None else ids), pa.string())
        repairs.report(source)
        target = np.full(len(first), np.nan if targets is None else targets, np.float32)
        return Pairs(firsts, seconds, first_row, second_row, question, target, named, question_ids, source)

    def __len__(self) -> int:
        return len(self.target)

    @property
    def num_questions(self) -> int:
        """The number of questions."""
        return len(self.question_ids)

    @cached_property
    def lists(self) -> Ragged:
        """The row numbers of each question's pairs, in their order."""
        rows = np.argsort(self.question, kind="stable").astype(np.int64)
        return Ragged(rows, offsets_of(np.bincount(self.question, minlength=self.num_questions)))

    @property
    def question_row(self) -> NDArray[np.int32]:
        """int32 [questions]: rows of `first`, the text of each question's first pair."""
        return self.first_row[self.lists.values[self.lists.offsets[:-1]]]

    def with_second_texts(self, texts: Sequence[str]) -> tuple[Pairs, NDArray[np.int64]]:
        """Add second texts without pairs; also return the row of each text [n] among the second texts."""
        known = {text: row for row, text in enumerate(self.second.texts)}
        rows = [known.setdefault(text, len(known)) for text in texts]
        if len(known) == len(self.second):
            return self, np.array(rows, np.int64)
        second = _numbered(pa.array(list(known), pa.large_string()), self.source)
        return replace(self, second=second), np.array(rows, np.int64)

    def with_pairs(self, question: NDArray[np.int64], second_row: NDArray[np.int64]) -> Pairs:
        """Append n pairs of grade 0: numbers of the questions [n] and rows of the second texts [n]."""
        # The id of a pair is its question's id and its row in the larger table.
        names = self.question_ids.take(pa.array(question)).to_pylist()
        ids = [f"{name}:{row}" for row, name in enumerate(names, len(self))]
        return replace(
            self,
            first_row=np.concatenate([self.first_row, self.question_row[question]]).astype(np.int32),
            second_row=np.concatenate([self.second_row, second_row]).astype(np.int32),
            question=np.concatenate([self.question, question]).astype(np.int32),
            target=np.concatenate([self.target, np.zeros(len(question), np.float32)]),
            ids=pa.array([*self.ids.to_pylist(), *ids], pa.string()),
        )

    @property
    def has_positive(self) -> NDArray[np.bool_]:
        """bool [questions]: True where a pair of the question has a grade above 0."""
        return np.isin(np.arange(self.num_questions), self.question[self.target > 0])

    def select(self, questions: ArrayLike) -> Pairs:
        """Return all pairs of these questions, in the table's order, and only their texts."""
        chosen = np.flatnonzero(np.isin(self.question, questions))
        first, first_row = _distinct(pa.array(self.first_row[chosen]))
        second, second_row = _distinct(pa.array(self.second_row[chosen]))
        questions, question = _distinct(pa.array(self.question[chosen]))
        firsts = _numbered(self.first.table.column("text").take(first), self.source)
        seconds = _numbered(self.second.table.column("text").take(second), self.source)
        ids, question_ids = self.ids.take(pa.array(chosen)), self.question_ids.take(questions)
        target = self.target[chosen]
        return Pairs(firsts, seconds, first_row, second_row, question, target, ids, question_ids, self.source)


def _distinct(values: pa.Array) -> tuple[pa.Array, NDArray[np.int32]]:
    """Return the distinct values in order of first occurrence, and the position of each value among them."""
    encoded = values.dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy()


def _numbered(texts: pa.Array, source: str) -> Rows:
    """Return the rows of an Arrow column of texts, with their numbers as ids and without labels."""
    ids = pa.array(np.arange(len(texts))).cast(pa.string())
    return Rows(pa.table([ids, texts, pa.nulls(len(texts), pa.string())], schema=SCHEMA), source)


def read_pairs(
    path: str | Path,
    first_column: Column,
    second_column: Column,
    label_column: Column | None = None,
    question_column: Column | None = None,
    id_column: Column | None = None,
    header: bool | None = None,
    quotes: bool | Literal["whole"] | None = None,
    goal: Goal = "ranking",
    replace_bytes: bool = False,
) -> Pairs:
    """Read pairs from a table; see `read_table`, and `open_lines` for `replace_bytes`.

    Without a question column, pairs of equal first texts are one question. With `quotes` = `whole`, quotes are
    characters, except around a whole text in which they are doubled. Labels are numbers of 0 or more to rank by, or 0
    and 1 to classify.
    """
    texts = [first_column, second_column]
    texts += [column for column in (question_column, id_column) if column is not None]
    columns, quoted = Columns(texts, label_column), False if quotes == "whole" else quotes
    fields: list[list[str]] = [[] for _ in texts]
    targets: list[float] = []
    for block in read_blocks(path, columns, header, quoted, replace_bytes=replace_bytes):
        for column, values in enumerate(fields):
            values += block.stripped(column)
        if label_column is not None:
            targets += block.converted(-1, partial(_target, goal=goal, column=label_column))
    first, second, *more = fields
    if quotes == "whole":
        first, second = list(map(_without_quotes, first)), list(map(_without_quotes, second))
    for side, values in (("first", first), ("second", second)):
        if empty := values.count(""):
            log.warning("%s: %d of %d %s texts are empty", path, empty, len(values), side)
    questions = more.pop(0) if question_column is not None else None
    ids = more.pop() if id_column is not None else None
    return Pairs.from_lists(first, second, targets or None, questions, ids, str(path))


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_BOOLEANS = {"True": 1.0, "False": 0.0, "true": 1.0, "false": 0.0}


def _without_quotes(text: str) -> str:
    """Remove the quotes of a CSV file around a text."""
    quoted = _QUOTED.fullmatch(text) if text.startswith('"') else None
    return text if quoted is None else quoted[1].replace('""', '"').strip()


def _target(label: str, location: str, goal: Goal, column: Column) -> float:
    """Return the number of a label."""
    label = label.strip()
    if label in _BOOLEANS:
        return _BOOLEANS[label]
    wanted = "0 or 1" if goal == "classification" else "a number of 0 or more"
    if not label:
        raise InputError(f"{location}: no label in column {column!r}; write {wanted}")
    if not is_number(label):
        problem = f"the label column {column!r} has the text {excerpt(label, 40)!r} instead of {wanted}"
        advice = "are first_column, second_column and label_column swapped?"
        raise InputError(f"{location}: {problem}; {advice}")
    number = float(label)
    if not (number in (0, 1) if goal == "classification" else number >= 0 and math.isfinite(number)):
        raise InputError(f"{location}: the label {label!r} must be {wanted}; correct it")
    return number


def read_wikiqa(path: str | Path, labelled: bool = True) -> Pairs:
    """Read a file of the official WikiQA release; without `labelled`, its labels may be missing.

    Y. Yang, W. Yih, C. Meek: WikiQA: A Challenge Dataset for Open-Domain Question Answering, EMNLP 2015.
    """
    columns = ("Question", "Sentence", "Label" if labelled else None, "QuestionID", "SentenceID")
    return read_pairs(path, *columns, header=True, quotes=False)


def read_quora(path: str | Path, labelled: bool = True) -> Pairs:
    """Read Quora's question pairs: the release (with its header and quotes), or label, two questions and an id.

    The second format is the split of Z. Wang, W. Hamza, R. Florian: Bilateral Multi-Perspective Matching for Natural
    Language Sentences, IJCAI 2017, which has no header, and a row with an incomplete character.
    """
    released = re.match(r'"?id"?[,\t]', next(open_lines(path, replace_bytes=True))) is not None
    label, first, second, id_ = ("is_duplicate", "question1", "question2", "id") if released else (0, 1, 2, 3)
    # Files without a header have some fields with the quotes of the release.
    quotes: Literal["whole", True] = True if released else "whole"
    label_column = label if labelled else None
    return read_pairs(
        path, first, second, label_column, None, id_, released, quotes, "classification", replace_bytes=True
    )


def read_trec(judgements: str | Path, queries: Rows, documents: Rows) -> Pairs:
    """Read judged pairs of a test collection: see `judged_pairs`, and `read_identified` for the texts."""
    query_rows, document_rows = queries.row_of_id(), documents.row_of_id()
    judged = list(judged_pairs(judgements))
    for query, document, _, location in judged:
        for id_, known, rows in ((query, query_rows, queries), (document, document_rows, documents)):
            if id_ not in known:
                raise InputError(f"{location}: no text with the id {id_!r} in {rows.source}")
    if not judged:
        raise InputError(f"{judgements}: no judgements; give a file with at least one")
    query_ids, document_ids, grades, _ = zip(*judged, strict=True)
    firsts = queries.texts.take([query_rows[id_] for id_ in query_ids])
    seconds = documents.texts.take([document_rows[id_] for id_ in document_ids])
    ids = [f"{query}:{document}" for query, document, *_ in judged]
    return Pairs.from_lists(firsts, seconds, grades, query_ids, ids, str(judgements))
