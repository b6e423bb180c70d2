"""The wanted columns of a table, and its records on their way from a reader.

A reader yields the wanted fields of one record at a time, whatever the format; `Records.blocks` hands them on
by column, because a column is checked and converted much faster than its fields one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple, TypeAlias

from tqdm import tqdm

from datamodules.core.errors import InputError, excerpt
from datamodules.corpora.rows import BLOCK

#: A column by its name or its number (from 0; a string of digits, as a command line gives it, will do).
Column: TypeAlias = str | int
#: One, or several that are joined.
TextColumn: TypeAlias = Column | list[Column]
#: Number and wanted fields of a record.
Record: TypeAlias = tuple[int, Sequence[Any]]


def is_number(text: str) -> bool:
    """Whether a field can be read as a number; nan and inf can."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class Columns:
    """The wanted columns of a table.

    Args:
        texts: the column of the text, or several.
        label: the column of the label; None = no labels.
        id_: the column of the id; None = no ids.

    Attributes:
        wanted: all of them: texts, label, id. A record's fields come in this order.
        all_numbers: whether they can be found without a header.
    """

    def __init__(
        self, texts: Column | Sequence[Column], label: Column | None = None, id_: Column | None = None
    ) -> None:
        self.texts = [texts] if isinstance(texts, (str, int)) else list(texts)
        self.label, self.id = label, id_
        self.wanted = [*self.texts, *(column for column in (label, id_) if column is not None)]
        self.all_numbers = all(isinstance(column, int) or column.isdecimal() for column in self.wanted)
        if not self.texts:
            raise InputError("text_column: name at least one column")

    def find(self, names: Sequence[str], where: str, numbers_only: bool = False) -> list[int]:
        """Positions of the wanted columns among `names`; where there is no header, only numbers count."""
        positions = []
        for column in self.wanted:
            if not numbers_only and isinstance(column, str) and column in names:
                positions.append(names.index(column))
            elif (isinstance(column, int) or column.isdecimal()) and 0 <= int(column) < len(names):
                positions.append(int(column))
            else:
                there = (
                    f"columns 0 to {len(names) - 1}" if numbers_only else excerpt(", ".join(map(repr, names)))
                )
                hint = "name it with text_column, several as [one,other]"
                if column == self.label:
                    hint = "name it with label_column (zoo index: null for texts without labels)"
                elif column == self.id:
                    hint = "name it with id_column"
                raise InputError(f"{where}: no column {excerpt(repr(column))}; there are {there}; {hint}")
        return positions


class Block(NamedTuple):
    """Some records of a table, column by column."""

    #: source and unit of the numbers, for messages: `train.csv, line`.
    source: str
    #: number of each record.
    numbers: list[int]
    #: for each wanted column the field of each record.
    columns: list[list[Any]]

    def place(self, record: int) -> str:
        """What messages call a record."""
        return f"{self.source} {self.numbers[record]}"

    def strings(self, column: int) -> list[str]:
        """A column as strings: "" for a missing field, numbers and truth values as Python writes them.

        Raises:
            InputError: a field of another type; names its record.
        """
        fields = self.columns[column]
        if set(map(type, fields)) <= {str}:
            return fields
        strings = []
        for record, field in enumerate(fields):
            # pandas writes a missing value of a column of numbers as NaN.
            if field is None or field != field:
                strings.append("")
            elif isinstance(field, (str, int, float)):
                strings.append(str(field))
            else:
                kind = type(field).__name__
                raise InputError(f"{self.place(record)}: {kind} instead of a string; choose another column")
        return strings


@dataclass(frozen=True)
class Records:
    """The records of a table, to be read once.

    Attributes:
        stream: the records as they come.
        columns: the wanted columns.
        source: what messages call the table.
        unit: what the records' numbers count: `line` or `row`.
    """

    stream: Iterator[Record]
    columns: Columns
    source: str
    unit: str

    def blocks(self) -> Iterator[Block]:
        """The records, so many at a time that memory holds little beside them.

        Raises:
            InputError: there is none, or the table can't be read.
        """
        # Shown only when reading takes more than three seconds, and only to people.
        progress = tqdm(
            self.stream, f"reading {self.source}", unit=" rows", unit_scale=True, delay=3, disable=None
        )
        stream = iter(progress)
        for done in count():
            block = Block(f"{self.source}, {self.unit}", [], [[] for _ in self.columns.wanted])
            # Few at a time: thousands of records alive would set off searches for garbage in all that is loaded.
            while records := list(islice(stream, min(128, BLOCK - len(block.numbers)))):
                numbers, fields = zip(*records, strict=True)
                block.numbers.extend(numbers)
                for column, values in zip(block.columns, zip(*fields, strict=True), strict=True):
                    column.extend(values)
            if not block.numbers:
                if done == 0:
                    raise InputError(f"{self.source}: no rows; give a file with at least one")
                return
            yield block
