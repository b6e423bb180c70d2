"""Texts and their labels, from a file, a folder or the Hugging Face Hub, as one Arrow table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datamodules.core.errors import LONGEST, InputError, excerpt, name_some
from datamodules.corpora.multilabel import distinct_labels, join_fields
from datamodules.corpora.readers import ClassNames, open_lines, read_blocks
from datamodules.corpora.records import AnyOf, Block, Column, Columns, TextColumn
from datamodules.corpora.rows import Repairs, Rows

log = logging.getLogger(__name__)

#: Advice for tables whose rows have several labels, or none.
SEVERAL_LABELS = "for a set of labels a text, name what separates them with data.label_separator, such as ';'"
#: Names of the column with the ids of queries or documents.
ID_NAMES: AnyOf = ("_id", "id", "query_id", "doc_id", "qid", "docid")
#: Maximum number of rows that a message names.
_MAX_NAMED = 10


def read_table(
    path: str | Path,
    text_column: Column | Sequence[Column] = "text",
    label_column: TextColumn | None = "label",
    id_column: Column | AnyOf | None = None,
    header: bool | None = None,
    quotes: bool | None = None,
    class_names: str | Path | ClassNames | None = None,
    label_separator: str | None = None,
) -> Rows:
    """Read texts, with their labels and ids, from a file, a saved data set or the Hub.

    Args:
        path: one of
            - a file: .csv, .tsv, .jsonl, .ndjson, .json (one object a line), each also .gz or .xz; .parquet;
            - a folder that `datasets.Dataset.save_to_disk` wrote;
            - `hub:NAME`, `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT` for `datasets.load_dataset`; the split
              is `train` unless given, NAME may also be a local folder.
        text_column: name or number (from 0) of the text, or several, which are joined by one space.
        label_column: name or number of the label; None for a table without labels. With `label_separator`, also the
            names of several columns of 0 and 1, one for each label.
        id_column: name or number of an id; without one, ids are row numbers from 0.
        header: whether a CSV or TSV file starts with names. None: it does if a wanted column is given by name.
        quotes: whether a field of a CSV or TSV file may stand in double quotes, which are doubled inside it
            (RFC 4180; a backslash means itself). None: in CSV they may, in TSV a quote is a character.
        class_names: names that replace labels counted from 1 (and a ClassLabel's own names), or a file of
            them, one a line; or a label -> its name, for labels of any other kind.
        label_separator: stands between the labels of a row, which are a set, perhaps an empty one; a list of strings
            is one as well. The rows have them sorted. None: each row has one label.
    """
    if isinstance(label_column, list) and label_separator is None:
        problem = f"several columns are a set of labels; {SEVERAL_LABELS}"
        raise InputError(f"label_column {label_column}: {problem}")
    columns = Columns(text_column, label_column, id_column)
    if isinstance(class_names, (str, Path)):
        class_names = read_class_names(class_names)
    elif isinstance(class_names, Mapping):
        class_names = {str(label): name for label, name in class_names.items()}  # YAML reads 0 as a number
    blocks = read_blocks(path, columns, header, quotes, class_names)
    source = str(path)
    batches, hashes = zip(*_batches(blocks, columns, source, class_names, label_separator), strict=True)
    rows = Rows(pa.Table.from_batches(batches), source)
    labels = distinct_labels(rows.distinct_labels(), label_separator)
    _warn_of_blanks(labels, source)
    _warn_of_several(set(labels), source)
    duplicates = len(rows) - len(np.unique(np.concatenate(hashes)))
    if duplicates:
        log.info("%s: %d of %d rows repeat an earlier row; they are kept", source, duplicates, len(rows))
    if id_column is not None and (repeated := rows.repeated_ids()):
        log.warning("%s: %d ids stand for several rows (%s)", source, len(repeated), name_some(repeated))
    return rows


def id_column_of(path: str | Path) -> Column | AnyOf:
    """Return the column of the ids of a collection."""
    return 0 if ".tsv" in Path(path).suffixes else ID_NAMES


def read_identified(
    path: str | Path | list[str],
    text_column: Column | Sequence[Column] | None = None,
    id_column: Column | None = None,
) -> Rows:
    """Read texts with ids: a table with columns `id` (see `ID_NAMES`) and `text`, or a .tsv of both without names.

    Several tables are joined.
    """
    if isinstance(path, list):
        return Rows.concat([read_identified(each, text_column, id_column) for each in path])
    ids = id_column_of(path) if id_column is None else id_column
    if text_column is None:
        text_column = 1 if ids == 0 else "text"
    rows = read_table(path, text_column, None, ids)
    if repeated := rows.repeated_ids():
        raise InputError(f"{path}: several texts have the id {name_some(repeated)}; give each its own")
    return rows


def read_class_names(file: str | Path) -> list[str]:
    """Return the names of classes in a file that has one in each line."""
    return [name for line in open_lines(file) if (name := line.strip())]


def _batches(
    blocks: Iterable[Block], columns: Columns, source: str, names: ClassNames | None, separator: str | None
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
    """Turn blocks into Arrow batches, with hashes of their rows, and refuse rows without a label."""
    repairs = Repairs()
    unlabeled, empty = list[int](), list[int]()
    num_rows, place = 0, source
    for block in blocks:
        place = block.source
        if columns.labels and separator is None:
            missing = [not label.strip() for label in _labels(block, len(columns.texts))]
            if any(missing):
                unlabeled += compress(block.numbers, missing)
                block = block.select([record for record, is_missing in enumerate(missing) if not is_missing])
        texts = _texts(block, len(columns.texts))
        labels = None
        if columns.labels:
            name_class = partial(_class_name, class_names=names)
            if separator is None:
                labels = block.converted(len(columns.texts), name_class)
            else:
                labels = join_fields(block, len(columns.texts), columns.labels, separator, name_class)
        if columns.id is None:
            ids = list(map(str, range(num_rows, num_rows + len(texts))))
        else:
            ids = block.strings(-1)
            if "" in ids:
                location = block.location(ids.index(""))
                raise InputError(f"{location}: no id in column {columns.id!r}; give it one")
        num_rows += len(texts)
        if "" in texts:
            empty += [number for number, text in zip(block.numbers, texts, strict=True) if not text]
        keys = texts if labels is None else zip(texts, labels, strict=True)
        yield repairs.batch(ids, texts, labels), np.fromiter(map(hash, keys), np.int64, len(texts))
    if unlabeled:
        advice = f"add labels, or remove these rows; {SEVERAL_LABELS}"
        raise InputError(f"{_named_rows(place, unlabeled)}: no label; {advice}")
    repairs.report(source)
    if empty:
        named = _named_rows(place, empty)
        log.warning("%s: %d of %d texts are empty; they are kept", named, len(empty), num_rows)


def _named_rows(source: str, numbers: list[int]) -> str:
    """Name rows in a message: the first ones, and the number of the others."""
    named, more = ", ".join(map(str, numbers[:_MAX_NAMED])), len(numbers) - _MAX_NAMED
    return f"{source} {named}" + (f" and {more:,} more" if more > 0 else "")


def _labels(block: Block, column: int) -> list[str]:
    """Return the label of each record as a string."""
    for record, field in enumerate(block.columns[column]):
        if isinstance(field, (list, tuple)):
            raise InputError(f"{block.location(record)}: {len(field)} labels in one row; {SEVERAL_LABELS}")
    return block.strings(column)


def _texts(block: Block, num_columns: int) -> list[str]:
    """Return the text of each record: its fields, stripped and joined by a space."""
    parts = [block.stripped(column) for column in range(num_columns)]
    if num_columns == 1:
        return parts[0]
    return [" ".join(filter(None, fields)) for fields in zip(*parts, strict=True)]


def _warn_of_blanks(labels: Sequence[str], source: str) -> None:
    """Warn of two sorted labels that look like one."""
    known: dict[str, str] = {}
    for label in labels:
        other = known.setdefault(label.strip(), label)
        if other != label:
            shown = source, other[:LONGEST], label[:LONGEST]
            log.warning("%s: the labels %r and %r are two classes; they differ in white space", *shown)


def _warn_of_several(labels: set[str], source: str) -> None:
    """Warn of labels that seem to be several: a;b where a and b are labels, too."""
    for separator in (";", "|", ","):
        joined = [label for label in labels if separator in label]
        several = [label for label in joined if {part.strip() for part in label.split(separator)} <= labels]
        if several:
            label = excerpt(repr(min(several)))
            log.warning("%s: the label %s is a class of its own; %s", source, label, SEVERAL_LABELS)


def _class_name(label: str, location: str, class_names: ClassNames | None) -> str:
    if class_names is None:
        return label
    label = label.strip()
    if isinstance(class_names, Mapping):
        if label not in class_names:
            raise InputError(f"{location}: label {excerpt(label)!r} has no name in class_names; give it one")
        return class_names[label]
    if label == "0":  # the labels may count from 0, but only the last row would prove it
        named = ", ".join(f"{number}: {name}" for number, name in enumerate(class_names))
        problem = "label '0', but a list of class_names counts from 1"
        advice = f"where labels count from 0, name each: '{{{excerpt(named)}}}'"
        raise InputError(f"{location}: {problem}; {advice}")
    if not label.isdecimal() or not 1 <= int(label) <= len(class_names):
        problem = f"label {excerpt(label)!r} is not a number from 1 to {len(class_names)}"
        advice = "correct it, omit class_names, or name each label, as in '{0: World, 1: Sports}'"
        raise InputError(f"{location}: {problem}; {advice}")
    return class_names[int(label) - 1]
