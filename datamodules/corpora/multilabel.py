"""Sets of labels in one string, as tables and memories keep them: the labels sorted, with a separator between them.

An empty string is an empty set: a text without labels is evidence, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from datamodules.core.errors import InputError, excerpt
from datamodules.corpora.records import Block

#: Fields of a column that says whether a row has a label.
_FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "False": False, "True": True, "": False}


def split_labels(written: str, separator: str | None) -> list[str]:
    """Return the distinct labels of a row, sorted; without a separator, a row has one label."""
    if separator is None:
        return [written]
    return sorted({part.strip() for part in written.split(separator)} - {""})


def join_labels(labels: Iterable[str], separator: str) -> str:
    """Write a set of labels; the inverse of `split_labels`."""
    return separator.join(sorted({label.strip() for label in labels} - {""}))


def distinct_labels(rows: Iterable[str | None], separator: str | None) -> list[str]:
    """Return the labels that occur in rows, sorted."""
    return sorted({label for row in set(rows) if row is not None for label in split_labels(row, separator)})


def rarest_labels(rows: Sequence[str], separator: str) -> list[str]:
    """Return the label of each row that the fewest rows have, by which samples are stratified."""
    split = [split_labels(row, separator) for row in rows]
    counts = Counter(chain.from_iterable(split))
    return [min(labels, key=lambda label: (counts[label], label), default="") for labels in split]


def edit_labels(written: str, change: str, separator: str) -> str:
    """Return a row's labels after a change: `+label` adds one, `-label` takes one away, all else replaces them."""
    labels, name = set(split_labels(written, separator)), change[1:].strip()
    if change.startswith("+"):
        return join_labels(labels | {name}, separator)
    if change.startswith("-"):
        if name not in labels:
            raise InputError(f"--label {excerpt(change)}: a row with {excerpt(written)!r} does not have it")
        return join_labels(labels - {name}, separator)
    return join_labels(split_labels(change, separator), separator)


def join_fields(block: Block, first: int, names: Sequence[object], separator: str) -> list[str]:
    """Write the set of labels of each record of a block.

    Args:
        block: records; one field has labels with separators or a list of them, or several are 0 or 1.
        first: position of the first of the fields.
        names: columns of the fields; several are the labels themselves.
        separator: between the labels.

    Raises:
        InputError: a label contains the separator, or a field is neither 0 nor 1.
    """
    if len(names) > 1:
        return _join_flags(block, first, list(map(str, names)), separator)
    written = []
    for record, field in enumerate(block.columns[first]):
        if isinstance(field, Mapping) or not (isinstance(field, str) or hasattr(field, "__iter__")):
            (field,) = block.select([record]).strings(first)
        if isinstance(field, str):
            written.append(join_labels(split_labels(field, separator), separator))
            continue
        labels = [str(label) for label in field if label is not None]
        _refuse_separator(labels, separator, block.location(record))
        written.append(join_labels(labels, separator))
    return written


def _join_flags(block: Block, first: int, names: list[str], separator: str) -> list[str]:
    _refuse_separator(names, separator, "label_column")
    columns = [block.stripped(first + column) for column in range(len(names))]
    written = []
    for record, flags in enumerate(zip(*columns, strict=True)):
        for name, flag in zip(names, flags, strict=True):
            if flag not in _FLAGS:
                problem = f"{excerpt(flag)!r} in the column of the label {name!r}; give 0 or 1"
                raise InputError(f"{block.location(record)}: {problem}")
        written.append(
            join_labels((name for name, flag in zip(names, flags, strict=True) if _FLAGS[flag]), separator)
        )
    return written


def _refuse_separator(labels: Iterable[str], separator: str, location: str) -> None:
    for label in labels:
        if separator in label:
            raise InputError(
                f"{location}: the label {excerpt(label)!r} contains the separator {separator!r}; choose another"
                " data.label_separator"
            )
