"""Sets of labels in one string, as tables and memories keep them: sorted, with a separator; an empty one is empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from datamodules.core.errors import InputError, excerpt
from datamodules.corpora.records import Block

#: Fields of a column that says whether a row has a label.
_HAS_LABEL, _HAS_NONE = {"1", "1.0", "True"}, {"0", "0.0", "False", "", "None"}


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


def edit_labels(row: str, written: str, change: str, separator: str) -> str:
    """Return the labels of a row after a change: `+label` adds, `-label` takes one away, all else replaces them."""
    labels, names = set(split_labels(written, separator)), set(split_labels(change[1:], separator))
    if change.startswith("+"):
        return join_labels(labels | names, separator)
    if change.startswith("-"):
        if not names <= labels:
            raise InputError(f"--label {excerpt(change)}: row {row!r} with {excerpt(written)!r} lacks it")
        return join_labels(labels - names, separator)
    return join_labels(change.split(separator), separator)


def join_fields(
    block: Block, first: int, names: Sequence[object], separator: str, name_class: Callable[[str, str], str]
) -> list[str]:
    """Write the set of labels of each record of a block, by `name_class` of a label and its location.

    The field at `first` has labels with separators between them, or a list of them; or several fields from there on, of
    columns with these `names`, are 0 or 1. Raises an `InputError` for other values, and for a label with the separator.
    """
    written, columns = [], [block.columns[first + number] for number in range(len(names))]
    for record, fields in enumerate(zip(*columns, strict=True)):
        location = block.location(record)
        if len(names) > 1:
            flags = zip(names, fields, strict=True)
            labels = [str(name) for name, field in flags if _flag(field, name, location)]
        elif isinstance(fields[0], str):
            labels = split_labels(fields[0], separator)
        else:
            parts = fields[0] if isinstance(fields[0], list) else [fields[0]]
            named = Block(block.source, [block.numbers[record]] * len(parts), [parts]).strings(0)
            labels = [label for label in named if label]
        labels = [name_class(label, location) for label in labels]
        if wrong := next((label for label in labels if separator in label), None):
            problem = f"the label {excerpt(wrong)!r} contains the separator {separator!r}"
            raise InputError(f"{location}: {problem}; choose another data.label_separator")
        written.append(join_labels(labels, separator))
    return written


def _flag(field: object, name: object, location: str) -> bool:
    written = str(field).strip()
    if written not in _HAS_LABEL | _HAS_NONE:
        problem = f"{excerpt(str(field))!r} in the column of the label {name!r}"
        raise InputError(f"{location}: {problem}; give 0 or 1")
    return written in _HAS_LABEL
