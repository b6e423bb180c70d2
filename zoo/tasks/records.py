"""The texts that predictors read, and the records, rows and lines that they write."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from typing_extensions import override

from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import existing_file
from datamodules.core.shards import WHOLE, Shard
from datamodules.core.types import PlainDict
from datamodules.corpora.table import read_table
from datamodules.corpora.trec_runs import run_lines

#: Texts that are retrieved and tokenized together.
BLOCK = 1024
#: In a table of texts to label: a text that was drawn, and not chosen by a model.
AT_RANDOM = "at random"

ItemT = TypeVar("ItemT")


def as_texts(texts: str | Iterable[str], what: str = "text") -> list[str]:
    """One text or several as a list; raises an `InputError` that names `what` if one is not a string."""
    is_unordered = isinstance(texts, Mapping | set | frozenset)
    if not isinstance(texts, Iterable) or is_unordered or getattr(texts, "ndim", 1) != 1:
        # Iterating over a data frame would yield the names of its columns.
        shape = f" of shape {texts.shape}" if hasattr(texts, "shape") else ""
        raise InputError(
            f"{what}: a {type(texts).__name__}{shape} is not a sequence of strings; give one column, such as X['text']"
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{what} {number} is a {type(text).__name__}, no string: {excerpt(repr(text))}")
    return texts


def blocks_of(items: Iterable[ItemT], size: int = BLOCK) -> Iterator[list[ItemT]]:
    """Consecutive items in lists of this size; the last one may be shorter."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


class Counted(Iterator[ItemT]):
    """An iterator with the number of its items, for a progress bar, and that of the whole table's."""

    def __init__(self, items: Iterable[ItemT], number: int, whole: int | None = None) -> None:
        self._items, self._number = iter(items), number
        self.whole = number if whole is None else whole

    @override
    def __next__(self) -> ItemT:
        return next(self._items)

    def __length_hint__(self) -> int:
        return self._number


def as_record(value: NamedTuple) -> PlainDict:
    """A result as a JSON object, without optional fields that have their default."""
    record: PlainDict = {}
    for name, field in value._asdict().items():
        if isinstance(field, list) and field and hasattr(field[0], "_asdict"):
            record[name] = [as_record(item) for item in field]
        elif name not in value._field_defaults or field != value._field_defaults[name]:
            record[name] = field
    return record


def plain_values(record: PlainDict) -> PlainDict:
    """A record without its lists and dictionaries, which hold the evidence."""
    return {name: value for name, value in record.items() if not isinstance(value, (dict, list))}


def records_or_lines(
    records: Iterable[PlainDict], items: str, run_name: str | None
) -> Iterator[PlainDict] | Iterator[str]:
    """Records with ranked lists, `record[items]`, as they are, or as the lines of a TREC run with a name."""
    if run_name is None:
        return iter(records)
    ranked = ((record["id"], [(item["id"], item["score"]) for item in record[items]]) for record in records)
    return (line for query, scored in ranked for line in run_lines(query, scored, run_name))


def texts_in(source: str, columns: Mapping[str, Any], shard: Shard = WHOLE) -> Iterator[str]:
    """The texts of a shard of a source of `Predictor.records`."""
    return (text for text, _ in texts_and_ids_in(source, columns, shard))


def texts_and_ids_in(
    source: str, columns: Mapping[str, Any], shard: Shard = WHOLE
) -> Iterator[tuple[str, str | None]]:
    """The texts of a shard of a source of `Predictor.records`, with their ids if `columns` name them.

    The columns are arguments of `read_table`. Shards consist of blocks of `BLOCK` texts.
    """
    has_ids = columns.get("id_column") is not None
    if source != "-" and not source.endswith(".txt"):
        table = read_table(source, label_column=None, **columns)
        rows = table.part(shard.rows(len(table), BLOCK))
        ids = rows.ids if has_ids else [None] * len(rows)
        return Counted(zip(rows.texts, ids, strict=True), len(rows), len(table))
    if has_ids:
        raise InputError(f"--id_column: {source} has lines of text and no columns; give a table")
    lines = ((line, None) for line in _lines(source))
    if source == "-":
        return lines
    with existing_file(source).open(encoding="utf-8", errors="replace") as file:
        number = sum(1 for _ in file)  # lines as `_lines` reads them: a carriage return ends one as well
    return Counted(shard.of(lines, number, BLOCK), len(shard.rows(number, BLOCK)), number)


def _lines(source: str) -> Iterator[str]:
    try:
        with nullcontext(sys.stdin) if source == "-" else Path(source).open(encoding="utf-8") as file:
            yield from (line.rstrip("\r\n") for line in file)
    except UnicodeDecodeError as error:
        raise InputError(f"{'standard input' if source == '-' else source}: not UTF-8; convert it") from error
