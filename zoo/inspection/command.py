"""`zoo inspect`: what a trained LSTM-RNN does inside, on any text, as pictures and tables."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.core.errors import InputError, check_count
from datamodules.core.storage import named_disk_errors, new_file, write_json
from datamodules.corpora.records import TextColumn
from zoo.inspection.figures import draw_active, draw_maps
from zoo.inspection.keywords import DIRECTIONS, Keywords, Rules, allocate_topics, find_keywords, words_by_cell
from zoo.saving.loading import load
from zoo.tasks.predictor import BLOCK, Predictor, texts_in

#: A table: names of its columns, and its lines.
Lines = tuple[list[str], list[list[Any]]]


class Inspected(NamedTuple):
    """What one model does with one text."""

    checkpoint: str
    #: `query` or `document`.
    side: str
    found: Keywords


def inspect(
    ckpt_path: str,
    output: str,
    query: str | None = None,
    document: str | None = None,
    queries: str | None = None,
    beside: list[str] | None = None,
    text_column: TextColumn = "text",
    top: int = 10,
    change: float = 0.2,
    share: float = 0.4,
    topic_cells: int = 5,
    texts: int = 10_000,
    device: str = "cpu",
    wandb_project: str | None = None,
) -> None:
    """Show gates, cells and keywords of a query and a document, and the topics of cells over many queries.

    Of a query and of a document: `query_maps.png` (gates, cells and embedding over the words), `query_active.png` (its
    most active cells), and their words in `keywords.csv`. Over many queries: `topics.csv` (the keywords that each
    query's most active cells pick out) and `topics_by_cell.csv`. All numbers are in `inspection.json`.

    Args:
        ckpt_path: a checkpoint of an LSTMRNN.
        output: folder for the files.
        query: a query; read by the encoder of queries.
        document: a document; read by the encoder of documents. With a query, their cosine is told as well.
        queries: many queries: a table (CSV, TSV, JSONL, Parquet) or a .txt file with one a line.
        beside: further checkpoints whose keywords stand in the same table, such as one of a network without gates.
        text_column: name or number of the queries' text, in a table.
        top: most active cells of a text that are looked at.
        change: a cell changes strongly at a word if it changes by more than this share of its last value.
        share: of the most active cells, the share that a keyword needs more than.
        topic_cells: most active cells of a query that its keywords are allocated to.
        texts: how many of the queries are read.
        device: cpu, cuda, cuda:1, ...
        wandb_project: log tables and pictures to this project of Weights & Biases; WANDB_MODE=offline needs no account.
    """
    rules = Rules(top, change, share, topic_cells)
    check_count("texts", texts)
    if query is None and document is None and queries is None:
        raise InputError("zoo inspect: give --query, --document or --queries")
    if query is None and document is None and beside:
        raise InputError("--beside: compares keywords; give --query or --document")
    folder = Path(output)
    with named_disk_errors(folder, "--output"):
        folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Lines] = {}
    result: dict[str, Any] = {"checkpoint": ckpt_path, "rules": vars(rules)}
    pictures: list[Path] = []
    predictors = {name: load(name, device=device) for name in [ckpt_path, *(beside or [])]}
    if query is not None or document is not None:
        inspected = list(_read(predictors, query, document, rules))
        tables["keywords"] = _keyword_lines(inspected)
        result["texts"] = [_as_plain(one) for one in inspected]
        if query is not None and document is not None:
            result["relevance"] = {
                name: _relevance(predictor, query, document) for name, predictor in predictors.items()
            }
        for one in inspected:
            if one.checkpoint == ckpt_path and one.found.text.words:
                pictures += _draw(one, folder)
    if queries is not None:
        many = islice(texts_in(queries, {"text_column": text_column}), texts)
        more, result["topics"] = _topics(predictors[ckpt_path], many, rules)
        tables |= more
    write_json(folder / "inspection.json", result)
    for name, table in tables.items():
        _write_csv(folder / f"{name}.csv", table)
    _print(tables, result)
    if wandb_project is not None:
        _log(wandb_project, folder, tables, pictures)


def _read(
    predictors: dict[str, Predictor], query: str | None, document: str | None, rules: Rules
) -> Iterator[Inspected]:
    for checkpoint, predictor in predictors.items():
        for side, text in (("query", query), ("document", document)):
            if text is not None:
                (trace,) = predictor.trace([text], queries=side == "query")
                yield Inspected(checkpoint, side, find_keywords(trace, rules))


def _topics(
    predictor: Predictor, texts: Iterator[str], rules: Rules
) -> tuple[dict[str, Lines], dict[str, dict[str, int]]]:
    """Tables of what cells pick out of many queries, and the same as cell -> word -> queries."""
    topics = list(allocate_topics((find_keywords(text, rules) for text in _traces(predictor, texts)), rules))
    by_cell = words_by_cell(topics)
    tables: dict[str, Lines] = {
        "topics": (
            ["query", "cell", "keywords"],
            [[topic.text, topic.cell, ", ".join(topic.words)] for topic in topics],
        ),
        "topics_by_cell": (
            ["cell", "keyword", "queries"],
            [[cell, word, number] for cell, words in by_cell.items() for word, number in words],
        ),
    }
    return tables, {str(cell): dict(words) for cell, words in by_cell.items()}


def _traces(predictor: Predictor, texts: Iterator[str]) -> Iterator[Any]:
    while block := list(islice(texts, BLOCK)):
        yield from predictor.trace(block, queries=True)


def _relevance(predictor: Predictor, query: str, document: str) -> float:
    """The cosine of a query and a document."""
    return float(predictor.encode_queries([query])[0] @ predictor.encode([document])[0])


def _keyword_lines(inspected: Sequence[Inspected]) -> Lines:
    """A line for each word: how many of the most active cells it is credited with (Tables I, II, V to X)."""
    columns = ["checkpoint", "side", "position", "word", *DIRECTIONS, "keyword"]
    lines = []
    for checkpoint, side, found in inspected:
        for place, word in enumerate(found.text.words):
            counts: list[int | None] = [activity.counts[place] for activity in found.activities]
            counts += [None] * (len(DIRECTIONS) - len(counts))
            lines.append([checkpoint, side, place + 1, word, *counts, int(found.is_keyword[place])])
    return columns, lines


def _as_plain(one: Inspected) -> dict[str, Any]:
    text = one.found.text
    return {
        "checkpoint": one.checkpoint,
        "side": one.side,
        "text": text.text,
        "words": text.words,
        "keywords": [word for word, is_one in zip(text.words, one.found.is_keyword, strict=True) if is_one],
        "directions": [
            {
                "reads": activity.reads,
                "cells": activity.cells.tolist(),
                "counts": activity.counts,
                "values": activity.values.tolist(),
            }
            for activity in one.found.activities
        ],
        "parts": {name: values.tolist() for name, values in text.parts.items()},
    }


def _draw(one: Inspected, folder: Path) -> list[Path]:
    maps, active = (folder / f"{one.side}_{kind}.png" for kind in ("maps", "active"))
    draw_maps(one.found.text, maps)
    draw_active(one.found, active)
    return [maps, active]


def _write_csv(path: Path, table: Lines) -> None:
    columns, lines = table
    with new_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *lines])


def _print(tables: dict[str, Lines], result: dict[str, Any]) -> None:
    """The keywords, how relevant the document is, and where the topics are."""
    for _, side, _, word, *counts, keyword in tables.get("keywords", ([], []))[1]:
        numbers = "  ".join(f"{'-' if count is None else count:>3}" for count in counts)
        print(f"{side:8}  {numbers}  {'*' if keyword else ' '} {word}")
    for name, value in result.get("relevance", {}).items():
        print(f"relevance {value:.4f}  {name}")
    if "topics" in tables:
        print(f"{len(result['topics'])} cells pick out keywords: topics.csv, topics_by_cell.csv")


def _log(project: str, folder: Path, tables: dict[str, Lines], pictures: Sequence[Path]) -> None:
    from pytorch_lightning.loggers import WandbLogger

    logger = WandbLogger(project=project, save_dir=str(folder.resolve()), job_type="inspect")
    for name, (columns, lines) in tables.items():
        shown = [[_as_cell(value) for value in line] for line in lines]
        logger.log_table(f"inspect/{name}", columns=columns, data=shown)
    for picture in pictures:
        logger.log_image(f"inspect/{picture.stem}", [str(picture)])
    logger.experiment.finish()


def _as_cell(value: Any) -> Any:
    # A column of a W&B table has one type, and a word may look like a number.
    return "-" if value is None else value if isinstance(value, str) else str(value)
