"""`zoo predict`: predictions of a trained model for a table, for lines of text, or for standard input."""

from __future__ import annotations

import csv
import inspect
import io
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from heapq import nlargest
from operator import itemgetter, length_hint
from pathlib import Path
from typing import TextIO

from datamodules.core.errors import InputError, check_count, excerpt, suggestion
from datamodules.core.files import existing_file
from datamodules.core.outputs import check_output, json_line, spreadsheet_cells
from datamodules.core.progress import progress_bar
from datamodules.core.shards import WHOLE, Shard
from datamodules.core.storage import new_file
from datamodules.core.types import PlainDict
from datamodules.corpora.trec_runs import is_run
from datamodules.retrieval import Retriever
from zoo.cli.commands import import_retrievers, named_values
from zoo.loading import load
from zoo.model_folder.folder import ModelFolder
from zoo.registry import model_class
from zoo.runs.parser import Parser

log = logging.getLogger("zoo")

#: Suffix of a table -> what separates its cells.
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
#: Suffixes of formats that are not written.
_OTHER_FORMATS = (".parquet", ".xlsx", ".xls", ".ods", ".gz", ".xz", ".bz2", ".zip")
#: Number of memories of a prediction, and of characters of a text, on a terminal.
_SHOWN, _EXCERPT = 3, 80


def run(command: str, options: Sequence[str], /) -> None:
    """Run `zoo predict`: it has options of its own, and those of the model's kind."""
    import_retrievers(options)
    parser = Parser(
        prog=f"zoo {command}",
        description=inspect.getdoc(predict),
        epilog="With --ckpt_path, --help also shows the options of that model's kind.",
    )
    parser.add_function_arguments(predict, as_positional=False, skip={"model", "options"})
    given = dict(named_values(options))
    if (source := given.get("--ckpt_path")) is None:
        parser.parse_args(list(options))  # which shows the help, or refuses them
        return
    # Before the model is read, which takes seconds.
    shows_help = not {"-h", "--help"}.isdisjoint(options)
    if not shows_help and ("--input" in given) == ("--text" in given):
        raise InputError("zoo predict: name a file with --input, or give a text with --text")
    if not given.get("--text", "text").strip():
        raise InputError("--text: is empty; give some words")
    _check_files(given)
    model = ModelFolder.open(source)
    kind, own = model_class(model.meta.model).predictor_type, {*inspect.signature(predict).parameters}
    kind_options = parser.add_method_arguments(
        kind, "records", as_positional=False, skip={"source", "batch_size", "shard"}
    )
    _check_names(options, [*own - {"model", "options"}, *kind_options], f"{source}, a {model.meta.model}")
    parsed = parser.instantiate(parser.parse_args(list(options))).as_dict()
    of_kind = {name: parsed.pop(name) for name in kind_options}
    predict(**parsed, model=model, options=of_kind)


def _check_names(options: Sequence[str], names: Sequence[str], model: str) -> None:
    """Refuse an option that the command does not have for this model, and suggest one with a similar name."""
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if option.startswith("--") and name.partition(".")[0].rstrip("+") not in [*names, "help"]:
            hint = suggestion(name, sorted(names), "--")
            raise InputError(f"--{name}: no option for predictions of {model}; {hint}")


def _check_files(given: Mapping[str, str]) -> None:
    """Refuse an input that is missing or can't be cut, and an output of another format, or that can't be written."""
    input, output = given.get("--input", "-"), given.get("--output", "-")
    if (shard := given.get("--shard")) is not None:
        Shard.parse(shard)
        if input == "-":
            raise InputError("--shard: standard input and a text can't be cut into shards; give a file")
    path = Path(input)
    is_in_zip = any(parent.is_file() for parent in path.parents)
    if not (input == "-" or input.startswith("hub:") or path.exists() or is_in_zip):
        existing_file(path)
    if output == "-":
        return
    path = check_output(output, filter(None, (given.get("--input"), given["--ckpt_path"])))
    if path.suffix.lower() in _OTHER_FORMATS:
        names = " or ".join(str(path.with_suffix(suffix)) for suffix in (".jsonl", ".csv"))
        raise InputError(f"--output {output}: predictions are JSON lines, CSV or TSV; name it {names}")


def predict(
    ckpt_path: str,
    model: ModelFolder,
    options: PlainDict,
    input: str = "-",
    text: str | None = None,
    output: str | None = None,
    memory: str | None = None,
    batch_size: int = 256,
    device: str = "cpu",
    retriever: Retriever | None = None,
    memory_version: int | None = None,
    shard: str | None = None,
) -> None:
    """Predict with a trained model, and write predictions and their evidence as JSON lines, or a table without it.

    A classifier writes a text's label, probabilities and memories. A matching model writes the score of each pair of a
    table; or for single texts (a .txt file, -, or a table's text_column), each text's candidates from the memory,
    ranked. A retrieval model writes the best documents of its collection for each query.

    Args:
        ckpt_path: a run folder, a model folder or a name on the Hub or in W&B.
        input: a table (CSV, TSV, JSONL, Parquet), a .txt file with one text per line, or - for standard input.
        text: a text, in place of `input`.
        output: a file, whose name chooses the format: a table (.csv, .tsv), a TREC run of a model that ranks (.run,
            .trec), else JSON lines; - writes these to standard output, and so does null, except for a terminal, which
            shows short excerpts.
        memory: a memory folder to use instead of the model's (see `zoo index`).
        batch_size: rows that pass through the network together.
        device: cpu, cuda, cuda:1, ...
        retriever: back end to use instead of the model's.
        memory_version: of a memory that has grown (see `zoo memory add`); null uses the current version.
        shard: predict one of several parts of the table, such as 3/16, into a file such as OUTPUT.03-of-16; the files
            of all shards, one after the other (`cat OUTPUT.*-of-16`), have the bytes of one process.
    """
    check_count("batch_size", batch_size)
    path = None if output is None or output == "-" else Path(output)
    separator = None if path is None else _SEPARATORS.get(path.suffix.lower())
    kind = model_class(model.meta.model).predictor_type
    if path is not None and is_run(path):
        if "run_name" not in options:
            raise InputError(
                f"--output {output}: the model ranks no documents; name it {path.with_suffix('.jsonl')}"
            )
        options = {**options, "run_name": options["run_name"] or path.stem}
    if separator is not None:
        if options.get("run_name") is not None:
            raise InputError("--output: lines of a TREC run are no table; name it .run, or omit --run_name")
        defaults = kind.table_options
        options = {name: defaults.get(name) if value is None else value for name, value in options.items()}
    part = WHOLE if shard is None else Shard.parse(shard)
    if shard is not None:
        if "shard" not in inspect.signature(kind.records).parameters:
            raise InputError(f"--shard: predictions of a {model.meta.model} have no shards; omit it")
        options, path = {**options, "shard": part}, path and part.part_of(path)

    with ExitStack() as stack:
        file: TextIO = sys.stdout
        if path is not None:
            partial = stack.enter_context(new_file(path, "--output"))
            file = stack.enter_context(partial.open("w", encoding="utf-8", newline=""))
        if text is not None:
            stack.callback(setattr, sys, "stdin", sys.stdin)
            sys.stdin = io.StringIO(" ".join(text.splitlines()) + "\n")
        is_terminal = path is None and sys.stdout.isatty()
        started = time.monotonic()
        predictor = load(model, memory, retriever, device, memory_version)
        records: Iterable[PlainDict | str] = predictor.records(input, batch_size, **options)
        # Lines on the terminal would be mixed with the bar.
        total = length_hint(records) or None
        bar = progress_bar(records, "predicting", total, " predictions", is_terminal, leave=False)
        rows_of = None if separator is None else predictor.table_rows
        count, abstained = _write(
            bar, file, ckpt_path, separator or ",", rows_of, part.number == 1, is_terminal and output is None
        )
    refused = f", {abstained:,} of them abstained" if abstained else ""
    place = "" if path is None else f": {path}"
    log.info("%s predictions in %.1f s%s%s", f"{count:,}", time.monotonic() - started, refused, place)


def _write(
    records: Iterable[PlainDict | str],
    file: TextIO,
    source: str,
    separator: str,
    rows_of: Callable[[PlainDict], Iterator[PlainDict]] | None,
    has_header: bool,
    shows_excerpts: bool,
) -> tuple[int, int]:
    """Write predictions as lines or, by `rows_of`, as rows of a table; return the number of all, and of abstentions."""
    count = abstained = empty = 0
    table, columns = csv.writer(file, delimiter=separator), list[str]()
    for record in records:
        count += 1
        if isinstance(record, str):
            file.write(record + "\n")
            continue
        abstained += bool(record.get("reason"))
        empty += "text" in record and not record["text"].strip()
        line = json_line(record, source)
        if rows_of is None:
            file.write((_excerpts(record) if shows_excerpts else line) + "\n")
            continue
        for row in rows_of(record):
            if not columns:
                columns = list(row)
                if has_header:
                    table.writerow(columns)
            table.writerow(spreadsheet_cells(row.get(name) for name in columns))
    if empty:
        log.warning("%s texts are empty: their predictions are those without any word", f"{empty:,}")
    return count, abstained


def _excerpts(record: PlainDict) -> str:
    """Return a prediction for a terminal: its values, and its heaviest memories, or the texts that it ranks."""
    cells, lines, texts = list[str](), list[str](), list[str]()
    for name, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            is_memory = "weight" in value[0]
            best = nlargest(_SHOWN, value, key=itemgetter("weight")) if is_memory else value
            lines += [f"    {_excerpts(item)}" for item in best]
        elif isinstance(value, float):
            cells.append(f"{name} {value:.3f}")
        elif isinstance(value, list):
            cells.append(f"{name} {excerpt(', '.join(map(str, value)), _EXCERPT)}")
        elif isinstance(value, str | int) and value is not False:
            texts_or_cells = texts if name in ("text", "query") else cells
            texts_or_cells.append(name if value is True else excerpt(value, _EXCERPT))
    return "\n".join(["  ".join(cells + texts), *lines])
