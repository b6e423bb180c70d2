"""The wanted columns of a table, and blocks of its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from datamodules.core.errors import InputError, excerpt

#: A column by its name or its number (from 0; the command line gives numbers as strings of digits).
Column: TypeAlias = str | int
T = TypeVar("T")
#: Names for one column; the first name that a table has is read.
AnyOf: TypeAlias = tuple[str, ...]
#: A column, or several that are joined.
TextColumn: TypeAlias = Column | list[Column]


class Columns:
    """The wanted columns of a table, in the order of a record's fields: the texts', then the labels', then the id's."""

    def __init__(
        self,
        texts: Column | Sequence[Column | AnyOf],
        label: TextColumn | None = None,
        id_: Column | AnyOf | None = None,
    ) -> None:
        self.texts = [texts] if isinstance(texts, (str, int)) else list(texts)
        #: one, or those of 0 and 1 for each label.
        self.labels: list[Column] = [label] if isinstance(label, (str, int)) else label or []
        self.id = id_
        self.wanted = [*self.texts, *self.labels, *(() if id_ is None else (id_,))]
        self.all_numbers = all(_is_numeric(column) for column in self.wanted)
        if not self.texts:
            raise InputError("text_column: name at least one column")

    def find(self, names: Sequence[str], where: str, numbers_only: bool = False) -> list[int]:
        """Return the positions of the wanted columns among `names`; without a header, only numbers count."""
        return [self._find(column, names, where, numbers_only) for column in self.wanted]

    def _find(self, column: Column | AnyOf, names: Sequence[str], where: str, numbers_only: bool) -> int:
        for name in column if isinstance(column, tuple) else (column,):
            # White space around the names of a header counts only where it tells two columns apart.
            same = [position for position, other in enumerate(names) if other == name]
            same = same or [position for position, other in enumerate(names) if other.strip() == name]
            if not numbers_only and same:
                if len(same) > 1:
                    raise InputError(f"{where}: has the column {excerpt(name)!r} more than once; rename one")
                return same[0]
        if isinstance(column, tuple):
            raise InputError(f"{where}: has none of the columns {', '.join(column)}; rename one")
        if _is_numeric(column) and 0 <= int(column) < len(names):
            return int(column)
        present = f"columns 0 to {len(names) - 1}" if numbers_only else excerpt(", ".join(map(repr, names)))
        hint = "name it with text_column, several as [one,other]"
        if column in self.labels:
            hint = "name it with label_column (zoo index: null for texts without labels)"
            if len(self.labels) > 1:
                hint = "name the columns with label_columns, or null, and one of sets with label_column"
        elif column == self.id:
            hint = "name it with id_column"
        raise InputError(f"{where}: no column {excerpt(repr(column))}; there are {present}; {hint}")


def _is_numeric(column: Column | AnyOf) -> bool:
    return isinstance(column, int) or (isinstance(column, str) and column.isdecimal())


class Block(NamedTuple):
    """Some records of a table by column: columns are checked and converted much faster than single fields."""

    #: the table and the unit of the numbers, for messages: `train.csv, line`.
    source: str
    #: number of each record.
    numbers: Sequence[int]
    #: for each wanted column the field of each record.
    columns: list[list[object]]

    def location(self, record: int) -> str:
        """Return the file and line, or row, of a record, for messages."""
        return f"{self.source} {self.numbers[record]}"

    def select(self, records: Sequence[int]) -> Block:
        """Return some of the records."""
        columns = [[fields[record] for record in records] for fields in self.columns]
        return Block(self.source, [self.numbers[record] for record in records], columns)

    def strings(self, column: int) -> list[str]:
        """Return a column as strings: "" for a missing field; numbers and booleans as Python writes them."""
        fields = self.columns[column]
        if set(map(type, fields)) <= {str}:
            return cast("list[str]", fields)
        strings = []
        for record, field in enumerate(fields):
            # pandas writes a missing value of a column of numbers as NaN.
            if field is None or field != field:
                strings.append("")
            elif isinstance(field, (str, int, float)):
                strings.append(str(field))
            else:
                kind, location = type(field).__name__, self.location(record)
                raise InputError(f"{location}: {kind} instead of a string; choose another column")
        return strings

    def stripped(self, column: int) -> list[str]:
        """Return a column as strings without white space around them; see `strings`."""
        return list(map(str.strip, self.strings(column)))

    def converted(self, column: int, convert: Callable[[str, str], T]) -> list[T]:
        """Convert the strings of a column, and their locations for messages, each distinct one once."""
        strings = self.strings(column)
        values: dict[str, T] = {}
        for record, string in enumerate(strings):
            if string not in values:
                values[string] = convert(string, self.location(record))
        return list(map(values.__getitem__, strings))
