"""The commands that are not training: list, encode, index, search, predict, inspect, measure, memory, reproduce."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, auto_cli
from tqdm import tqdm

import zoo
from datamodules.corpora.records import Column
from datamodules.corpora.table import read_table
from datamodules.errors import InputError
from datamodules.parts.memory import DEFAULT_RETRIEVER
from datamodules.retrieval import (
    FolderMemory,
    IndexMemory,
    Memory,
    Retriever,
    is_existing_index,
    load_all_retrievers,
    open_memory,
)
from datamodules.retrieval.embeddings import Embeddings
from datamodules.storage import new_file
from zoo import sharing
from zoo.cli.measure import measure
from zoo.cli.options import value_of
from zoo.cli.outputs import check_output
from zoo.cli.vectors import encode, for_embeddings
from zoo.inspection.command import inspect as inspect_model
from zoo.loading import known_model, load, option_names
from zoo.memory import commands as memory
from zoo.reproduce.command import reproduce
from zoo.tasks.checkpoint import read_checkpoint
from zoo.tasks.predictor import MOST_HITS, TextColumn, check_count


def run(command: str, options: list[str]) -> None:
    """Run a command whose function says all of its options."""
    load_all_retrievers()  # so that options can name them
    components: Any = {
        "list": list_models,
        "measure": measure,
        "encode": encode,
        "index": index,
        "search": search,
        "inspect": inspect_model,
        "reproduce": reproduce,
        "export": export_model,
        "memory": {"add": memory.add, "tune": memory.tune, "show": memory.show},
    }[command]
    # What a command is about reads best first, without an option's name.
    first = {"search": "--query", "reproduce": "--name"}.get(command)
    if first and options and not options[0].startswith("-"):
        options = [first, *options]
    options = ["--list=true" if option == "--list" else option for option in options]
    # These take their checkpoint, table or folder by place.
    positional = command in ("memory", "export")
    auto_cli(components, options, as_positional=positional, prog=f"zoo {command}", exit_on_error=False)


def list_models() -> None:
    """Show the models: name, task, paper, parameters, options."""
    for name, kind in zoo.list_models().items():
        required: dict[str, Any] = {"transformer": "..."} if "transformer" in _required(kind) else {}
        size = kind(**required).describe_size()
        print(f"{name}\n  task        {kind.task}\n  paper       {kind.paper}")
        print(f"  parameters  {size}\n  options     {', '.join(option_names(kind))}")


def _required(kind: type[Any]) -> list[str]:
    parameters = inspect.signature(kind.__init__).parameters.values()
    return [each.name for each in parameters if each.default is inspect.Parameter.empty]


def index(
    memory: str,
    file: str | None = None,
    embeddings: str | None = None,
    text_column: TextColumn = "text",
    label_column: Column | None = "label",
    id_column: Column | None = None,
    header: bool | None = None,
    retriever: Retriever = DEFAULT_RETRIEVER,
) -> None:
    """Build a memory: read a table, index its texts, keep both in a folder.

    Interrupted, run it again: a half-built memory is never taken for a whole one.

    Args:
        memory: folder to make.
        file: table of memories (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME).
        embeddings: in place of a table, the folder that `zoo encode` made of one: its rows are found by their vectors,
            exactly and without a server unless the retriever is another that compares vectors.
        text_column: name or number of the text, or several.
        label_column: name or number of the label; null for texts without labels.
        id_column: name or number of an id.
        header: whether a CSV file has a header line; null finds out.
        retriever: back end and ranking.
    """
    if not memory:
        raise InputError("--memory: names no folder; name one to make")
    if embeddings is not None and file is None:
        made = Embeddings.open(Path(embeddings))
        rows, retriever = made.rows, for_embeddings(retriever, made)
    elif file is not None and embeddings is None:
        rows = read_table(file, text_column, label_column, id_column, header)
    else:
        raise InputError("zoo index: name a table with --file, or what `zoo encode` made with --embeddings")
    built = FolderMemory.build(rows, retriever, Path(memory))
    labels = built.labels()
    print(f"{memory}: {len(built)} memories" + (f", {len(labels)} labels" if labels else ", no labels"))


def search(
    query: str,
    memory: str | None = None,
    k: int = 10,
    retriever: Retriever | None = None,
) -> None:
    """Print the best memories for some words.

    Args:
        query: the words.
        memory: a folder that `zoo index` built; not needed for an Elasticsearch index of your own.
        k: how many memories.
        retriever: null takes what the folder was built with; an ElasticsearchRetriever with an index
            searches that index.
    """
    check_count("k", k, MOST_HITS)
    if retriever is not None and is_existing_index(retriever):
        opened: Memory = IndexMemory(retriever)
    elif memory is not None:
        opened = open_memory(memory, retriever)
    else:
        raise InputError("zoo search: name a memory folder with --memory, or an index with --retriever.index")
    found = opened.search([query], k)
    if found.rows[0, 0] < 0:
        print("no memory shares a word with the query")
    for row, score in zip(found.rows[0].tolist(), found.scores[0].tolist(), strict=True):
        if row >= 0:
            label = found.memories.label(row)
            print(f"{score:8.3f}  {'' if label is None else f'[{label}] '}{found.memories.texts[row]}")


def export_model(ckpt_path: str, folder: str, push: str | None = None, private: bool = False) -> None:
    """Write a trained model as a folder that works alone on another machine: no pickle, a checksum for every file.

    Args:
        ckpt_path: a checkpoint that `zoo fit` wrote, or its run folder.
        folder: to make.
        push: name of a repository of the Hugging Face Hub, `user/name`, that the folder is uploaded to.
        private: make that repository one that only its owner sees.
    """
    made = sharing.export(ckpt_path, folder)
    print(f"{made}: {sum(file.stat().st_size for file in made.rglob('*') if file.is_file()) / 1e6:.1f} MB")
    if push is not None:
        print(sharing.push(made, push, private))


# --- predict ---


def run_predict(command: str, options: Sequence[str]) -> None:
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
