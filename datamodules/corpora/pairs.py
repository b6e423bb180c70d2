"""Pairs of texts, in lists: a question's candidates with their grades, or texts that match or do not.

A question has many candidates and a sentence may answer several questions, so the distinct texts of each side
are kept once and a pair is two row numbers: what is done to a text (cutting it into words, encoding it) is
done once.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from tqdm import tqdm

from datamodules.corpora.table import (
    SCHEMA,
    Column,
    Columns,
    EncodingErrors,
    Repairs,
    Rows,
    as_text,
    open_lines,
    open_records,
    read_table,
)
from datamodules.errors import InputError

log = logging.getLogger(__name__)

#: `ranking`: grades of 0 or more; `classification`: 0 or 1.
Goal: TypeAlias = Literal["ranking", "classification"]
_ARRAYS = ("first_row", "second_row", "question", "target")


@dataclass(frozen=True, eq=False)
class Pairs:
    """A table of P pairs.

    Attributes:
        first: the distinct first texts (questions), in order of first occurrence; ids are row numbers.
        second: the distinct second texts, likewise.
        first_row: int32 [P], rows of `first`.
        second_row: int32 [P], rows of `second`.
        question: int32 [P], the question that a pair belongs to, numbered from 0 in order of first occurrence.
        target: float32 [P], grades; nan = unknown.
        ids: Arrow array of strings [P], ids of the pairs.
        question_ids: Arrow array of strings [questions].
        source: what messages call the table.
    """

    first: Rows
    second: Rows
    first_row: NDArray[np.int32]
    second_row: NDArray[np.int32]
    question: NDArray[np.int32]
    target: NDArray[np.float32]
    ids: Any
    question_ids: Any
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
        """Pairs of strings in memory.

        Args:
            first: P first texts.
            second: P second texts.
            targets: their grades; None = unknown.
            questions: id of the question that each pair belongs to; None = equal first texts are one question.
            ids: of the pairs; None = row numbers.
            source: what messages call the table.
        """
        n = len(first)
        repairs = Repairs()
        firsts, first_row = _distinct(repairs.column(list(first), pa.large_string()), source)
        seconds, second_row = _distinct(repairs.column(list(second), pa.large_string()), source)
        if questions is None:
            question, question_ids = first_row, firsts.table.column("id").combine_chunks()
        else:
            encoded = repairs.column(list(questions), pa.string()).dictionary_encode()
            question, question_ids = encoded.indices.to_numpy(), encoded.dictionary
        named = repairs.column([str(i) for i in range(n)] if ids is None else list(ids), pa.string())
        repairs.report(source)
        target = np.full(n, np.nan, np.float32) if targets is None else np.asarray(targets, np.float32)
        return Pairs(firsts, seconds, first_row, second_row, question, target, named, question_ids, source)

    def __len__(self) -> int:
        return len(self.target)

    @property
    def num_questions(self) -> int:
        """Questions, those without a positive included."""
        return len(self.question_ids)

    @cached_property
    def lists(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pairs of each question, in their order: int64 [P] row numbers, and int64 [questions + 1].

        Question q has the rows `rows[offsets[q]:offsets[q + 1]]`.
        """
        rows = np.argsort(self.question, kind="stable").astype(np.int64)
        sizes = np.bincount(self.question, minlength=self.num_questions)
        return rows, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def with_second_texts(self, texts: Sequence[str]) -> tuple[Pairs, NDArray[np.int64]]:
        """These pairs with further second texts, and the row of each of the texts [n] among the second texts."""
        known = {text: row for row, text in enumerate(self.second.texts)}
        rows = [known.setdefault(text, len(known)) for text in texts]
        if len(known) == len(self.second):
            return self, np.array(rows, np.int64)
        second = _numbered(pa.array(list(known), pa.large_string()), self.source)
        return replace(self, second=second), np.array(rows, np.int64)

    def with_pairs(self, question: NDArray[np.int64], second_row: NDArray[np.int64]) -> Pairs:
        """These pairs and, behind them, pairs of grade 0.

        Args:
            question: [n] numbers of the questions.
            second_row: [n] rows of the second texts.
        """
        rows, offsets = self.lists
        first_row = self.first_row[rows[offsets[question]]]
        # A pair is called by its question and its place in the grown table.
        names = self.question_ids.take(pa.array(question)).to_pylist()
        ids = [f"{name}:{len(self) + place}" for place, name in enumerate(names)]
        return replace(
            self,
            first_row=np.concatenate([self.first_row, first_row]).astype(np.int32),
            second_row=np.concatenate([self.second_row, second_row]).astype(np.int32),
            question=np.concatenate([self.question, question]).astype(np.int32),
            target=np.concatenate([self.target, np.zeros(len(question), np.float32)]),
            ids=pa.array([*self.ids.to_pylist(), *ids], pa.string()),
        )

    @property
    def has_positive(self) -> NDArray[np.bool_]:
        """bool [questions]: whether a pair of the question has a grade above 0."""
        found = np.zeros(self.num_questions, dtype=bool)
        found[self.question[self.target > 0]] = True
        return found

    def select(self, row_numbers: ArrayLike) -> Pairs:
        """The pairs with these numbers, in the order given; texts that none of them has are left out."""
        chosen = np.asarray(row_numbers, dtype=np.int64)
        first, first_row = _used(self.first_row[chosen])
        second, second_row = _used(self.second_row[chosen])
        questions, question = _used(self.question[chosen])
        return Pairs(
            _numbered(self.first.select(first).table.column("text"), self.source),
            _numbered(self.second.select(second).table.column("text"), self.source),
            first_row,
            second_row,
            question,
            self.target[chosen],
            self.ids.take(pa.array(chosen)),
            self.question_ids.take(pa.array(questions)),
            self.source,
        )

    def select_questions(self, questions: ArrayLike) -> Pairs:
        """All pairs of these questions, in the table's order."""
        wanted = np.zeros(self.num_questions, dtype=bool)
        wanted[np.asarray(questions, dtype=np.int64)] = True
        return self.select(np.flatnonzero(wanted[self.question]))

    def save(self, folder: Path) -> None:
        """Write the files that `load` maps."""
        self.first.save(folder / "first.arrow")
        self.second.save(folder / "second.arrow")
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        for name in ("ids", "question_ids"):
            table = pa.table({"id": getattr(self, name)})
            path = str(folder / f"{name}.arrow")
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)

    @staticmethod
    def load(folder: Path, source: str) -> Pairs:
        """Map what `save` wrote."""
        names = [
            pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all().column("id")
            for name in ("ids", "question_ids")
        ]
        return Pairs(
            replace(Rows.load(folder / "first.arrow"), source=source),
            replace(Rows.load(folder / "second.arrow"), source=source),
            **{name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS},
            ids=names[0],
            question_ids=names[1],
            source=source,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of texts, pairs, grades and ids; the file's name does not matter."""
        digest = hashlib.sha256(self.first.fingerprint.encode() + self.second.fingerprint.encode())
        for name in _ARRAYS:
            values: NDArray[Any] = getattr(self, name)
            digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
        for names in (self.ids, self.question_ids):
            digest.update("\0".join(names.to_pylist()).encode() + b"\1")
        return digest.hexdigest()


def _distinct(column: Any, source: str) -> tuple[Rows, NDArray[np.int32]]:
    """The distinct texts of a column as rows, and for each field its row."""
    encoded = column.dictionary_encode()
    return _numbered(encoded.dictionary, source), encoded.indices.to_numpy()


def _numbered(texts: Any, source: str) -> Rows:
    """Rows of an Arrow column of texts, with their numbers as ids and without labels."""
    ids = pa.array(np.arange(len(texts))).cast(pa.string())
    return Rows(pa.table([ids, texts, pa.nulls(len(texts), pa.string())], schema=SCHEMA), source)


def _used(rows: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Distinct numbers in order of first occurrence, and the place of each number among them."""
    distinct, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order].astype(np.int64), place[inverse.reshape(-1)]


# --- reading ------------------------------------------------------------------------------------------------


def read_pairs(
    path: str | Path,
    first_column: Column,
    second_column: Column,
    label_column: Column | None = None,
    question_column: Column | None = None,
    id_column: Column | None = None,
    header: bool | None = None,
    quotes: bool | Literal["whole"] | None = None,
    encoding_errors: EncodingErrors = "strict",
    goal: Goal = "ranking",
) -> Pairs:
    """Read pairs from a table: .csv, .tsv, .jsonl (each also .gz, .xz), .parquet, a saved data set or the Hub.

    Args:
        path: see `read_table`.
        first_column: name or number (from 0) of the first text (the question).
        second_column: of the second text.
        label_column: of the grade or label; None for pairs without.
        question_column: of an id of the question; None = pairs of equal first texts are one question.
        id_column: of an id of the pair; None = row numbers.
        header: see `read_table`.
        quotes: see `read_table`; `whole`: quotes are characters, except around a whole text in which they are
            doubled.
        encoding_errors: `strict` refuses bytes that are not UTF-8, `replace` puts U+FFFD in their place.
        goal: what labels may be: numbers of 0 or more to rank by, or 0 and 1 to classify.

    Raises:
        InputError: the table can't be read, or a label is none; names file, line and what to do.
    """
    texts = [first_column, second_column]
    texts += [column for column in (question_column, id_column) if column is not None]
    columns = Columns.of(texts, label_column, None)
    records, unit = open_records(
        path, columns, header, False if quotes == "whole" else quotes, encoding_errors=encoding_errors
    )
    source = str(path)
    by_column: list[list[Any]] = [[] for _ in columns.wanted]
    lines: list[int] = []
    # Records go at once: thousands of them alive would set off searches for garbage in all that is loaded.
    add = [values.append for values in by_column]
    for line, record in tqdm(
        records, desc=f"reading {source}", unit=" rows", unit_scale=True, delay=3, disable=None
    ):
        lines.append(line)
        for append, field in zip(add, record, strict=True):
            append(field)
    if not lines:
        raise InputError(f"{source}: no rows; give a file with at least one")
    fields = [_stripped(values, source, unit, lines) for values in by_column[: len(texts)]]
    if quotes == "whole":
        fields[:2] = [list(map(_without_quotes, values)) for values in fields[:2]]
    targets = _Targets(goal, source, unit, label_column)
    if label_column is not None:
        targets.extend(by_column[-1], lines)
    for number, values in enumerate(fields[:2]):
        if empty := values.count(""):
            log.warning(
                "%s: %d of %d %s texts are empty", source, empty, len(values), ("first", "second")[number]
            )
    more = fields[2:]
    return Pairs.from_lists(
        fields[0],
        fields[1],
        targets.values if label_column is not None else None,
        more.pop(0) if question_column is not None else None,
        more.pop() if id_column is not None else None,
        source,
    )


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def _without_quotes(text: str) -> str:
    """The text without the quotes of a CSV file around it."""
    quoted = _QUOTED.fullmatch(text) if text.startswith('"') else None
    return text if quoted is None else quoted[1].replace('""', '"').strip()


def _stripped(column: Sequence[Any], source: str, unit: str, lines: Sequence[int]) -> list[str]:
    try:
        return list(map(str.strip, column))
    except TypeError:  # numbers and missing values of JSON and Parquet
        places = [(source, unit, line) for line in lines]
        return [as_text(field, place).strip() for field, place in zip(column, places, strict=True)]


class _Targets:
    """Numbers of labels; each distinct label is worked out once."""

    def __init__(self, goal: Goal, source: str, unit: str, column: Column | None) -> None:
        self.goal, self.source, self.unit, self.column = goal, source, unit, column
        self.values: list[float] = []
        self._known: dict[str, float] = {"True": 1.0, "False": 0.0, "true": 1.0, "false": 0.0}

    def extend(self, labels: Sequence[Any], lines: Sequence[int]) -> None:
        for label, line in zip(_stripped(labels, self.source, self.unit, lines), lines, strict=True):
            number = self._known.get(label)
            if number is None:
                number = self._known[label] = self._number(label, f"{self.source}, {self.unit} {line}")
            self.values.append(number)

    def _number(self, label: str, place: str) -> float:
        classify = self.goal == "classification"
        wanted = "0 or 1" if classify else "a number of 0 or more"
        if not label:
            raise InputError(f"{place}: no label in column {self.column!r}; write {wanted}")
        try:
            number = float(label)
        except ValueError:
            shown = label if len(label) <= 40 else f"{label[:40]}..."
            raise InputError(
                f"{place}: the label column {self.column!r} holds the text {shown!r} instead of {wanted}; are"
                " first_column, second_column and label_column swapped?"
            ) from None
        if not (number in (0, 1) if classify else number >= 0 and math.isfinite(number)):
            raise InputError(
                f"{place}: the label {label!r} must be {wanted}; correct it or choose another label_column"
            )
        return number


# --- published layouts --------------------------------------------------------------------------------------


def read_wikiqa(path: str | Path, encoding_errors: EncodingErrors = "strict", labelled: bool = True) -> Pairs:
    """A file of the official WikiQA release: seven columns with a header, quotes are characters.

    Without `labelled` the column of labels is not read and need not be there.

    Y. Yang, W. Yih, C. Meek: WikiQA: A Challenge Dataset for Open-Domain Question Answering, EMNLP 2015.
    """
    return read_pairs(
        path,
        first_column="Question",
        second_column="Sentence",
        label_column="Label" if labelled else None,
        question_column="QuestionID",
        id_column="SentenceID",
        header=True,
        quotes=False,
        encoding_errors=encoding_errors,
    )


def read_quora(path: str | Path, encoding_errors: EncodingErrors = "strict", labelled: bool = True) -> Pairs:
    """Quora's question pairs: the release (with its header and quotes), or label, two questions and an id.

    Without `labelled` the labels are not read.

    The second is the split of Z. Wang, W. Hamza, R. Florian: Bilateral Multi-Perspective Matching for Natural
    Language Sentences, IJCAI 2017, which has no header.
    """
    records, _ = open_records(path, Columns.of(0, None, None), False, False, encoding_errors=encoding_errors)
    _, (field,) = next(records)
    if field.strip('"') == "id":
        columns: tuple[Column, ...] = ("question1", "question2", "is_duplicate", "id")
        released = True
    else:
        columns, released = (1, 2, 0, 3), False
    first, second, label, id_ = columns
    return read_pairs(
        path,
        first,
        second,
        label if labelled else None,
        id_column=id_,
        header=released,
        # Without a header, fields are as they stood in the release, so some still have its quotes.
        quotes=True if released else "whole",
        encoding_errors=encoding_errors,
        goal="classification",
    )


def read_trec(
    judgements: str | Path, queries: Rows, documents: Rows, encoding_errors: EncodingErrors = "strict"
) -> Pairs:
    """Judged pairs of a test collection.

    Args:
        judgements: lines `query 0 document grade` (TREC) or `query document grade` (with a header or without),
            separated by white space; perhaps .gz or .xz.
        queries: first texts with their ids, see `read_identified`.
        documents: second texts with theirs.
        encoding_errors: see `read_pairs`.

    Raises:
        InputError: a line of another kind, a grade below 0, or an id that no text has; names file and line.
    """
    source = str(judgements)
    query_row, document_row = (
        {id_: row for row, id_ in enumerate(rows.ids)} for rows in (queries, documents)
    )
    first: list[int] = []
    second: list[int] = []
    ids: list[str] = []
    labels: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(open_lines(judgements, encoding_errors), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) not in (3, 4):
            raise InputError(
                f"{source}, line {number}: {len(fields)} fields; write query, document and grade"
            )
        query, document, label = fields[0], fields[-2], fields[-1]
        if not labels and number == 1 and not _is_number(label):
            continue
        for id_, known, rows in ((query, query_row, queries), (document, document_row, documents)):
            if id_ not in known:
                raise InputError(f"{source}, line {number}: no text with the id {id_!r} in {rows.source}")
        first.append(query_row[query])
        second.append(document_row[document])
        ids.append(f"{query}:{document}")
        labels.append(label)
        numbers.append(number)
    if not labels:
        raise InputError(f"{source}: no judgements; give a file with at least one")
    targets = _Targets("ranking", source, "line", "grade")
    targets.extend(labels, numbers)
    questions = queries.ids
    first_texts, second_texts = queries.texts[:], documents.texts[:]
    return Pairs.from_lists(
        [first_texts[row] for row in first],
        [second_texts[row] for row in second],
        targets.values,
        [questions[row] for row in first],
        ids,
        source,
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_identified(path: str | Path, text_column: Column | Sequence[Column] | None = None) -> Rows:
    """Texts with ids: .jsonl with `id` (or `_id`) and `text`, or .tsv with id and text and no header.

    Args:
        path: a file that `read_table` reads.
        text_column: name or number of the text, or several, which are joined.

    Raises:
        InputError: see `read_table`; or an id that stands for two texts.
    """
    by_number = any(end in (".tsv", ".csv") for end in Path(path).suffixes)
    if text_column is None:
        text_column = 1 if by_number else "text"
    id_column: Column = 0 if by_number else _id_column(path)
    rows = read_table(path, text_column, None, id_column)
    seen: set[str] = set()
    for row, id_ in enumerate(rows.ids):
        if id_ in seen:
            raise InputError(f"{path}, row {row + 1}: the id {id_!r} stands for another text already")
        seen.add(id_)
    return rows


def _id_column(path: str | Path) -> Column:
    """What the first record calls its id."""
    try:
        next(open_records(path, Columns.of("_id", None, None))[0])
    except InputError:
        return "id"
    return "_id"
