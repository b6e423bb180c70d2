"""Texts and their labels, from a file, a folder or the Hugging Face Hub, as one Arrow table.

Each format has a reader that yields the wanted fields of one record at a time; `read_table` joins the text
columns, checks the labels, repairs what later stages can't bear, and collects the rows in Arrow blocks, so
that a million rows cost little more than their bytes.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import hashlib
import io
import json
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import ArrayLike
from tqdm import tqdm

from datamodules.errors import InputError

log = logging.getLogger(__name__)

#: A column by its name or its number (from 0; a string of digits, as a command line gives it, will do).
Column: TypeAlias = str | int
#: What to do with bytes that are not UTF-8.
EncodingErrors: TypeAlias = Literal["strict", "replace"]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        # Offsets of 64 bits: a few million texts pass 2 GiB.
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("label", pa.string()),
    ]
)
BLOCK = 32_768
HUB_PREFIX = "hub:"
#: Python's csv stops at 128 KiB a field; beyond this an unclosed quote is the likelier cause than a text.
LONGEST_FIELD = 1 << 26
READABLE = ".csv, .tsv, .jsonl, .ndjson, .json (each also .gz or .xz) or .parquet"
_SURROGATE = re.compile("[\ud800-\udfff]")


# --- what is read -------------------------------------------------------------------------------------------


class Texts(Sequence[str]):
    """The texts of a table as a sequence of str that are made when they are asked for."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                texts: list[str] = self._column.slice(start, max(stop - start, 0)).to_pylist()
                return texts
            return [self[i] for i in range(start, stop, step)]
        text: str = self._column[int(index)].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        # Arrow makes strings of a block much faster than of one row after another.
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]


@dataclass(frozen=True, eq=False)
class Rows:
    """A table of texts, each with an id and perhaps a label.

    Attributes:
        table: columns `id` (string), `text` (large_string) and `label` (string; all null = no labels).
        source: what messages call the table: a file, a Hub name.
    """

    table: Any
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
        """Rows of strings in memory; ids default to row numbers. NULs and lone surrogates are replaced."""
        texts = list(texts)
        repairs = Repairs()
        columns = [
            repairs.column(list(map(str, range(len(texts)))) if ids is None else list(ids), pa.string()),
            repairs.column(texts, pa.large_string()),
            pa.nulls(len(texts), pa.string())
            if labels is None
            else repairs.column(list(labels), pa.string()),
        ]
        repairs.report(source)
        return Rows(pa.Table.from_arrays(columns, schema=SCHEMA), source)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def texts(self) -> Texts:
        """The texts, in row order."""
        return Texts(self.table.column("text"))

    @property
    def ids(self) -> list[str]:
        """The ids, in row order."""
        ids: list[str] = self.table.column("id").to_pylist()
        return ids

    @property
    def labels(self) -> list[str] | None:
        """The labels, in row order; None unless every row has one."""
        column = self.table.column("label")
        if column.null_count:
            return None
        labels: list[str] = column.to_pylist()
        return labels

    def label(self, row: int) -> str | None:
        """The label of one row; None where it has none."""
        label: str | None = self.table.column("label")[row].as_py()
        return label

    def distinct_labels(self) -> list[str]:
        """The labels that occur, sorted; empty where the table has none."""
        return sorted(pc.unique(self.table.column("label")).drop_null().to_pylist())

    def save(self, path: Path) -> None:
        """Write an Arrow file that `load` maps."""
        with Rows.writer(path) as writer:
            writer.write(self)

    @staticmethod
    @contextmanager
    def writer(path: Path) -> Iterator[RowsWriter]:
        """Write an Arrow file part by part, for rows that are never in memory together."""
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            yield RowsWriter(writer)

    @staticmethod
    def load(path: Path) -> Rows:
        """Map a file that `save` or `writer` wrote; nothing is read before it is asked for."""
        return Rows(pa.ipc.open_file(pa.memory_map(str(path))).read_all(), str(path))

    def select(self, row_numbers: ArrayLike) -> Rows:
        """The rows with these numbers, in the order given."""
        return Rows(self.table.take(pa.array(np.asarray(row_numbers, dtype=np.int64))), self.source)

    @staticmethod
    def concat(parts: Sequence[Rows]) -> Rows:
        """The rows of several tables, one after another. Nothing is copied."""
        return Rows(
            pa.concat_tables([part.table for part in parts]), " + ".join(part.source for part in parts)
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of ids, texts and labels; neither Arrow's chunks nor the file's name matter."""
        digest = hashlib.sha256()
        for name in SCHEMA.names:
            lengths, contents = hashlib.sha256(), hashlib.sha256()
            for chunk in self.table.column(name).chunks:
                sizes = pc.fill_null(pc.cast(pc.binary_length(chunk), pa.int64()), -1)
                lengths.update(sizes.to_numpy(zero_copy_only=False).astype("<i8"))
                contents.update(_bytes_of(chunk.drop_null()))
            digest.update(lengths.digest() + contents.digest())
        return digest.hexdigest()


class RowsWriter:
    """Appends rows to an Arrow file; see `Rows.writer`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, rows: Rows) -> None:
        """Append rows."""
        self._writer.write_table(rows.table, max_chunksize=BLOCK)


def _bytes_of(array: Any) -> memoryview:
    """The UTF-8 bytes of an Arrow array of strings without nulls, one after another."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:
        return memoryview(b"")
    ends = np.frombuffer(offsets, dtype=np.int64 if pa.types.is_large_string(array.type) else np.int32)
    return memoryview(data)[int(ends[array.offset]) : int(ends[array.offset + len(array)])]


# --- reading ------------------------------------------------------------------------------------------------


def read_table(
    path: str | Path,
    text_column: Column | Sequence[Column] = "text",
    label_column: Column | None = "label",
    id_column: Column | None = None,
    header: bool | None = None,
    quotes: bool | None = None,
    class_names: str | Path | Sequence[str] | None = None,
) -> Rows:
    """Read texts, with their labels and ids, from a file, a saved data set or the Hub.

    Rows with an empty text and rows that occur twice are kept and counted in the log. A NUL becomes a space
    and half a surrogate pair U+FFFD, because servers, tokenizers and UTF-8 can't carry them.

    Args:
        path: one of
            - a file: .csv, .tsv, .jsonl, .ndjson, .json (one object a line), each also .gz or .xz; .parquet;
            - a folder that `datasets.Dataset.save_to_disk` wrote;
            - `hub:NAME`, `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT` for `datasets.load_dataset`; the split
              is `train` unless given, NAME may also be a local folder.
        text_column: name or number (from 0) of the text, or several; they are stripped and joined by one
            space, blank ones left out.
        label_column: name or number of the label; None for a table without labels. Labels are stripped;
            numbers and truth values become strings; a `ClassLabel` becomes its name.
        id_column: name or number of an id; without one, ids are row numbers from 0.
        header: whether a CSV or TSV file starts with a line of names. None: it does if a wanted column is
            given by name.
        quotes: whether a field of a CSV or TSV file may stand in double quotes, which are doubled inside it
            (RFC 4180; a backslash means itself). None: in CSV they may, in TSV a quote is a character.
        class_names: names that replace labels counted from 1 (and a ClassLabel's own names), or a file of
            them, one a line, like the `classes.txt` of the published data sets.

    Raises:
        InputError: the table can't be read; the message names file, line or row, and what to do.
    """
    columns = Columns.of(text_column, label_column, id_column)
    names = _read_class_names(class_names) if isinstance(class_names, (str, Path)) else class_names
    records, unit = open_records(path, columns, header, quotes, names)
    return _collect(records, str(path), unit, columns, names)


def open_records(
    path: str | Path,
    columns: Columns,
    header: bool | None = None,
    quotes: bool | None = None,
    class_names: Sequence[str] | None = None,
    encoding_errors: EncodingErrors | None = None,
) -> tuple[Iterator[Record], str]:
    """The wanted fields of each record of any table that `read_table` reads.

    Args:
        path: see `read_table`, also for `header`, `quotes` and `class_names`.
        columns: the wanted ones.
        header: see `read_table`.
        quotes: see `read_table`.
        class_names: see `read_table`.
        encoding_errors: what to do with a line that is not UTF-8: `strict` refuses it and names this option,
            `replace` puts U+FFFD in place of what can't be read and counts such lines in the log. None
            refuses it where there is no such option to name.

    Returns:
        Number and fields of each record, as they come, and what the number counts: `line` or `row`.
    """
    source = str(path)
    if source.startswith(HUB_PREFIX):
        return _dataset_records(_load_from_hub(source), source, columns, class_names), "row"
    if Path(path).is_dir():
        return _dataset_records(_load_from_disk(Path(path)), source, columns, class_names), "row"
    file = _existing(Path(path))
    kind, compression = _kind(file)
    if kind == ".parquet":
        return _parquet_records(file, columns), "row"
    lines = _lines(file, compression, encoding_errors)
    if kind in (".csv", ".tsv"):
        quoted = kind == ".csv" if quotes is None else quotes
        return _csv_records(file, lines, columns, "\t" if kind == ".tsv" else ",", quoted, header), "line"
    return _jsonl_records(file, lines, columns), "line"


def open_lines(path: str | Path, encoding_errors: EncodingErrors | None = None) -> Iterator[str]:
    """The lines of a text file, perhaps .gz or .xz, of whatever format; see `open_records`."""
    file = _existing(Path(path))
    compression = file.suffix if file.suffix in (".gz", ".xz") else ""
    return _lines(file, compression, encoding_errors)


@dataclass(frozen=True)
class Columns:
    """The wanted columns; a record's fields come in this order: texts, label, id."""

    texts: tuple[Column, ...]
    label: Column | None
    id: Column | None

    @staticmethod
    def of(text: Column | Sequence[Column], label: Column | None, id_: Column | None) -> Columns:
        """The columns that a user named."""
        texts = (text,) if isinstance(text, (str, int)) else tuple(text)
        if not texts:
            raise InputError("text_column: name at least one column")
        return Columns(texts, label, id_)

    @property
    def wanted(self) -> list[Column]:
        """All of them, in the order of a record's fields."""
        return [*self.texts, *(column for column in (self.label, self.id) if column is not None)]

    @property
    def all_numbers(self) -> bool:
        """Whether they can be found without a header."""
        return all(isinstance(column, int) or column.isdecimal() for column in self.wanted)

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
                    f"there are columns 0 to {len(names) - 1}"
                    if numbers_only
                    else f"there are {', '.join(map(repr, names))}"
                )
                hint = (
                    "; for texts without labels set label_column to null"
                    if column == self.label
                    else "; choose one of these"
                )
                raise InputError(f"{where}: no column {column!r}; {there}{hint}")
        return positions


Record: TypeAlias = tuple[int, Sequence[Any]]


def _collect(
    records: Iterator[Record],
    source: str,
    unit: str,
    columns: Columns,
    class_names: Sequence[str] | None,
) -> Rows:
    """Turn records into Arrow blocks, counting on the way what deserves a word."""
    labelled, repairs = columns.label is not None, Repairs()
    num_texts = len(columns.texts)
    # Numbered classes that have a name; every distinct label is worked out once.
    known_labels: dict[Any, str] = {}
    blocks, num_rows, empty, hashes = [], 0, 0, []
    # Shown only when reading takes more than three seconds, and only to people.
    progress = tqdm(records, desc=f"reading {source}", unit=" rows", unit_scale=True, delay=3, disable=None)
    stream = iter(progress)
    while block := list(islice(stream, BLOCK)):
        texts: list[str] = []
        labels: list[str | None] = []
        ids: list[str] = []
        for line, fields in block:
            where = (source, unit, line)
            if num_texts == 1:
                text = as_text(fields[0], where).strip()
            else:
                parts = [as_text(field, where).strip() for field in fields[:num_texts]]
                text = " ".join(filter(None, parts))
            empty += not text
            texts.append(text)
            if labelled:
                field = fields[num_texts]
                # 1, 1.0 and True are one key of a dictionary but three labels.
                key = field if isinstance(field, str) else (type(field), repr(field))
                label = known_labels.get(key)
                if label is None:
                    label = known_labels[key] = _as_label(field, class_names, where)
                labels.append(label)
            if columns.id is not None:
                id_ = as_text(fields[-1], where)
                if not id_:
                    raise InputError(f"{source}, {unit} {line}: no id in column {columns.id!r}; give it one")
                ids.append(id_)
        if columns.id is None:
            ids = list(map(str, range(num_rows, num_rows + len(block))))
        keys = zip(texts, labels, strict=True) if labelled else texts
        hashes.append(np.fromiter(map(hash, keys), dtype=np.int64, count=len(block)))
        blocks.append(
            pa.RecordBatch.from_arrays(
                [
                    repairs.column(ids, pa.string()),
                    repairs.column(texts, pa.large_string()),
                    repairs.column(labels, pa.string()) if labelled else pa.nulls(len(block), pa.string()),
                ],
                schema=SCHEMA,
            )
        )
        num_rows += len(block)
    if not num_rows:
        raise InputError(f"{source}: no rows; give a file with at least one")
    repairs.report(source)
    if empty:
        log.warning("%s: %d of %d texts are empty; they are kept", source, empty, num_rows)
    duplicates = num_rows - len(np.unique(np.concatenate(hashes)))
    if duplicates:
        log.info("%s: %d of %d rows repeat an earlier row; they are kept", source, duplicates, num_rows)
    return Rows(pa.Table.from_batches(blocks, schema=SCHEMA), source)


def as_text(field: object, where: tuple[str, str, int]) -> str:
    """A field as a string; `where` (source, `line` or `row`, its number) is for messages."""
    if isinstance(field, str):
        return field
    # pandas writes a missing value of a column of numbers as NaN.
    if field is None or field != field:
        return ""
    if isinstance(field, (bool, int, float)):
        return str(field)
    source, unit, line = where
    raise InputError(
        f"{source}, {unit} {line}: {type(field).__name__} instead of a string; choose another column"
    )


def _as_label(field: object, class_names: Sequence[str] | None, where: tuple[str, str, int]) -> str:
    source, unit, line = where
    label = as_text(field, where).strip()
    if not label:
        raise InputError(f"{source}, {unit} {line}: no label; add one or remove the row")
    if class_names is None:
        return label
    if not label.isdecimal() or not 1 <= int(label) <= len(class_names):
        raise InputError(
            f"{source}, {unit} {line}: label {label!r} is no number from 1 to {len(class_names)}; "
            "correct it or leave class_names out"
        )
    return class_names[int(label) - 1]


class Repairs:
    """Makes Arrow columns of strings, replaces what later stages can't bear, and counts how often."""

    def __init__(self) -> None:
        self.nuls = 0
        self.surrogates = 0

    def column(self, values: list[Any], kind: Any) -> Any:
        """An Arrow array of strings (or None) of the type `kind`."""
        try:
            array = pa.array(values, kind)
        except UnicodeEncodeError:
            broken = [value is not None and _SURROGATE.search(value) is not None for value in values]
            self.surrogates += sum(broken)
            whole = [
                _SURROGATE.sub("\ufffd", value) if bad else value
                for value, bad in zip(values, broken, strict=True)
            ]
            array = pa.array(whole, kind)
        nuls = pc.sum(pc.match_substring(array, "\0")).as_py()
        if nuls:
            self.nuls += nuls
            array = pc.replace_substring(array, "\0", " ")
        return array

    def report(self, source: str) -> None:
        """Tell how much was replaced in a table."""
        if self.nuls:
            log.warning("%s: NUL characters in %d fields, each replaced by a space", source, self.nuls)
        if self.surrogates:
            log.warning("%s: lone surrogates in %d fields, each replaced by U+FFFD", source, self.surrogates)


# --- files of lines -----------------------------------------------------------------------------------------


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.parent.is_dir():
        raise InputError(f"{path}: no such file, nor folder {path.parent}; check the path")
    names = sorted(entry.name for entry in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    raise InputError(f"{path}: no such file; {hint}")


def _kind(path: Path) -> tuple[str, str]:
    """The format and the compression that the name tells: (".csv", ".gz")."""
    name = path.name.lower()
    compression = next((end for end in (".gz", ".xz") if name.endswith(end)), "")
    kind = Path(name.removesuffix(compression)).suffix
    if kind in (".csv", ".tsv", ".jsonl", ".ndjson", ".json") or (kind == ".parquet" and not compression):
        return kind, compression
    raise InputError(f"{path}: the ending tells no format that is read here; use {READABLE}")


def _lines(path: Path, compression: str, encoding_errors: EncodingErrors | None = None) -> Iterator[str]:
    """The lines of a file, each with its line end; the first without a byte order mark."""
    openers: dict[str, Callable[[Path], Any]] = {
        "": lambda p: p.open("rb"),
        ".gz": gzip.open,
        ".xz": lzma.open,
    }
    number = replaced = 0
    try:
        with openers[compression](path) as file:
            stream: BinaryIO = io.BufferedReader(file, 1 << 20) if compression else file
            for number, line in enumerate(stream, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError:
                    if encoding_errors != "replace":
                        raise
                    text = line.decode("utf-8", "replace")
                    replaced += 1
                yield text
    except UnicodeDecodeError as error:
        hint = "" if encoding_errors is None else ", or set encoding_errors to replace"
        raise InputError(
            f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}); save the file as"
            f" UTF-8{hint}"
        ) from None
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise InputError(
            f"{path}: truncated or damaged after line {number} ({error}); copy or compress it again"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror}); check the file and its rights") from None
    if not number:
        raise InputError(f"{path}: empty file; give a file with rows")
    if replaced:
        log.warning("%s: %d lines are not UTF-8; what can't be read became U+FFFD", path, replaced)


def _csv_records(
    path: Path, text_lines: Iterator[str], columns: Columns, delimiter: str, quoted: bool, header: bool | None
) -> Iterator[Record]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    nuls = 0

    def lines() -> Iterator[str]:
        nonlocal nuls
        for line in text_lines:
            # Before Python 3.11 the csv module refuses NULs.
            if "\0" in line:
                nuls += 1
                line = line.replace("\0", " ")
            yield line

    reader = csv.reader(
        lines(),
        delimiter=delimiter,
        doublequote=True,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    has_header = not columns.all_numbers if header is None else header
    positions: list[int] = []
    width = first_line = num_records = 0
    # A record may span lines; it is known by the line on which it starts.
    line = 1
    try:
        for fields in reader:
            start, line = line, reader.line_num + 1
            if not fields:
                continue
            if not width:
                width, first_line = len(fields), start
                names = [field.strip() for field in fields]
                positions = columns.find(names, f"{path}, line {start}", numbers_only=not has_header)
                if has_header:
                    continue
            if len(fields) != width:
                raise InputError(
                    f"{path}, line {start}: {len(fields)} fields, but line {first_line} has {width}; "
                    + (
                        "put fields that hold a comma, a quote or a line end in double quotes"
                        if quoted
                        else "write tabs and line ends inside a field as spaces, or set quotes to true"
                    )
                )
            num_records += 1
            yield start, [fields[position] for position in positions]
    except csv.Error as error:
        reason = str(error)
        if "unexpected end" in reason or "field limit" in reason:
            reason = "a quoted field starts in this record and is never closed"
        hint = "double the quotes inside a quoted field, or set quotes to false if they are plain characters"
        if "new-line" in reason:
            reason, hint = "a bare carriage return", "end lines with \\n or \\r\\n"
        raise InputError(f"{path}, line {line}: {reason}; {hint}") from None
    if has_header and width and not num_records:
        raise InputError(f"{path}: a header and no rows; add rows or set header to false")
    if nuls:
        log.warning("%s: NUL characters in %d lines, each replaced by a space", path, nuls)


def _jsonl_records(path: Path, lines: Iterator[str], columns: Columns) -> Iterator[Record]:
    wanted: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not wanted and line.lstrip().startswith("["):
            raise InputError(f"{path}, line {number}: a JSON array; write one object a line (jq -c '.[]')")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: no JSON ({error}); write one object a line") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: no JSON object; write one object a line")
        if not wanted:
            names = list(record)
            wanted = [names[position] for position in columns.find(names, f"{path}, line {number}")]
        try:
            yield number, [record[name] for name in wanted]
        except KeyError as error:
            there = ", ".join(map(repr, record))
            raise InputError(f"{path}, line {number}: no {error}, only {there}; add it") from None


def _read_class_names(path: str | Path) -> list[str]:
    names = [line.strip() for line in _lines(_existing(Path(path)), "")]
    return [name for name in names if name]


# --- Arrow tables -------------------------------------------------------------------------------------------


def _parquet_records(path: Path, columns: Columns) -> Iterator[Record]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            wanted = [names[position] for position in columns.find(names, str(path))]
            batches = file.iter_batches(BLOCK, columns=list(dict.fromkeys(wanted)))
            yield from _batch_records(batches, wanted, str(path))
    except (pa.ArrowException, OSError) as error:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: empty file; give a file with rows") from None
        raise InputError(
            f"{path}: no whole Parquet file ({_one_line(error)}); copy or write it again"
        ) from None


def _dataset_records(
    dataset: Any, source: str, columns: Columns, class_names: Sequence[str] | None
) -> Iterator[Record]:
    """The rows of a `datasets.Dataset`; numbers of a ClassLabel become names, or count from 1."""
    names = dataset.column_names
    wanted = [names[position] for position in columns.find(names, source)]
    own_names: list[str] | None = None
    if columns.label is not None:
        own_names = getattr(dataset.features[wanted[len(columns.texts)]], "names", None)
    if own_names and class_names is not None and len(own_names) != len(class_names):
        raise InputError(
            f"{source}: {len(own_names)} classes but {len(class_names)} class_names; give as many"
        )
    batches = dataset.select_columns(list(dict.fromkeys(wanted))).with_format("arrow").iter(BLOCK)
    for row, fields in _batch_records(batches, wanted, source):
        if own_names:
            number = fields[len(columns.texts)]
            # -1 marks a row without a label.
            label = None
            if number is not None and number >= 0:
                label = own_names[number] if class_names is None else number + 1
            fields = [*fields[: len(columns.texts)], label, *fields[len(columns.texts) + 1 :]]
        yield row, fields


def _batch_records(batches: Iterable[Any], wanted: Sequence[str], source: str) -> Iterator[Record]:
    row = 1
    for batch in batches:
        fields = [_python_values(batch.column(name), row, source) for name in wanted]
        yield from enumerate(zip(*fields, strict=True), row)
        row += batch.num_rows


def _python_values(column: Any, first_row: int, source: str) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        # Parquet doesn't check its strings; find the row to name it.
        for row, value in enumerate(column, first_row):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{source}, row {row}: not UTF-8 ({error.reason} at byte {error.start}); write it again"
                ) from None
        raise
    return values


def _load_from_disk(folder: Path) -> Any:
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder))
    except FileNotFoundError:
        raise InputError(
            f"{folder}: a folder, but no data set that datasets' save_to_disk wrote; name a file in it"
        ) from None
    except Exception as error:
        # Whatever a damaged folder makes datasets raise, it is the user's folder that has to be put right.
        raise InputError(f"{folder}: a damaged data set ({_one_line(error)}); save it again") from error
    if isinstance(dataset, datasets.DatasetDict):
        raise InputError(
            f"{folder}: holds splits; choose {' or '.join(str(folder / name) for name in dataset)}"
        )
    return dataset


def _load_from_hub(source: str) -> Any:
    import datasets

    # The split may be a slice such as train[:10%], with a colon of its own.
    name, *rest = re.split(r":(?![^\[]*\])", source.removeprefix(HUB_PREFIX))
    if not name or len(rest) > 2 or not all(rest):
        raise InputError(f"{source}: write hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    split = rest[-1] if rest else "train"
    config = rest[0] if len(rest) == 2 else None
    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:
        # A wrong name, configuration or split, no network, a gated set: each has a class of its own.
        raise InputError(
            f"{source}: not loaded ({_one_line(error)}); check name, configuration, split and network"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
