"""`zoo predict`: predictions of a trained model for a table, for lines of text, or for standard input."""

from __future__ import annotations

import csv
import inspect
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from operator import length_hint
from pathlib import Path
from typing import TextIO

from jsonargparse import ArgumentParser
from tqdm import tqdm

from datamodules.core.errors import InputError, check_count, visible
from datamodules.core.files import existing_file
from datamodules.core.outputs import check_output, spreadsheet_cells
from datamodules.core.shards import Parts, Shard, describe_missing
from datamodules.core.storage import contents_of, fingerprint_of, new_file
from datamodules.core.types import PlainDict
from datamodules.corpora.trec_runs import is_run
from datamodules.retrieval import POINTER, Retriever
from zoo.cli.options import import_retrievers, named_values
from zoo.loading import class_of, open_predictor
from zoo.model_folder.folder import ModelFolder

log = logging.getLogger("zoo")

#: Suffix of a table -> what separates its cells.
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
#: Suffixes of formats that are not written.
_OTHER_FORMATS = (".parquet", ".xlsx", ".xls", ".ods", ".gz", ".xz", ".bz2", ".zip")
#: The file of a shard's part.
_PREDICTIONS = "predictions"


def run(command: str, options: Sequence[str]) -> None:
    """Run `zoo predict`: it has options of its own, and those of the model's kind."""
    import_retrievers(options)
    parser = ArgumentParser(
        prog=f"zoo {command}",
        exit_on_error=False,
        description=inspect.getdoc(predict),
        epilog="With --ckpt_path, --help also shows the options of that model's kind.",
    )
    parser.add_function_arguments(predict, as_positional=False, skip={"model", "options"})
    given = dict(named_values(options))
    source, kind_options = given.get("--ckpt_path"), list[str]()
    # Before the model is read, which takes seconds.
    _check_files(given.get("--input"), given.get("--output"), source)
    if "--shard" in given:
        _check_shard(given["--shard"], given.get("--input"), given.get("--output"))
    model = None if source is None else ModelFolder.open(source)
    if model is not None:
        kind_options = parser.add_method_arguments(
            class_of(model).predictor_type,
            "records",
            as_positional=False,
            skip={"source", "batch_size", "shard"},
        )
        own = inspect.signature(predict).parameters.keys() - {"model", "options"}
        _check_names(options, [*own, *kind_options], f"{source}, a {model.meta.model}")
    parsed = parser.instantiate_classes(parser.parse_args(list(options))).as_dict()
    assert model is not None  # the parser refuses a missing --ckpt_path
    of_kind = {name: parsed.pop(name) for name in kind_options}
    predict(**parsed, model=model, options=of_kind)


def _check_names(options: Sequence[str], names: Sequence[str], model: str) -> None:
    """Refuse an option that the command does not have for this model, and suggest one with a similar name."""
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if option.startswith("--") and name.partition(".")[0].rstrip("+") not in [*names, "help"]:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean --{near[0]}?" if near else f"there are --{', --'.join(sorted(names))}"
            raise InputError(f"--{name}: no option for predictions of {model}; {hint}")


def _check_files(input: str | None, output: str | None, model: str | None) -> None:
    """Refuse an input that does not exist, and an output that can't be written."""
    if input is not None and input != "-" and not input.startswith("hub:"):
        path = Path(input)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):  # in a .zip
            existing_file(path)
    if output is None or output == "-":
        return
    path = check_output(output, [name for name in (input, model) if name is not None])
    if path.suffix.lower() in _OTHER_FORMATS:
        names = " or ".join(str(path.with_suffix(suffix)) for suffix in (".jsonl", ".csv"))
        raise InputError(f"--output {output}: predictions are JSON lines, CSV or TSV; name it {names}")


def _check_shard(shard: str, input: str | None, output: str | None) -> None:
    """Refuse an option --shard that is wrong, or that can't be followed."""
    Shard.parse(shard)
    if input == "-":
        raise InputError("--shard: standard input can't be cut into shards; give a file")
    if output is None or output == "-":
        raise InputError("--shard: the parts are kept next to a file; name it with --output")


def predict(
    ckpt_path: str,
    input: str,
    model: ModelFolder,
    options: PlainDict,
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
        output: a file, whose name chooses the format: a table (.csv, .tsv), a TREC run of a model that ranks (.run,
            .trec), else JSON lines; null writes these to standard output.
        memory: a memory folder to use instead of the model's (see `zoo index`).
        batch_size: rows that pass through the network together.
        device: cpu, cuda, cuda:1, ...
        retriever: back end to use instead of the model's.
        memory_version: of a memory that has grown (see `zoo memory add`); null uses the current version.
        shard: predict one of several parts of the table, such as 3/16, or auto: the part of this process of torchrun,
            of a SLURM array or of srun. Parts are kept next to the output; the last shard merges them, and a shard
            that was killed is started again. The result is the same to the bit as without this option.
    """
    check_count("batch_size", batch_size)
    path = None if output is None or output == "-" else Path(output)
    separator = None if path is None else _SEPARATORS.get(path.suffix.lower())
    if path is not None and is_run(path):
        if "run_name" not in options:
            raise InputError(
                f"--output {output}: the model ranks no documents; name it {path.with_suffix('.jsonl')}"
            )
        options = {**options, "run_name": options["run_name"] or path.stem}
    kind = class_of(model).predictor_type
    if separator is not None:
        defaults = kind.table_options
        options = {name: defaults.get(name) if value is None else value for name, value in options.items()}

    def write(file: TextIO, **part: Shard) -> str:
        """Write predictions, and return a line about them."""
        started = time.monotonic()
        predictor = open_predictor(model, memory, retriever, device, memory_version)
        records: Iterable[PlainDict | str] = predictor.records(input, batch_size, **options, **part)
        # Lines on the terminal would be mixed with the bar.
        is_hidden = True if path is None and sys.stdout.isatty() else None
        total = length_hint(records) or None
        written = _Written(file, separator, predictor.table_rows)
        for record in tqdm(records, "predicting", total, leave=False, unit=" predictions", disable=is_hidden):
            written.add(record, ckpt_path)
        abstained = "" if options.get("max_error") is None else f", {written.abstained:,} of them abstained"
        return f"{written.count:,} predictions in {time.monotonic() - started:.1f} s{abstained}"

    if path is None:
        log.info("%s", write(sys.stdout))
    elif shard is None:
        with new_file(path, "--output") as partial, _new_text(partial) as file:
            line = write(file)
        log.info("%s: %s", line, path)
    else:
        if "shard" not in inspect.signature(kind.records).parameters:
            raise InputError(
                f"--shard: predictions of a {model.meta.model} are not cut into shards; omit the option"
            )
        from datamodules.preparation import contents_of_files  # which imports PyTorch

        described = {
            "input": contents_of_files(input),
            **_describe_model(model, memory, memory_version, retriever),
            "options": {name: [value, contents_of_files(value)] for name, value in options.items()},
            "batch_size": batch_size,
            "separator": separator,
        }
        _predict_shard(Shard.parse(shard), path, write, fingerprint_of(described), separator is not None)


def _new_text(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="")


def _predict_shard(
    shard: Shard, path: Path, write: Callable[..., str], fingerprint: str, has_header: bool
) -> None:
    """Write the predictions of one shard; the last one merges all."""

    def save(part: Path) -> None:
        with _new_text(part / _PREDICTIONS) as file:
            line = write(file, shard=shard)
        log.info("%s: shard %s of %s", line, shard, path)

    missing = Parts(path, shard, fingerprint).run(save, lambda parts: _merge(path, parts, has_header))
    line = describe_missing(shard, missing) if missing else "has the predictions of all shards"
    log.info("%s: %s", path, line)


def _describe_model(
    model: ModelFolder, memory: str | None, version: int | None, retriever: Retriever | None
) -> PlainDict:
    """Return plain values that identify the weights of a model and its memory."""
    return {
        "model": contents_of(model.path / "manifest.json"),
        "state": contents_of(model.state_file),
        "version": version,
        "memory": None if memory is None else contents_of(Path(memory) / POINTER),
        "retriever": None if retriever is None else retriever.describe(),
    }


def _merge(path: Path, parts: Sequence[Path], has_header: bool) -> None:
    """Concatenate the predictions of all shards; of tables, with one row of column names."""
    first = b""
    with new_file(path, "--output") as partial, partial.open("wb") as merged:
        for part in parts:
            with (part / _PREDICTIONS).open("rb") as file:
                header = file.readline() if has_header else b""
                if first and header not in (b"", first):
                    raise InputError(f"--output {path}: the shards have different columns; name it .jsonl")
                merged.write(b"" if first else header)
                first = first or header
                shutil.copyfileobj(file, merged)


class _Written:
    """Writes predictions as lines of JSON or, with a separator, as rows of a table; counts them."""

    def __init__(
        self, file: TextIO, separator: str | None, rows_of: Callable[[PlainDict], Iterator[PlainDict]]
    ) -> None:
        self.file, self.rows_of = file, rows_of
        self.table = None if separator is None else csv.writer(file, delimiter=separator)
        #: of the table, after its first row.
        self.columns: list[str] = []
        self.count = self.abstained = 0

    def add(self, record: PlainDict | str, source: str) -> None:
        """Write a prediction of the model `source`."""
        self.count += 1
        if isinstance(record, str):
            if self.table is not None:
                raise InputError(
                    "--output: lines of a TREC run are no table; name it .run, or omit --run_name"
                )
            self.file.write(record + "\n")
            return
        self.abstained += bool(record.get("abstained"))
        try:
            line = visible(json.dumps(record, ensure_ascii=False, allow_nan=False))
        except ValueError as error:
            raise InputError(
                f"{source}: its scores are not finite: its training diverged, or its weights are damaged; use another"
                " checkpoint"
            ) from error
        if self.table is None:
            self.file.write(line + "\n")
            return
        for row in self.rows_of(record):
            if not self.columns:
                self.columns = list(row)
                self.table.writerow(self.columns)
            self.table.writerow(spreadsheet_cells(row.get(name) for name in self.columns))
