"""`zoo predict`: predictions of a trained model for a table, for lines of text, or for standard input."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from jsonargparse import ArgumentParser
from tqdm import tqdm

from datamodules.core.errors import InputError, check_count, visible
from datamodules.core.outputs import check_output
from datamodules.core.storage import new_file
from datamodules.core.types import PlainDict
from datamodules.corpora.trec_runs import is_run
from datamodules.retrieval import Retriever
from zoo.cli.options import import_retrievers, named_values
from zoo.saving.saved_model import SavedModel


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
    source, kind_options = dict(named_values(options)).get("--ckpt_path"), list[str]()
    model = None if source is None else SavedModel.open(source)
    if model is not None:
        kind_options = parser.add_method_arguments(
            model.kind.predictor_type, "records", as_positional=False, skip={"source", "batch_size"}
        )
    parsed = parser.instantiate_classes(parser.parse_args(list(options))).as_dict()
    assert model is not None  # the parser refuses a missing --ckpt_path
    of_kind = {name: parsed.pop(name) for name in kind_options}
    predict(**parsed, model=model, options=of_kind)


def predict(
    ckpt_path: str,
    input: str,
    model: SavedModel,
    options: PlainDict,
    output: str | None = None,
    memory: str | None = None,
    batch_size: int = 256,
    device: str = "cpu",
    retriever: Retriever | None = None,
    memory_version: int | None = None,
) -> None:
    """Predict with a trained model, and write predictions and their evidence as JSON lines.

    A classifier writes a text's label, probabilities and memories. A matching model writes the score of each pair of a
    table; or for single texts (a .txt file, -, or a table's text_column), each text's candidates from the memory,
    ranked. A retrieval model writes the best documents of its collection for each query.

    Args:
        ckpt_path: a run folder, a checkpoint, an exported folder or a name on the Hub.
        input: a table (CSV, TSV, JSONL, Parquet), a .txt file with one text per line, or - for standard input.
        output: the JSONL file, or of a model that ranks a TREC run (.run); null writes to standard output.
        memory: a memory folder to use instead of the model's (see `zoo index`).
        batch_size: rows that pass through the network together.
        device: cpu, cuda, cuda:1, ...
        retriever: back end to use instead of the model's.
        memory_version: of a memory that has grown (see `zoo memory add`); null uses the current version.
    """
    check_count("batch_size", batch_size)
    # Checked before hours of predictions, not after.
    path = None if output is None or output == "-" else check_output(output, [input, ckpt_path])
    if path is not None and path.suffix in (".csv", ".tsv", ".parquet", ".xlsx"):
        raise InputError(
            f"--output {output}: predictions are JSON lines; name it {path.with_suffix('.jsonl')}"
        )
    if path is not None and is_run(path):
        if "run_name" not in options:
            raise InputError(
                f"--output {output}: the model ranks no documents; name it {path.with_suffix('.jsonl')}"
            )
        options = {**options, "run_name": options["run_name"] or path.stem}
    predictor = model.predictor(memory, retriever, device, memory_version)
    records: Iterable[PlainDict | str] = predictor.records(input, batch_size, **options)
    with ExitStack() as stack:
        file = sys.stdout
        if path is not None:
            partial = stack.enter_context(new_file(path, "--output"))
            file = stack.enter_context(partial.open("w", encoding="utf-8"))
        for record in tqdm(records, desc="predicting", unit="text", delay=2, disable=None):
            file.write(_as_json(record, ckpt_path) + "\n")


def _as_json(record: PlainDict | str, source: str) -> str:
    if isinstance(record, str):
        return record
    try:
        return visible(json.dumps(record, ensure_ascii=False, allow_nan=False))
    except ValueError as error:
        raise InputError(
            f"{source}: its scores are not finite: its training diverged, or its weights are damaged; use another"
            " checkpoint"
        ) from error
