"""Readers of tables: files of lines, Parquet files and data sets of `datasets`."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from datamodules.core.errors import InputError, excerpt, reason
from datamodules.core.files import binary_lines, check_expansion, existing_file
from datamodules.core.progress import progress_bar
from datamodules.corpora.records import Block, Columns
from datamodules.corpora.rows import BLOCK

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)

#: Names for labels counted from 1, or for each label its name.
ClassNames: TypeAlias = Sequence[str] | Mapping[str, str]
#: Number and wanted fields of a record.
Record: TypeAlias = tuple[int, Sequence[object]]

#: The prefix of a data set of the Hugging Face Hub, in place of a file.
HUB = "hub:"
_READABLE = ".csv, .tsv, .jsonl, .ndjson, .json (each also .gz or .xz) or .parquet"
#: Python's csv stops at 128 KiB a field. Beyond this limit, an unclosed quote is likelier than a long text.
_LONGEST_FIELD = 1 << 26


def read_blocks(
    path: str | Path,
    columns: Columns,
    header: bool | None = None,
    quotes: bool | None = None,
    class_names: ClassNames | None = None,
    replace_bytes: bool = False,
) -> Iterator[Block]:
    """Yield the wanted columns of any table in blocks; see `read_table`, and `open_lines` for `replace_bytes`."""
    source = str(path)
    if source.startswith(HUB) or Path(path).is_dir():
        dataset = _load_from_hub(source) if source.startswith(HUB) else _load_from_disk(Path(path))
        blocks = _dataset_blocks(dataset, source, columns, class_names)
    elif (kind := _kind(existing_file(path))) == ".parquet":
        blocks = _parquet_blocks(Path(path), columns)
    else:
        lines = open_lines(path, replace_bytes)
        if kind in (".csv", ".tsv"):
            quoted = kind == ".csv" if quotes is None else quotes
            records = _csv_records(lines, source, columns, "\t" if kind == ".tsv" else ",", quoted, header)
        else:
            records = _json_records(lines, source, columns)
        blocks = _blocks_of(records, f"{source}, line")
    num_rows = 0
    with progress_bar(desc=f"reading {path}", unit=" rows", unit_scale=True) as bar:
        for block in blocks:
            num_rows += len(block.numbers)
            bar.update(len(block.numbers))
            yield block
    if not num_rows:
        raise InputError(f"{path}: no rows; give a file with at least one")


def _kind(path: Path) -> str:
    """Return the suffix that names the format, such as `.csv`."""
    name = path.name.lower()
    compression = next((end for end in (".gz", ".xz") if name.endswith(end)), "")
    kind = Path(name.removesuffix(compression)).suffix
    if kind in (".csv", ".tsv", ".jsonl", ".ndjson", ".json") or (kind == ".parquet" and not compression):
        return kind
    raise InputError(f"{path}: the suffix is none of the formats that are read here; use {_READABLE}")


def open_lines(path: str | Path, replace_bytes: bool = False) -> Iterator[str]:
    """Yield the lines of a file, plain or compressed, each with its line end; the first without a byte order mark.

    Bytes that are not UTF-8 become U+FFFD with `replace_bytes`, otherwise the first line with one is an `InputError`.
    """
    number = replaced = 0
    for number, line in enumerate(binary_lines(path), 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if not replace_bytes:
                problem = f"not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8"
                raise InputError(f"{path}, line {number}: {problem}") from None
            text = line.decode("utf-8", "replace")
            replaced += 1
        yield text
    if not number:
        raise InputError(f"{path}: empty file; give a file with rows")
    if replaced:
        log.warning("%s: %d lines are not UTF-8; undecodable bytes became U+FFFD", path, replaced)


def _blocks_of(records: Iterator[Record], source: str) -> Iterator[Block]:
    while True:
        numbers: list[int] = []
        columns: list[list[object]] = []
        # Thousands of records alive at once would make the garbage collector search everything that is loaded.
        while part := list(islice(records, min(128, BLOCK - len(numbers)))):
            part_numbers, fields = zip(*part, strict=True)
            numbers.extend(part_numbers)
            columns = columns or [[] for _ in fields[0]]
            for column, values in zip(columns, zip(*fields, strict=True), strict=True):
                column.extend(values)
        if not numbers:
            return
        yield Block(source, numbers, columns)


def _csv_records(
    lines: Iterator[str], source: str, columns: Columns, delimiter: str, quoted: bool, header: bool | None
) -> Iterator[Record]:
    """Yield the records of delimited lines, each by the number of its first line."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    lines = _without_nuls(lines, source)
    begin = _to_header(lines)
    if delimiter == "," and begin and _has_semicolons(begin[-1], columns):
        log.info("%s: fields are separated by semicolons", source)
        delimiter = ";"
    reader = csv.reader(
        chain(begin, lines),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    has_header = not columns.all_numbers if header is None else header
    positions: list[int] = []
    width = first_line = num_records = 0
    # A record may span lines. Messages name the line on which it starts.
    line = 1
    try:
        for fields in reader:
            start, line = line, reader.line_num + 1
            if not fields:
                continue
            if not width:
                width, first_line = len(fields), start
                positions = columns.find(fields, f"{source}, line {start}", numbers_only=not has_header)
                if has_header:
                    continue
            if len(fields) != width:
                hint = "write tabs and line ends inside a field as spaces, or set quotes to true"
                if quoted:
                    hint = f"put fields with a {delimiter!r}, a quote or a line end in double quotes"
                problem = f"{len(fields)} fields, but line {first_line} has {width}"
                raise InputError(f"{source}, line {start}: {problem}; {hint}")
            num_records += 1
            yield start, [fields[position] for position in positions]
    except csv.Error as error:
        raise InputError(f"{source}, line {line}: {_csv_problem(str(error))}") from None
    if has_header and width and not num_records:
        raise InputError(f"{source}: a header and no rows; add rows or set header to false")


def _without_nuls(lines: Iterable[str], source: str) -> Iterator[str]:
    """Replace NULs, which the csv module refuses before Python 3.11."""
    num_lines = 0
    for line in lines:
        if "\0" in line:
            num_lines += 1
            line = line.replace("\0", " ")
        yield line
    if num_lines:
        log.warning("%s: NUL characters in %d lines, each replaced by a space", source, num_lines)


def _to_header(lines: Iterator[str]) -> list[str]:
    """Return the lines up to the first that is not blank."""
    begin = []
    for line in lines:
        begin.append(line)
        if line.strip():
            break
    return begin


def _has_semicolons(header: str, columns: Columns) -> bool:
    """Return whether semicolons, as some spreadsheets write them, separate the wanted names in a header."""
    by_semicolon, by_comma = ({name.strip(' "\r\n') for name in header.split(mark)} for mark in ";,")
    wanted = {column for column in columns.wanted if isinstance(column, str)}
    return not columns.all_numbers and wanted <= by_semicolon and not wanted <= by_comma


def _csv_problem(problem: str) -> str:
    """Return a helpful message for one of the csv module."""
    if "new-line" in problem:
        return "a bare carriage return; end lines with \\n or \\r\\n"
    if "unexpected end" in problem or "field limit" in problem:
        problem = "a quoted field starts in this record and is never closed"
    return f"{problem}; double the quotes inside a quoted field, or set quotes to false if they are plain characters"


def _json_records(lines: Iterator[str], source: str, columns: Columns) -> Iterator[Record]:
    wanted: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        if not wanted and line.lstrip().startswith("["):
            raise InputError(f"{where}: a JSON array; write one object a line (jq -c '.[]')")
        try:
            # The parser keeps the last of two fields with one name: the first record shows whether there are any.
            record = json.loads(line) if wanted else json.loads(line, object_pairs_hook=_single_fields)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({excerpt(error)}); write one object a line") from None
        if not isinstance(record, dict):
            raise InputError(f"{where}: not a JSON object; write one object a line")
        if not wanted:
            names = list(record)
            wanted = [names[position] for position in columns.find(names, where)]
        try:
            yield number, [record[name] for name in wanted]
        except KeyError as error:
            present = excerpt(", ".join(map(repr, record)))
            raise InputError(f"{where}: no {excerpt(error)}, only {present}; add it") from None


def _single_fields(fields: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(fields)
    if len(record) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"has the field {excerpt(twice)!r} more than once; rename one")
    return record


def _parquet_blocks(path: Path, columns: Columns) -> Iterator[Block]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            wanted = [names[position] for position in columns.find(names, str(path))]
            if twice := [name for name in wanted if names.count(name) > 1]:
                raise InputError(f"{path}: has the column {excerpt(twice[0])!r} more than once; rename one")
            distinct = list(dict.fromkeys(wanted))
            # Arrow keeps all row groups that one call has read until the call ends.
            batches = (
                batch
                for group in range(file.num_row_groups)
                for batch in file.iter_batches(BLOCK, row_groups=[group], columns=distinct)
            )
            yield from _arrow_blocks(_checked(batches, path), wanted, str(path))
    except UnicodeDecodeError as error:
        # `_python_values` handles undecodable values, so this is a name.
        raise InputError(f"{path}: a column's name is not UTF-8 ({error.reason}); write it again") from None
    except (pa.ArrowException, OSError) as error:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: empty file; give a file with rows") from None
        raise InputError(f"{path}: not a whole Parquet file ({reason(error)}); copy it again") from None


def _checked(batches: Iterable[pa.RecordBatch], path: Path) -> Iterator[pa.RecordBatch]:
    packed, unpacked = path.stat().st_size, 0
    for batch in batches:
        unpacked += batch.nbytes
        check_expansion(path, packed, unpacked)
        yield batch


def _dataset_blocks(
    dataset: Dataset, source: str, columns: Columns, class_names: ClassNames | None
) -> Iterator[Block]:
    """Yield the rows of a data set. Numbers of a ClassLabel become names, or count from 1 if class names are a list."""
    names = dataset.column_names
    wanted = [names[position] for position in columns.find(names, source)]
    label = len(columns.texts)
    feature = dataset.features[wanted[label]] if columns.labels else None
    own_names = getattr(getattr(feature, "feature", feature), "names", None)  # also of a list of ClassLabels
    counted = None if isinstance(class_names, Mapping) else class_names
    if own_names and counted is not None and len(own_names) != len(counted):
        raise InputError(f"{source}: {len(own_names)} classes but {len(counted)} class_names; give as many")
    batches = dataset.select_columns(list(dict.fromkeys(wanted))).with_format("arrow").iter(BLOCK)
    for block in _arrow_blocks(batches, wanted, source):
        if own_names:
            labels = own_names if counted is None else range(1, len(counted) + 1)
            block.columns[label] = [_named(field, labels) for field in block.columns[label]]
        yield block


def _named(field: object, labels: Sequence[object]) -> object:
    """The label of a number, or those of a list; -1 marks a row without a label."""
    if isinstance(field, list):
        return [_named(number, labels) for number in field]
    return labels[field] if isinstance(field, int) and field >= 0 else None


def _arrow_blocks(batches: Iterable[pa.RecordBatch], wanted: Sequence[str], source: str) -> Iterator[Block]:
    row = 1
    for batch in batches:
        columns = [_python_values(batch.column(name), row, source) for name in wanted]
        yield Block(f"{source}, row", range(row, row + batch.num_rows), columns)
        row += batch.num_rows


def _python_values(column: pa.Array, first_row: int, source: str) -> list[object]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        # Parquet does not check its strings. Convert them one by one to name the row.
        for row, value in enumerate(column, first_row):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                problem = f"not UTF-8 ({error.reason} at byte {error.start})"
                raise InputError(f"{source}, row {row}: {problem}; write it again") from None
        raise


def _load_from_disk(folder: Path) -> Dataset:
    import datasets

    try:
        dataset = datasets.load_from_disk(str(folder))
    except FileNotFoundError:
        raise InputError(f"{folder}: not a data set that save_to_disk wrote; name a file in it") from None
    except Exception as error:
        raise InputError(f"{folder}: a damaged data set ({reason(error)}); save it again") from error
    if isinstance(dataset, datasets.DatasetDict):
        splits = " or ".join(str(folder / name) for name in dataset)
        raise InputError(f"{folder}: contains splits; choose {splits}")
    return dataset


def _load_from_hub(source: str) -> Dataset:
    import datasets

    # The split may be a slice with a colon, such as train[:10%].
    name, *rest = re.split(r":(?![^\[]*\])", source.removeprefix(HUB))
    if not name or len(rest) > 2 or not all(rest):
        raise InputError(f"{source}: write hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    *config, split = rest or ["train"]
    try:
        return datasets.load_dataset(name, *config, split=split)
    except Exception as error:
        # A wrong name, configuration or split, no network, a gated set: each has its own exception class.
        advice = "check name, configuration, split and network"
        raise InputError(f"{source}: not loaded ({reason(error)}); {advice}") from error


def hub_fingerprint(source: str) -> str:
    """Identify the contents of a data set of the Hub, or of its local copy if the Hub can't be reached."""
    dataset = _load_from_hub(source)
    return f"{dataset._fingerprint} {dataset.info.version}"
