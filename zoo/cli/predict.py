"""`zoo predict`: what a trained model says of a table, of lines of text, or of standard input."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from jsonargparse import ArgumentParser
from tqdm import tqdm

from datamodules.core.errors import InputError, check_count
from datamodules.core.storage import new_file
from datamodules.retrieval import Retriever, load_all_retrievers
from zoo.cli.options import value_of
from zoo.cli.outputs import check_output
from zoo.saving.checkpoint import read_checkpoint
from zoo.saving.loading import known_model, load


def run(command: str, options: Sequence[str]) -> None:
    """Run `zoo predict`: beside its own options it has those of the checkpoint's kind of model."""
    load_all_retrievers()
    parser = ArgumentParser(
        prog="zoo predict",
        exit_on_error=False,
        description=inspect.getdoc(predict),
        epilog="With --ckpt_path, --help shows the options of that checkpoint's kind of model as well.",
    )
    parser.add_function_arguments(predict, as_positional=False, skip={"options"})
    own: list[str] = []
    if (checkpoint := value_of("--ckpt_path", options)) is not None:
        kind = known_model(read_checkpoint(checkpoint), checkpoint)
        skipped = {"source", "batch_size"}
        own = parser.add_method_arguments(kind.predictor_type, "records", as_positional=False, skip=skipped)
    parsed = parser.instantiate_classes(parser.parse_args(list(options))).as_dict()
    kinds = {name: parsed.pop(name) for name in own}
    predict(**parsed, options=kinds)


def predict(
    ckpt_path: str,
    input: str,
    output: str | None = None,
    memory: str | None = None,
    batch_size: int = 256,
    device: str = "cpu",
    retriever: Retriever | None = None,
    memory_version: int | None = None,
    options: dict[str, Any] | None = None,
) -> None:
    """Predict with a trained model and write what it says, with the evidence, as JSON lines.

    A classifier writes a text's label, probabilities and memories. A matching model writes the score of each
    pair of a table; or of texts alone (a .txt file, -, or a table's text_column), each with candidates from the
    memory, ranked. A retrieval model writes the best documents of its collection for each query.

    Args:
        ckpt_path: a checkpoint that `zoo fit` wrote.
        input: a table (CSV, TSV, JSONL, Parquet), a .txt file with one text a line, or - for such lines
            from standard input.
        output: the JSONL file; null writes to standard output.
        memory: a memory folder to use instead of the checkpoint's (see `zoo index`); a matching model finds
            candidates there.
        batch_size: rows that go through the network together.
        device: cpu, cuda, cuda:1, ...
        retriever: back end to use instead of the checkpoint's.
        memory_version: of a memory that has grown (see `zoo memory add`); null uses the current version.
        options: of the checkpoint's kind of predictor, see its `records`.
    """
    check_count("batch_size", batch_size)
    # Before hours of predictions, not after.
    path = None if output is None or output == "-" else check_output(output, [input, ckpt_path])
    if path is not None and path.suffix in (".csv", ".tsv", ".parquet", ".xlsx"):
        raise InputError(
            f"--output {output}: predictions are JSON lines; name it {path.with_suffix('.jsonl')}"
        )
    predictor = load(ckpt_path, memory, retriever, device, memory_version)
    records = predictor.records(input, batch_size, **(options or {}))
    with ExitStack() as stack:
        file = sys.stdout
        if path is not None:
            partial = stack.enter_context(new_file(path))
            file = stack.enter_context(partial.open("w", encoding="utf-8"))
        for record in tqdm(records, desc="predicting", unit="text", delay=2, disable=None):
            line = record if isinstance(record, str) else _as_json(record, ckpt_path)
            file.write(line + "\n")


def _as_json(record: dict[str, Any], checkpoint: str) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InputError(
            f"{checkpoint}: predicts what is no finite number: its training diverged, or its weights are damaged;"
            " use another checkpoint"
        ) from error
