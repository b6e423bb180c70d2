"""Texts and their labels, from a file, a folder or the Hugging Face Hub, as one Arrow table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from datamodules.core.errors import LONGEST, InputError, excerpt
from datamodules.corpora.readers import ClassNames, open_lines, read_blocks
from datamodules.corpora.records import AnyOf, Block, Column, Columns
from datamodules.corpora.rows import Repairs, Rows

log = logging.getLogger(__name__)


def read_table(
    path: str | Path,
    text_column: Column | Sequence[Column] = "text",
    label_column: Column | None = "label",
    id_column: Column | AnyOf | None = None,
    header: bool | None = None,
    quotes: bool | None = None,
    class_names: str | Path | ClassNames | None = None,
) -> Rows:
    """Read texts, with their labels and ids, from a file, a saved data set or the Hub.

    Args:
        path: one of
            - a file: .csv, .tsv, .jsonl, .ndjson, .json (one object a line), each also .gz or .xz; .parquet;
            - a folder that `datasets.Dataset.save_to_disk` wrote;
            - `hub:NAME`, `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT` for `datasets.load_dataset`; the split
              is `train` unless given, NAME may also be a local folder.
        text_column: name or number (from 0) of the text, or several, which are joined by one space.
        label_column: name or number of the label; None for a table without labels.
        id_column: name or number of an id; without one, ids are row numbers from 0.
        header: whether a CSV or TSV file starts with a line of names. None: it does if a wanted column is
            given by name.
        quotes: whether a field of a CSV or TSV file may stand in double quotes, which are doubled inside it
            (RFC 4180; a backslash means itself). None: in CSV they may, in TSV a quote is a character.
        class_names: names that replace labels counted from 1 (and a ClassLabel's own names), or a file of
            them, one a line; or a label -> its name, for labels of any other kind.
    """
    columns = Columns(text_column, label_column, id_column)
    if isinstance(class_names, (str, Path)):
        class_names = [name for line in open_lines(class_names) if (name := line.strip())]
    elif isinstance(class_names, Mapping):
        class_names = {str(label): name for label, name in class_names.items()}  # YAML reads 0 as a number
    return _rows(read_blocks(path, columns, header, quotes, class_names), columns, str(path), class_names)


def _rows(blocks: Iterable[Block], columns: Columns, source: str, class_names: ClassNames | None) -> Rows:
    """Turn blocks into an Arrow table, and log empty texts and duplicates."""
    repairs = Repairs()
    batches, hashes, distinct = [], [], set[str]()
    num_rows = num_empty = 0
    for block in blocks:
        texts = _texts(block, len(columns.texts))
        labels = None
        if columns.label is not None:
            name_class = partial(_class_name, class_names=class_names)
            labels = block.converted(len(columns.texts), name_class)
            distinct |= set(labels)
        if columns.id is None:
            ids = list(map(str, range(num_rows, num_rows + len(texts))))
        else:
            ids = block.strings(-1)
            if "" in ids:
                location = block.location(ids.index(""))
                raise InputError(f"{location}: no id in column {columns.id!r}; give it one")
        batches.append(repairs.batch(ids, texts, labels))
        keys = texts if labels is None else zip(texts, labels, strict=True)
        hashes.append(np.fromiter(map(hash, keys), dtype=np.int64, count=len(texts)))
        num_rows += len(texts)
        num_empty += texts.count("")
    repairs.report(source)
    _warn_of_blanks(distinct, source)
    if num_empty:
        log.warning("%s: %d of %d texts are empty; they are kept", source, num_empty, num_rows)
    duplicates = num_rows - len(np.unique(np.concatenate(hashes)))
    if duplicates:
        log.info("%s: %d of %d rows repeat an earlier row; they are kept", source, duplicates, num_rows)
    return Rows(pa.Table.from_batches(batches), source)


def _texts(block: Block, num_columns: int) -> list[str]:
    """Return the text of each record: its fields, stripped and joined by a space."""
    parts = [block.stripped(column) for column in range(num_columns)]
    if num_columns == 1:
        return parts[0]
    return [" ".join(filter(None, fields)) for fields in zip(*parts, strict=True)]


def _warn_of_blanks(labels: Iterable[str], source: str) -> None:
    """Warn of two labels that look like one."""
    known: dict[str, str] = {}
    for label in sorted(labels):
        other = known.setdefault(label.strip(), label)
        if other != label:
            log.warning(
                "%s: the labels %r and %r are two classes; they differ only in white space around them",
                source,
                other[:LONGEST],
                label[:LONGEST],
            )


def _class_name(label: str, location: str, class_names: ClassNames | None) -> str:
    if not label.strip():
        raise InputError(f"{location}: no label; add one or remove the row")
    if class_names is None:
        return label
    label = label.strip()
    if isinstance(class_names, Mapping):
        if label not in class_names:
            raise InputError(f"{location}: label {excerpt(label)!r} has no name in class_names; give it one")
        return class_names[label]
    if label == "0":  # the labels may count from 0, but only the last row would prove it
        named = ", ".join(f"{number}: {name}" for number, name in enumerate(class_names))
        raise InputError(
            f"{location}: label '0', but a list of class_names counts from 1; where labels count from 0, name each:"
            f" '{{{excerpt(named)}}}'"
        )
    if not label.isdecimal() or not 1 <= int(label) <= len(class_names):
        raise InputError(
            f"{location}: label {excerpt(label)!r} is not a number from 1 to {len(class_names)}; correct it, omit"
            " class_names, or name each label, as in '{0: World, 1: Sports}'"
        )
    return class_names[int(label) - 1]
