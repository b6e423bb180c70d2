"""Readers: the wanted fields of each record of a file of lines, a Parquet file or a data set of `datasets`."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from datamodules.core.errors import InputError, excerpt, reason
from datamodules.core.files import DamagedFile, binary_lines, existing_file
from datamodules.corpora.records import Columns, Record, Records
from datamodules.corpora.rows import BLOCK

log = logging.getLogger(__name__)

#: What to do with bytes that are not UTF-8.
EncodingErrors: TypeAlias = Literal["strict", "replace"]

#: How a data set of the Hugging Face Hub is named where a file could be.
HUB = "hub:"
_READABLE = ".csv, .tsv, .jsonl, .ndjson, .json (each also .gz or .xz) or .parquet"
#: Python's csv stops at 128 KiB a field; beyond this an unclosed quote is the likelier cause than a text.
_LONGEST_FIELD = 1 << 26


def open_records(
    path: str | Path,
    columns: Columns,
    header: bool | None = None,
    quotes: bool | None = None,
    class_names: Sequence[str] | Mapping[str, str] | None = None,
    encoding_errors: EncodingErrors | None = None,
) -> Records:
    """The records of any table; see `read_table` for the arguments, and `open_lines` for `encoding_errors`."""
    source = str(path)
    if source.startswith(HUB) or Path(path).is_dir():
        dataset = _load_from_hub(source) if source.startswith(HUB) else _load_from_disk(Path(path))
        return Records(_dataset_records(dataset, source, columns, class_names), columns, source, "row")
    file = existing_file(path)
    kind = _kind(file)
    if kind == ".parquet":
        return Records(_parquet_records(file, columns), columns, source, "row")
    lines = open_lines(file, encoding_errors)
    if kind in (".csv", ".tsv"):
        quoted = kind == ".csv" if quotes is None else quotes
        records = _csv_records(lines, file, columns, "\t" if kind == ".tsv" else ",", quoted, header)
    else:
        records = _json_records(lines, file, columns)
    return Records(records, columns, source, "line")


def _kind(path: Path) -> str:
    """The format that the name tells, such as `.csv`."""
    name = path.name.lower()
    compression = next((end for end in (".gz", ".xz") if name.endswith(end)), "")
    kind = Path(name.removesuffix(compression)).suffix
    if kind in (".csv", ".tsv", ".jsonl", ".ndjson", ".json") or (kind == ".parquet" and not compression):
        return kind
    raise InputError(f"{path}: the ending tells no format that is read here; use {_READABLE}")


def open_lines(path: str | Path, encoding_errors: EncodingErrors | None = None) -> Iterator[str]:
    """The lines of a text file, each with its line end; the first without a byte order mark.

    Args:
        path: a file, perhaps .gz or .xz.
        encoding_errors: what to do with a line that is not UTF-8: `strict` refuses it and names this option,
            `replace` puts U+FFFD in place of what can't be read and counts such lines in the log. None
            refuses it where there is no such option to name.

    Raises:
        InputError: the file is missing, empty or damaged, or not UTF-8.
    """
    path = existing_file(path)
    number = replaced = 0
    try:
        for number, line in enumerate(binary_lines(path), 1):
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
    except DamagedFile as error:
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
    lines: Iterator[str], path: Path, columns: Columns, delimiter: str, quoted: bool, header: bool | None
) -> Iterator[Record]:
    """The records of delimited lines, each by the number of its first line; the path is for messages."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    nuls = 0

    def without_nuls() -> Iterator[str]:
        nonlocal nuls
        for line in lines:
            # Before Python 3.11 the csv module refuses NULs.
            if "\0" in line:
                nuls += 1
                line = line.replace("\0", " ")
            yield line

    lines = iter(lines)
    begin = _to_header(lines)
    if delimiter == "," and begin and _has_semicolons(begin[-1], columns):
        log.info("%s: fields are separated by semicolons", path)
        delimiter = ";"
    lines = chain(begin, lines)
    reader = csv.reader(
        without_nuls(),
        delimiter=delimiter,
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
                hint = "write tabs and line ends inside a field as spaces, or set quotes to true"
                if quoted:
                    hint = f"put fields that hold a {delimiter!r}, a quote or a line end in double quotes"
                raise InputError(
                    f"{path}, line {start}: {len(fields)} fields, but line {first_line} has {width}; {hint}"
                )
            num_records += 1
            yield start, [fields[position] for position in positions]
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: {_csv_problem(str(error))}") from None
    if has_header and width and not num_records:
        raise InputError(f"{path}: a header and no rows; add rows or set header to false")
    if nuls:
        log.warning("%s: NUL characters in %d lines, each replaced by a space", path, nuls)


def _to_header(lines: Iterator[str]) -> list[str]:
    """Blank lines, and the first that is none."""
    begin = []
    for line in lines:
        begin.append(line)
        if line.strip():
            break
    return begin


def _has_semicolons(header: str, columns: Columns) -> bool:
    """Whether it is semicolons that part the wanted names in a header: so some spreadsheets write tables."""
    named, alone = ({name.strip(' "\r\n') for name in header.split(mark)} for mark in ";,")
    wanted = {column for column in columns.wanted if isinstance(column, str)}
    return not columns.all_numbers and wanted <= named and not wanted <= alone


def _csv_problem(problem: str) -> str:
    """The csv module's complaint in words that help."""
    if "new-line" in problem:
        return "a bare carriage return; end lines with \\n or \\r\\n"
    if "unexpected end" in problem or "field limit" in problem:
        problem = "a quoted field starts in this record and is never closed"
    return f"{problem}; double the quotes inside a quoted field, or set quotes to false if they are plain characters"


def _json_records(lines: Iterator[str], path: Path, columns: Columns) -> Iterator[Record]:
    wanted: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not wanted and line.lstrip().startswith("["):
            raise InputError(f"{path}, line {number}: a JSON array; write one object a line (jq -c '.[]')")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}, line {number}: no JSON ({excerpt(error)}); write one object a line"
            ) from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: no JSON object; write one object a line")
        if not wanted:
            names = list(record)
            wanted = [names[position] for position in columns.find(names, f"{path}, line {number}")]
        try:
            yield number, [record[name] for name in wanted]
        except KeyError as error:
            there = excerpt(", ".join(map(repr, record)))
            raise InputError(f"{path}, line {number}: no {excerpt(error)}, only {there}; add it") from None


def _parquet_records(path: Path, columns: Columns) -> Iterator[Record]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            wanted = [names[position] for position in columns.find(names, str(path))]
            if twice := [name for name in wanted if names.count(name) > 1]:
                raise InputError(f"{path}: has the column {excerpt(twice[0])!r} more than once; rename one")
            batches = file.iter_batches(BLOCK, columns=list(dict.fromkeys(wanted)))
            yield from _batch_records(batches, wanted, str(path))
    except UnicodeDecodeError as error:
        # Of a value, `_python_values` names the row.
        raise InputError(f"{path}: a column's name is not UTF-8 ({error.reason}); write it again") from None
    except (pa.ArrowException, OSError) as error:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: empty file; give a file with rows") from None
        raise InputError(f"{path}: no whole Parquet file ({reason(error)}); copy or write it again") from None


def _dataset_records(
    dataset: Any, source: str, columns: Columns, class_names: Sequence[str] | Mapping[str, str] | None
) -> Iterator[Record]:
    """The rows of a `datasets.Dataset`; numbers of a ClassLabel become names, or count from 1 for a list of names."""
    names = dataset.column_names
    wanted = [names[position] for position in columns.find(names, source)]
    label = len(columns.texts)
    own_names = None if columns.label is None else getattr(dataset.features[wanted[label]], "names", None)
    counted = None if isinstance(class_names, Mapping) else class_names
    if own_names and counted is not None and len(own_names) != len(counted):
        raise InputError(f"{source}: {len(own_names)} classes but {len(counted)} class_names; give as many")
    batches = dataset.select_columns(list(dict.fromkeys(wanted))).with_format("arrow").iter(BLOCK)
    for row, fields in _batch_records(batches, wanted, source):
        if own_names:
            fields, number = list(fields), fields[label]
            # -1 marks a row without a label.
            if number is None or number < 0:
                fields[label] = None
            else:
                fields[label] = own_names[number] if counted is None else number + 1
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
        raise InputError(f"{folder}: a damaged data set ({reason(error)}); save it again") from error
    if isinstance(dataset, datasets.DatasetDict):
        splits = " or ".join(str(folder / name) for name in dataset)
        raise InputError(f"{folder}: holds splits; choose {splits}")
    return dataset


def hub_fingerprint(source: str) -> str:
    """Identifies what a data set of the Hub holds now, or in the local copy where the Hub can't be asked."""
    dataset = _load_from_hub(source)
    return f"{dataset._fingerprint} {dataset.info.version}"


def _load_from_hub(source: str) -> Any:
    import datasets

    # The split may be a slice such as train[:10%], with a colon of its own.
    name, *rest = re.split(r":(?![^\[]*\])", source.removeprefix(HUB))
    if not name or len(rest) > 2 or not all(rest):
        raise InputError(f"{source}: write hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    split = rest[-1] if rest else "train"
    config = rest[0] if len(rest) == 2 else None
    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:
        # A wrong name, configuration or split, no network, a gated set: each has a class of its own.
        raise InputError(
            f"{source}: not loaded ({reason(error)}); check name, configuration, split and network"
        ) from error
