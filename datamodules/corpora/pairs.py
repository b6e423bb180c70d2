"""Pairs of texts, in lists: a question's candidates with their grades, or texts that match or do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from datamodules.core.ragged import Ragged, offsets_of
from datamodules.core.sharing import cached_property
from datamodules.corpora.rows import SCHEMA, Repairs, Rows, StoredTable


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
    source: str

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
        firsts, first_row = _distinct(repairs.column(list(first), pa.large_string()), source)
        seconds, second_row = _distinct(repairs.column(list(second), pa.large_string()), source)
        if questions is None:
            question, question_ids = first_row, firsts.table.column("id").combine_chunks()
        else:
            encoded = repairs.column(list(questions), pa.string()).dictionary_encode()
            question, question_ids = encoded.indices.to_numpy(), encoded.dictionary
        if ids is None:
            ids = list(map(str, range(len(first))))
        named = repairs.column(list(ids), pa.string())
        repairs.report(source)
        target = np.full(len(first), np.nan, np.float32)
        if targets is not None:
            target[:] = targets
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
        mask = np.zeros(self.num_questions, dtype=bool)
        mask[self.question[self.target > 0]] = True
        return mask

    def select(self, row_numbers: ArrayLike) -> Pairs:
        """Return the pairs with these numbers, in the order given, and only their texts."""
        chosen = np.asarray(row_numbers, dtype=np.int64)
        first, first_row = _used(self.first_row[chosen])
        second, second_row = _used(self.second_row[chosen])
        questions, question = _used(self.question[chosen])
        firsts = _numbered(self.first.select(first).table.column("text"), self.source)
        seconds = _numbered(self.second.select(second).table.column("text"), self.source)
        ids, question_ids = self.ids.take(pa.array(chosen)), self.question_ids.take(pa.array(questions))
        target = self.target[chosen]
        return Pairs(firsts, seconds, first_row, second_row, question, target, ids, question_ids, self.source)

    def select_questions(self, questions: ArrayLike) -> Pairs:
        """Return all pairs of these questions, in the table's order."""
        return self.select(np.flatnonzero(np.isin(self.question, questions)))


def _distinct(column: pa.Array, source: str) -> tuple[Rows, NDArray[np.int32]]:
    """Return the distinct texts of a column as rows, and the row of each field."""
    encoded = column.dictionary_encode()
    return _numbered(encoded.dictionary, source), encoded.indices.to_numpy()


def _numbered(texts: pa.Array, source: str) -> Rows:
    """Return the rows of an Arrow column of texts, with their numbers as ids and without labels."""
    ids = pa.array(np.arange(len(texts))).cast(pa.string())
    return Rows(pa.table([ids, texts, pa.nulls(len(texts), pa.string())], schema=SCHEMA), source)


def _used(rows: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return distinct numbers in order of first occurrence, and the position of each number among them."""
    distinct, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order].astype(np.int64), position[inverse.reshape(-1)]
