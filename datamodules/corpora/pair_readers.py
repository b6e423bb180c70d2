"""Readers of pairs: tables with columns that the user names, published layouts, and judged test collections."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from datamodules.core.errors import InputError, excerpt, name_some
from datamodules.core.files import is_number
from datamodules.corpora.judgements import judged_pairs
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.readers import open_lines, read_blocks
from datamodules.corpora.records import AnyOf, Column, Columns
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table

log = logging.getLogger(__name__)

#: `ranking`: grades of 0 or more; `classification`: 0 or 1.
Goal: TypeAlias = Literal["ranking", "classification"]
#: Names of the column with the ids of queries or documents.
ID_NAMES: AnyOf = ("_id", "id", "query_id", "doc_id", "qid", "docid")


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
    return Pairs.from_lists(
        first,
        second,
        targets if label_column is not None else None,
        more.pop(0) if question_column is not None else None,
        more.pop() if id_column is not None else None,
        str(path),
    )


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
        raise InputError(
            f"{location}: the label column {column!r} has the text {excerpt(label, 40)!r} instead of {wanted}; are"
            " first_column, second_column and label_column swapped?"
        )
    number = float(label)
    if not (number in (0, 1) if goal == "classification" else number >= 0 and math.isfinite(number)):
        raise InputError(f"{location}: the label {label!r} must be {wanted}; correct it")
    return number


def read_wikiqa(path: str | Path, labelled: bool = True) -> Pairs:
    """Read a file of the official WikiQA release; without `labelled`, its labels may be missing.

    Y. Yang, W. Yih, C. Meek: WikiQA: A Challenge Dataset for Open-Domain Question Answering, EMNLP 2015.
    """
    label = "Label" if labelled else None
    columns = ("Question", "Sentence", label, "QuestionID", "SentenceID")
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
    query_texts, document_texts = (
        dict(zip(rows.ids, rows.texts, strict=True)) for rows in (queries, documents)
    )
    judged = list(judged_pairs(judgements))
    for query, document, _, location in judged:
        for id_, texts, rows in ((query, query_texts, queries), (document, document_texts, documents)):
            if id_ not in texts:
                raise InputError(f"{location}: no text with the id {id_!r} in {rows.source}")
    if not judged:
        raise InputError(f"{judgements}: no judgements; give a file with at least one")
    return Pairs.from_lists(
        [query_texts[query] for query, *_ in judged],
        [document_texts[document] for _, document, *_ in judged],
        [grade for _, _, grade, _ in judged],
        [query for query, *_ in judged],
        [f"{query}:{document}" for query, document, *_ in judged],
        str(judgements),
    )


def id_column_of(path: str | Path) -> Column | AnyOf:
    """Return the column of the ids of a collection."""
    return 0 if ".tsv" in Path(path).suffixes else ID_NAMES


def read_identified(
    path: str | Path, text_column: Column | Sequence[Column] | None = None, id_column: Column | None = None
) -> Rows:
    """Read texts with ids: a table with columns `id` (see `ID_NAMES`) and `text`, or a .tsv of both without names."""
    ids = id_column_of(path) if id_column is None else id_column
    if text_column is None:
        text_column = 1 if ids == 0 else "text"
    rows = read_table(path, text_column, None, ids)
    if repeated := rows.repeated_ids():
        raise InputError(f"{path}: several texts have the id {name_some(repeated)}; give each its own")
    return rows
