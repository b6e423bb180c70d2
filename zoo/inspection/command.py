"""`zoo inspect`: gates, keywords and topics of a trained LSTM-RNN, for any text, as pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import compress, islice
from pathlib import Path
from typing import TypeAlias

from callbacks.chart import Cell, write_table
from callbacks.pictures import write_picture
from datamodules.core.errors import InputError, check_count, visible
from datamodules.core.storage import named_disk_errors, write_json
from datamodules.core.types import PlainDict
from datamodules.corpora.records import TextColumn
from zoo.inspection.figures import draw_active, draw_maps
from zoo.inspection.keywords import DIRECTIONS, Keywords, Rules, allocate_topics, find_keywords, words_by_cell
from zoo.saving.saved_model import SavedModel
from zoo.tasks.predictor import blocks_of, texts_in
from zoo.tasks.retrieval.predictor import RetrievalPredictor

#: Columns and rows.
Table: TypeAlias = tuple[list[str], list[list[Cell]]]


def inspect(
    ckpt_path: str,
    output: str,
    query: str | None = None,
    document: str | None = None,
    queries: str | None = None,
    compare_with: list[str] | None = None,
    text_column: TextColumn = "text",
    top: int = 10,
    change: float = 0.2,
    share: float = 0.4,
    topic_cells: int = 5,
    texts: int = 10_000,
    device: str = "cpu",
) -> None:
    """Show gates, cells and keywords of a query and a document, and the topics of cells over many queries.

    Writes `query_maps.png`, `query_active.png` (and of the document), `keywords.csv`, `topics.csv`, `inspection.json`.

    Args:
        ckpt_path: a checkpoint of an LSTMRNN.
        output: folder for the files.
        query: a query.
        document: a document. With a query, their cosine is reported.
        queries: many queries: a table (CSV, TSV, JSONL, Parquet) or a .txt file with one a line.
        compare_with: further checkpoints for the table of keywords, such as that of a network without gates.
        text_column: name or number of the queries' text, in a table.
        top: number of a text's most active cells.
        change: a cell changes strongly at a word if it changes by more than this share of its last value.
        share: a keyword is credited with more than this share of the most active cells.
        topic_cells: number of a query's most active cells that its keywords are allocated to.
        texts: number of queries that are read.
        device: cpu, cuda, cuda:1, ...
    """
    rules = Rules(top, change, share, topic_cells)
    check_count("texts", texts)
    given = {side: text for side, text in (("query", query), ("document", document)) if text is not None}
    if not given and queries is None:
        raise InputError("zoo inspect: give --query, --document or --queries")
    if not given and compare_with:
        raise InputError("--compare_with: compares keywords; give --query or --document")
    folder = Path(output)
    with named_disk_errors(folder, "--output"):
        folder.mkdir(parents=True, exist_ok=True)
    predictors = {name: _open(name, device) for name in [ckpt_path, *(compare_with or [])]}
    tables: dict[str, Table] = {}
    result: PlainDict = {"checkpoint": ckpt_path, "rules": vars(rules)}
    if given:
        inspected = {
            (name, side): find_keywords(predictor.trace([text], queries=side == "query")[0], rules)
            for name, predictor in predictors.items()
            for side, text in given.items()
        }
        tables["keywords"] = _keyword_table(inspected)
        result["texts"] = [_plain(*key, keywords) for key, keywords in inspected.items()]
        for side in given:
            _draw(inspected[ckpt_path, side], folder, side)
    if query is not None and document is not None:
        result["relevance"] = {
            name: float(predictor.encode_queries([query])[0] @ predictor.encode([document])[0])
            for name, predictor in predictors.items()
        }
    if queries is not None:
        read = islice(texts_in(queries, {"text_column": text_column}), texts)
        blocks = (predictors[ckpt_path].trace(block, queries=True) for block in blocks_of(read))
        traces = (trace for block in blocks for trace in block)
        topics = list(allocate_topics((find_keywords(trace, rules) for trace in traces), rules))
        tables["topics"] = (
            ["query", "cell", "keywords"],
            [[topic.text, topic.cell, ", ".join(topic.words)] for topic in topics],
        )
        result["topics"] = {str(cell): dict(words) for cell, words in words_by_cell(topics).items()}
    write_json(folder / "inspection.json", result)
    for name, table in tables.items():
        write_table(folder / f"{name}.csv", *table)
    _print(tables, result)


def _open(model: str, device: str) -> RetrievalPredictor:
    predictor = SavedModel.open(model).predictor(device=device)
    if not isinstance(predictor, RetrievalPredictor):
        raise InputError(
            f"{model}: a {type(predictor.model).__name__} has no cells to inspect; name an LSTMRNN"
        )
    return predictor


def _draw(keywords: Keywords, folder: Path, side: str) -> None:
    if keywords.text.words:
        write_picture(folder / f"{side}_maps.png", partial(draw_maps, keywords.text))
        write_picture(folder / f"{side}_active.png", partial(draw_active, keywords))


def _keyword_table(inspected: Mapping[tuple[str, str], Keywords]) -> Table:
    """A row for each word of a checkpoint and side: the number of active cells it is credited with (Table I)."""
    rows: list[list[Cell]] = []
    for (checkpoint, side), keywords in inspected.items():
        for position, word in enumerate(keywords.text.words):
            counts = [activity.counts[position] for activity in keywords.activities]
            counts += [None] * (len(DIRECTIONS) - len(counts))
            rows.append([checkpoint, side, position + 1, word, *counts, int(keywords.is_keyword[position])])
    return ["checkpoint", "side", "position", "word", *DIRECTIONS, "keyword"], rows


def _plain(checkpoint: str, side: str, keywords: Keywords) -> PlainDict:
    text = keywords.text
    return {
        "checkpoint": checkpoint,
        "side": side,
        "words": text.words,
        "keywords": list(compress(text.words, keywords.is_keyword)),
        "parts": {name: values.tolist() for name, values in text.parts.items()},
    }


def _print(tables: Mapping[str, Table], result: PlainDict) -> None:
    for _, side, _, word, *counts, is_keyword in tables.get("keywords", ([], []))[1]:
        numbers = "  ".join(f"{'-' if count is None else count:>3}" for count in counts)
        print(f"{side:8}  {numbers}  {'*' if is_keyword else ' '} {visible(str(word))}")
    for name, value in result.get("relevance", {}).items():
        print(f"relevance {value:.4f}  {visible(name)}")
    if "topics" in tables:
        print(f"{len(result['topics'])} cells pick out keywords: topics.csv")
