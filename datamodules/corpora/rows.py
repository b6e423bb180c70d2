"""Texts, their ids and their labels, as an Arrow table: a row costs little more than its bytes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike
from typing_extensions import Self

from datamodules.core.arrays import damaged
from datamodules.core.errors import reason
from datamodules.core.sharing import cached_property
from datamodules.core.storage import Part, check_folder, link, prepared_folder

log = logging.getLogger(__name__)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        # A few million texts exceed 2 GiB, the limit of 32-bit offsets.
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("label", pa.string()),
    ]
)
#: Rows that are read or written together.
BLOCK = 32_768


class Texts(Sequence[str]):
    """The texts of a table as a sequence of str, each made when it is read."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return self._column[index].to_pylist()
        return self._column[int(index)].as_py()

    def take(self, rows: ArrayLike) -> list[str]:
        """Return the texts of some rows, much faster than one by one."""
        return self._column.take(pa.array(np.asarray(rows, np.int64))).to_pylist()

    def __iter__(self) -> Iterator[str]:
        # Arrow makes the strings of a block much faster than those of single rows.
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]


@dataclass(frozen=True, eq=False)
class Rows:
    """A table of texts, each with an id and perhaps a label."""

    #: columns `id`, `text` and `label` (all null = no labels), see `SCHEMA`.
    table: pa.Table
    #: the table's name in messages: a file, a Hub name.
    source: str

    def __post_init__(self) -> None:
        if not self.table.schema.equals(SCHEMA):
            raise ValueError(f"{self.source}: columns must be {SCHEMA}, not {self.table.schema}")

    @staticmethod
    def from_lists(
        texts: Iterable[str],
        labels: Iterable[str | None] | None = None,
        ids: Iterable[str] | None = None,
        source: str = "texts",
    ) -> Rows:
        """Make a table of strings; ids default to row numbers. NULs and lone surrogates are replaced."""
        texts, repairs = list(texts), Repairs()
        ids = map(str, range(len(texts))) if ids is None else ids
        batch = repairs.batch(list(ids), texts, None if labels is None else list(labels))
        repairs.report(source)
        return Rows(pa.Table.from_batches([batch], SCHEMA), source)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def texts(self) -> Texts:
        """The texts, in row order."""
        return Texts(self.table.column("text"))

    @property
    def ids(self) -> list[str]:
        """The ids, in row order."""
        return self.table.column("id").to_pylist()

    def row_of_id(self) -> dict[str, int]:
        """Return the row of each id; the last one of an id that occurs twice."""
        return {id_: row for row, id_ in enumerate(self.ids)}

    def repeated_ids(self) -> list[str]:
        """Return the ids that stand for several rows."""
        ids, counts = self.table.column("id").value_counts().flatten()
        return ids.take(np.flatnonzero(counts.to_numpy() > 1)).to_pylist()

    @property
    def labels(self) -> list[str] | None:
        """The labels, in row order; None unless every row has one."""
        column = self.table.column("label")
        return None if column.null_count else column.to_pylist()

    def label(self, row: int) -> str | None:
        """Return the label of one row; None where it has none."""
        return self.table.column("label")[row].as_py()

    def distinct_labels(self) -> list[str]:
        """Return the labels that occur, sorted; empty where the table has none."""
        return sorted(self.table.column("label").unique().drop_null().to_pylist())

    def save(self, path: Path) -> None:
        """Write an Arrow file that `load` maps."""
        with Rows.writer(path) as write:
            write(self)

    @staticmethod
    @contextmanager
    def writer(path: Path) -> Iterator[Callable[[Rows], None]]:
        """Open an Arrow file that `load` maps, and yield a function that appends rows to it."""
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            yield lambda rows: writer.write_table(rows.table, max_chunksize=BLOCK)

    @staticmethod
    def load(path: Path, source: str | None = None) -> Rows:
        """Map a file that `save` or `writer` wrote.

        Raises a `DamagedError` if it has other columns, or its strings lie outside of the file.
        """
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if not reader.schema.equals(SCHEMA):
                raise pa.ArrowInvalid(f"columns {', '.join(reader.schema.names)}")
            table = reader.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, reason(error)) from error
        return Rows(table, str(path) if source is None else source)

    @staticmethod
    def open(folder: Path, fingerprint: str) -> Rows:
        """Map the folder that `prepare_rows` made; raises an `InputError` if it is missing or damaged."""
        check_folder(folder, fingerprint)
        return Rows.load(folder / "rows.arrow")

    def select(self, row_numbers: ArrayLike) -> Rows:
        """Return the rows with these numbers, in the order given."""
        return Rows(self.table.take(pa.array(np.asarray(row_numbers, dtype=np.int64))), self.source)

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """Concatenate the rows of several tables, without a copy."""
        source = " + ".join(part.source for part in parts)
        return Rows(pa.concat_tables([part.table for part in parts]), source)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of ids, texts and labels, independent of Arrow's chunks and the file's name."""
        import pyarrow.compute as pc

        digest = hashlib.sha256()
        for name in SCHEMA.names:
            lengths, contents = hashlib.sha256(), hashlib.sha256()
            for chunk in self.table.column(name).chunks:
                sizes = pc.binary_length(chunk).cast(pa.int64()).fill_null(-1)
                lengths.update(sizes.to_numpy(zero_copy_only=False).astype("<i8"))
                contents.update(_bytes_of(chunk.drop_null()))
            digest.update(lengths.digest() + contents.digest())
        return digest.hexdigest()

    def part(self, rows: range) -> Rows:
        """Return consecutive rows, without a copy."""
        return Rows(self.table.slice(rows.start, len(rows)), self.source)


def _bytes_of(array: pa.Array) -> memoryview:
    """Return the UTF-8 bytes of an Arrow array of strings without nulls."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:
        return memoryview(b"")
    ends = np.frombuffer(offsets, dtype=np.int64 if pa.types.is_large_string(array.type) else np.int32)
    return memoryview(data)[int(ends[array.offset]) : int(ends[array.offset + len(array)])]


class Repairs:
    """Makes Arrow columns of strings; replaces and counts NULs and lone surrogates, which few programs can process."""

    nuls = surrogates = 0

    def column(self, values: Sequence[str | None], kind: pa.DataType) -> pa.Array:
        """Return an Arrow array of strings (or None) of the type `kind`."""
        import pyarrow.compute as pc

        try:
            array = pa.array(values, kind)
        except UnicodeEncodeError:
            whole = [value and whole_characters(value) for value in values]
            self.surrogates += sum(new != old for new, old in zip(whole, values, strict=True))
            array = pa.array(whole, kind)
        if nuls := pc.sum(pc.match_substring(array, "\0")).as_py():
            self.nuls += nuls
            array = pc.replace_substring(array, "\0", " ")
        return array

    def batch(
        self, ids: Sequence[str], texts: Sequence[str], labels: Sequence[str | None] | None
    ) -> pa.RecordBatch:
        """Return an Arrow record batch of n rows; labels None = no labels."""
        columns = [self.column(ids, pa.string()), self.column(texts, pa.large_string())]
        label = pa.nulls(len(texts), pa.string()) if labels is None else self.column(labels, pa.string())
        return pa.RecordBatch.from_arrays([*columns, label], schema=SCHEMA)

    def report(self, source: str) -> None:
        """Log the number of replacements in a table."""
        if self.nuls:
            log.warning("%s: NUL characters in %d fields, each replaced by a space", source, self.nuls)
        if self.surrogates:
            repair = "pairs are joined, lone ones replaced by U+FFFD"
            log.warning("%s: surrogates in %d fields: %s", source, self.surrogates, repair)


def whole_characters(text: str) -> str:
    """Join the surrogates of a pair, and replace lone ones, which can't be encoded, by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class StoredTable:
    """Base of dataclasses whose fields are rows, columns of strings and arrays: each is a file on the disk."""

    def _values(self) -> dict[str, Any]:
        own = [field.name for field in fields(self) if field.name != "source"]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in own}

    def save(self, folder: Path, **links: Path) -> None:
        """Write the files that `open` maps; `links` are files of fields that are stored elsewhere already."""
        for name, value in self._values().items():
            if name in links:
                link(links[name], folder / f"{name}.arrow")
            elif isinstance(value, Rows):
                value.save(folder / f"{name}.arrow")
            elif isinstance(value, np.ndarray):
                np.save(folder / f"{name}.npy", value)
            else:
                column, path = pa.table({"id": value}), str(folder / f"{name}.ids")
                with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, column.schema) as writer:
                    writer.write_table(column)

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> Self:
        """Map the files that `save` wrote; raises an `InputError` if one is missing or damaged."""
        check_folder(folder, fingerprint)
        values: dict[str, Any] = {}
        for path in folder.iterdir():
            if path.suffix == ".arrow":
                values[path.stem] = Rows.load(path)
            elif path.suffix == ".npy":
                values[path.stem] = np.load(path, mmap_mode="r")
            elif path.suffix == ".ids":
                values[path.stem] = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column("id")
        return cls(**values)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all fields, independent of the files' names."""
        digest = hashlib.sha256()
        for value in self._values().values():
            if isinstance(value, Rows):
                digest.update(value.fingerprint.encode())
            elif isinstance(value, np.ndarray):
                digest.update(value.astype(value.dtype.newbyteorder("<")).tobytes())
            else:
                digest.update("\0".join(value.to_pylist()).encode() + b"\1")
        return digest.hexdigest()


def prepare_rows(rows: Rows, cache: Path) -> Part:
    """Write the table as `rows.arrow` into a folder of a cache, unless it is there already."""
    return prepared_folder(cache, "rows", rows.fingerprint, lambda folder: rows.save(folder / "rows.arrow"))
