"""The commands that are not training: list, index, search, predict, memory, reproduce."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from tqdm import tqdm

import zoo
from datamodules.batch import ClassificationSpec, MatchingSpec
from datamodules.classification import DEFAULT_RETRIEVER
from datamodules.corpora.pairs import Pairs, read_pairs
from datamodules.corpora.table import Column, read_table
from datamodules.errors import InputError
from datamodules.retrieval import FolderMemory, IndexMemory, Memory, Retriever, open_memory
from datamodules.retrieval.memory import is_existing_index
from datamodules.storage import new_file
from zoo import reproduce
from zoo.inference import BLOCK, Predictor, load
from zoo.matching import MatchingPredictor
from zoo.memory_commands import SUBCOMMANDS


def _parse(
    command: str, function: Callable[..., None], options: Sequence[str], positional: bool = False
) -> None:
    parser = ArgumentParser(prog=f"zoo {command}", description=inspect.getdoc(function), exit_on_error=False)
    parser.add_function_arguments(function, as_positional=positional)
    if command == "search":
        # The query reads best first, without an option's name.
        options = ["--query", *options] if options and not options[0].startswith("-") else options
    parsed = parser.instantiate_classes(parser.parse_args(list(options)))
    function(**parsed.as_dict())


def list_models() -> None:
    """Show the models: name, task, paper, parameters, options."""
    # Sizes depend on the data: this is the data that the numbers are printed for.
    classes = ["a", "b", "c", "d"]
    examples = {
        "classification": (
            ClassificationSpec(10_000, num_chars=100, labels=classes, memory_labels=classes, num_memories=5),
            "10,000 words and 4 classes",
        ),
        "matching": (
            MatchingSpec(10_000, num_chars=100, goal="ranking", first_length=32, second_length=64),
            "10,000 words",
        ),
    }
    for name, model in zoo.list_models().items():
        spec, data = examples[model.task]
        options = inspect.signature(model).parameters
        if "transformer" in options and options["transformer"].default is inspect.Parameter.empty:
            size = "the transformer's, and a layer's over it"
        else:
            network = model().build_network(spec, None, None)  # type: ignore[call-arg]
            parameters = sum(parameter.numel() for parameter in network.parameters())
            size = f"{parameters:,} by default, with {data}"
        print(f"{name}\n  task        {model.task}\n  paper       {model.paper}")
        print(f"  parameters  {size}\n  options     {', '.join(options)}")


def index(
    file: str,
    memory: str,
    text_column: Column | list[Column] = "text",
    label_column: Column | None = "label",
    id_column: Column | None = None,
    header: bool | None = None,
    retriever: Retriever = DEFAULT_RETRIEVER,
) -> None:
    """Build a memory: read a table, index its texts, keep both in a folder.

    Interrupted, run it again: a half-built memory is never taken for a whole one.

    Args:
        file: table of memories (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME).
        memory: folder to make.
        text_column: name or number of the text, or several.
        label_column: name or number of the label; null for texts without labels.
        id_column: name or number of an id.
        header: whether a CSV file has a header line; null finds out.
        retriever: back end and ranking.
    """
    rows = read_table(file, text_column, label_column, id_column, header)
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
    if k < 1:
        raise InputError(f"--k {k}: must be 1 or more")
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


def predict(
    ckpt_path: str,
    input: str,
    output: str | None = None,
    memory: str | None = None,
    text_column: Column | list[Column] | None = None,
    first_column: Column | None = None,
    second_column: Column | None = None,
    candidates: int = 20,
    batch_size: int = 256,
    device: str = "cpu",
    retriever: Retriever | None = None,
    memory_version: int | None = None,
) -> None:
    """Predict with a trained model and write what it says, with the evidence, as JSON lines.

    A classifier writes a text's label, probabilities and memories. A matching model writes the score of each
    pair of a table; or of texts alone (a .txt file, -, or a table's text_column), each with candidates from the
    memory, ranked.

    Args:
        ckpt_path: a checkpoint that `zoo fit` wrote.
        input: a table (CSV, TSV, JSONL, Parquet), a .txt file with one text a line, or - for such lines
            from standard input.
        output: the JSONL file; null writes to standard output.
        memory: a memory folder to use instead of the checkpoint's (see `zoo index`); a matching model finds
            candidates there.
        text_column: the table's text column or columns; null: as in training, or where a model matches pairs,
            pairs.
        first_column: a pair's first text; null: as in training.
        second_column: a pair's second text; null: as in training.
        candidates: how many the memory is asked for.
        batch_size: texts or pairs that go through the network together.
        device: cpu, cuda, cuda:1, ...
        retriever: back end to use instead of the checkpoint's.
        memory_version: of a memory that has grown (see `zoo memory add`); null uses the current version.
    """
    for name, value in (("batch_size", batch_size), ("candidates", candidates)):
        if value < 1:
            raise InputError(f"--{name} {value}: must be 1 or more")
    predictor = load(
        ckpt_path, memory=memory, retriever=retriever, device=device, memory_version=memory_version
    )
    if isinstance(predictor, Predictor):
        options = predictor.data.options
        as_trained = (options["text_column"], options["header"])
        columns = as_trained if text_column is None else (text_column, None)
        records = _labels(predictor, _texts(input, *columns), batch_size)
    elif text_column is not None or input == "-" or input.endswith(".txt"):
        records = _answers(predictor, _texts(input, text_column or "text"), candidates, batch_size)
    else:
        if first_column is None and second_column is None:
            pairs = predictor.data.read_unlabelled(input)
        else:
            options = predictor.data.options
            pairs = read_pairs(
                input,
                options["first_column"] if first_column is None else first_column,
                options["second_column"] if second_column is None else second_column,
            )
        records = _scores(predictor, pairs, batch_size)
    with ExitStack() as stack:
        file = sys.stdout
        if output is not None and output != "-":
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            partial = stack.enter_context(new_file(Path(output)))
            file = stack.enter_context(partial.open("w", encoding="utf-8"))
        for record in tqdm(records, desc="predicting", unit="text", delay=2, disable=None):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _labels(predictor: Predictor, texts: Iterator[str], batch_size: int) -> Iterator[dict[str, Any]]:
    while block := list(islice(texts, BLOCK)):
        for prediction in predictor.predict(block, batch_size):
            memories = [memory._asdict() for memory in prediction.memories]
            yield {**prediction._asdict(), "memories": memories}


def _scores(predictor: MatchingPredictor, pairs: Pairs, batch_size: int) -> Iterator[dict[str, Any]]:
    for start in range(0, len(pairs), BLOCK):
        rows = slice(start, start + BLOCK)
        block = [
            (pairs.first.texts[int(first)], pairs.second.texts[int(second)])
            for first, second in zip(pairs.first_row[rows], pairs.second_row[rows], strict=True)
        ]
        names = zip(pairs.ids[rows].to_pylist(), pairs.question[rows].tolist(), strict=True)
        for (name, question), prediction in zip(names, predictor.score(block, batch_size), strict=True):
            known = {"id": name, "question": pairs.question_ids[question].as_py()}
            yield {**known, **prediction._asdict(), "words": [pair._asdict() for pair in prediction.words]}


def _answers(
    predictor: MatchingPredictor, questions: Iterator[str], candidates: int, batch_size: int
) -> Iterator[dict[str, Any]]:
    while block := list(islice(questions, BLOCK)):
        for question, found in zip(block, predictor.answer(block, candidates, batch_size), strict=True):
            ranked = [
                {**candidate._asdict(), "words": [pair._asdict() for pair in candidate.words]}
                for candidate in found
            ]
            yield {"text": question, "candidates": ranked}


def memory_group(options: Sequence[str]) -> None:
    """Run `zoo memory SUBCOMMAND ...`."""
    names = "|".join(SUBCOMMANDS)
    if not options or options[0] in ("-h", "--help"):
        print(f"usage: zoo memory {names} CHECKPOINT ... (see `zoo memory SUBCOMMAND --help`)")
        return
    if options[0] not in SUBCOMMANDS:
        raise InputError(f"zoo memory {options[0]}: no such command; there are {', '.join(SUBCOMMANDS)}")
    _parse(f"memory {options[0]}", SUBCOMMANDS[options[0]], options[1:], positional=True)


def _texts(source: str, text_column: Column | list[Column], header: bool | None = None) -> Iterator[str]:
    if source == "-":
        yield from (line.rstrip("\r\n") for line in sys.stdin)
    elif source.endswith(".txt"):
        try:
            with open(source, encoding="utf-8") as file:
                yield from (line.rstrip("\r\n") for line in file)
        except FileNotFoundError as error:
            raise InputError(f"{source}: no such file") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{source}: not UTF-8; convert it") from error
    else:
        yield from read_table(source, text_column=text_column, label_column=None, header=header).texts


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    name: (lambda options, name=name, function=function: _parse(name, function, options))  # type: ignore[misc]
    for name, function in {"predict": predict, "list": list_models, "index": index, "search": search}.items()
}
COMMANDS["reproduce"] = reproduce.command
COMMANDS["memory"] = memory_group
