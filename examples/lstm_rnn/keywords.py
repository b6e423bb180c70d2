"""Keywords, gates and topics of a trained LSTM-RNN (Palangi et al. 2016, Section V-A), as pictures and tables.

python examples/lstm_rnn/keywords.py runs/lstm --query "some words" --document "a title" --output keywords

A word is credited with each of the text's most active cells whose value changes strongly at it. A keyword is credited
with more than 40 percent of them, in both directions if the text is read in both. All cells change at the first word: a
direction has no count for the word that it reads first.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import zoo
from zoo.tasks.predictor import evaluating, on_device
from zoo.tasks.records import blocks_of
from zoo.tasks.retrieval.predictor import RetrievalPredictor

#: Number of the most active cells of a text, and of those that topics are read from.
TOP, TOPIC_CELLS = 10, 5
#: A change is strong above this share of the cell's last value (the paper does not define it).
CHANGE = 0.2
#: A keyword is credited with more than this share of the most active cells.
SHARE = 0.4
DIRECTIONS = ("left to right", "right to left")
#: Part of a trace -> its name in the paper.
PARTS = {
    "input_gate": "i(t), input gate",
    "cell": "c(t), cell",
    "output_gate": "o(t), output gate",
    "state": "y(t), embedding",
}


class ReadText(NamedTuple):
    """States of a recurrent network for a text of T words."""

    text: str
    #: T words, as tokenized.
    words: list[str]
    #: name of a gate or a state -> its values at each word, float32 [T, directions * H].
    parts: dict[str, NDArray[np.float32]]
    #: 1, or 2 where the text is read backwards as well: the second half of the values.
    directions: int


def read_texts(predictor: RetrievalPredictor, texts: list[str], queries: bool) -> list[ReadText]:
    """Return the states of an LSTMRNN word by word, for each text."""
    network, read = predictor.model.network, list[ReadText]()
    tower = network.query if queries else network.document
    with evaluating(predictor.model):
        side = predictor.side_of(texts, queries)
        lengths, tokens = side.tokens.sizes, side.tokens.store
        for numbers in blocks_of(range(len(texts)), 256):
            batch = on_device(side.batch(np.array(numbers)), predictor.model)
            parts = tower.trace(tower.hashing(batch.char), batch.text)
            arrays = {name: part.float().cpu().numpy() for name, part in parts.items()}
            for position, row in enumerate(numbers):
                length = int(lengths[row])
                values = {name: array[position, :length] for name, array in arrays.items()}
                read.append(ReadText(texts[row], tokens.words(row)[:length], values, tower.directions))
    return read


class Activity(NamedTuple):
    """The A most active cells of a text of T words, read in one direction."""

    #: int64 [A]: cells, counted from 1 over both directions, the most active first.
    cells: NDArray[np.int64]
    #: float32 [T, A]: y of these cells at each word, in the order of the text.
    values: NDArray[np.float32]
    #: bool [T, A]: True where a word is credited with a cell; False for the word that is read first.
    credited: NDArray[np.bool_]
    #: number of cells that each word is credited with; None for the word that is read first.
    counts: list[int | None]


def find_activities(text: ReadText) -> list[Activity]:
    """Find the most active cells of each direction, and the words that change them."""
    activities = []
    for direction, y in enumerate(np.split(text.parts["state"], text.directions, axis=1)):
        order = slice(None, None, -1 if direction else 1)  # from the text's order to the reading's, and back
        read, size = y[order], y.shape[1]
        last = np.abs(read[-1]) if len(read) else np.zeros(size, np.float32)
        cells = np.argsort(-last, kind="stable")[:TOP]
        credited = np.zeros((len(read), len(cells)), bool)
        credited[1:] = np.abs(np.diff(read[:, cells], axis=0)) > CHANGE * last[cells]
        counts = [None, *credited[1:].sum(axis=1).tolist()] if len(read) else []
        activities.append(Activity(1 + direction * size + cells, y[:, cells], credited[order], counts[order]))
    return activities


def find_keywords(activities: Sequence[Activity]) -> list[bool]:
    """Return True for each word that is a keyword."""
    words = zip(*(activity.counts for activity in activities), strict=True)
    known = [[count for count in counts if count is not None] for counts in words]
    return [bool(counts) and min(counts) > SHARE * len(activities[0].cells) for counts in known]


def find_topics(text: ReadText) -> list[tuple[int, list[str]]]:
    """Return the cells that pick out keywords, with these keywords (Table III)."""
    activities = find_activities(text)
    is_keyword = np.array(find_keywords(activities), bool)
    topics = [
        (int(cell), list(compress(text.words, credited & is_keyword)))
        for activity in activities
        for cell, credited in zip(activity.cells[:TOPIC_CELLS], activity.credited.T, strict=False)
    ]
    return [(cell, words) for cell, words in topics if words]


def draw_maps(text: ReadText) -> Figure:
    """Draw gates, cells and embedding over the words, a row of maps for each direction (Figs 4, 5, 9 and 10)."""
    names = [name for name in PARTS if name in text.parts]
    width, height = (2 + 0.22 * len(text.words)) * len(names), 4 * text.directions
    figure = Figure(figsize=(width, height), layout="constrained")
    for row, direction in zip(
        figure.subplots(text.directions, len(names), squeeze=False), DIRECTIONS, strict=False
    ):
        for axes, name in zip(row, names, strict=True):
            values = np.split(text.parts[name], text.directions, axis=1)[DIRECTIONS.index(direction)]
            _draw_map(axes, text, values, f"{PARTS[name]}, {direction}", is_gate=name.endswith("gate"))
    return figure


def draw_active(text: ReadText) -> Figure:
    """Draw y of the most active cells over the words, a map for each direction (Figs 6, 11 and 12)."""
    figure = Figure(figsize=((2 + 0.22 * len(text.words)) * text.directions, 3.5), layout="constrained")
    panels = figure.subplots(1, text.directions, squeeze=False)[0]
    for axes, activity, direction in zip(panels, find_activities(text), DIRECTIONS, strict=False):
        _draw_map(axes, text, activity.values, f"y(t), most active cells, {direction}")
        axes.set_yticks(range(len(activity.cells)), activity.cells.tolist(), fontsize=7)
    return figure


def _draw_map(
    axes: Axes, text: ReadText, values: NDArray[np.float32], title: str, is_gate: bool = False
) -> None:
    """Draw values [T, cells]: gates from 0 to 1, others with 0 in the middle."""
    most = float(np.abs(values).max(initial=1e-6))
    low, high, colors = (0.0, 1.0, "viridis") if is_gate else (-most, most, "RdBu_r")
    image = axes.imshow(values.T, colors, vmin=low, vmax=high, aspect="auto", origin="lower")
    axes.set_xticks(range(len(text.words)), [word[:16] for word in text.words], rotation=90, fontsize=7)
    axes.set_title(title, fontsize=9)
    axes.figure.colorbar(image, ax=axes)


def main() -> None:
    """Write the pictures and tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="+", help="an LSTMRNN; others are added to the table of keywords")
    parser.add_argument("--query", help="a query")
    parser.add_argument("--document", help="a document")
    parser.add_argument("--queries", type=Path, help="many queries (.jsonl with `text`), for topics.csv")
    parser.add_argument("--output", type=Path, required=True, help="folder for the files")
    options = parser.parse_args()
    texts = {side: vars(options)[side] for side in ("query", "document") if vars(options)[side]}
    options.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.model:
        model: Any = zoo.load(name)
        traces = {side: read_texts(model, [text], side == "query")[0] for side, text in texts.items()}
        for side, trace in traces.items():
            activities = find_activities(trace)
            counts = zip(*(activity.counts for activity in activities), strict=True)
            for line in zip(trace.words, find_keywords(activities), counts, strict=True):
                rows.append([name, side, line[0], int(line[1]), *line[2]])
            if name == options.model[0]:
                draw_maps(trace).savefig(options.output / f"{side}_maps.png")
                draw_active(trace).savefig(options.output / f"{side}_active.png")
        if len(texts) == 2:
            cosine = model.encode_queries([texts["query"]])[0] @ model.encode([texts["document"]])[0]
            print(f"cosine of query and document {cosine:.4f}  {name}")
        if options.queries and name == options.model[0]:
            queries = [json.loads(line)["text"] for line in options.queries.open(encoding="utf-8")]
            topics = [
                [trace.text, cell, ", ".join(words)]
                for trace in read_texts(model, queries, queries=True)
                for cell, words in find_topics(trace)
            ]
            _write(options.output / "topics.csv", ["query", "cell", "keywords"], topics)
    _write(options.output / "keywords.csv", ["model", "side", "word", "keyword", *DIRECTIONS], rows)


def _write(file: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([columns, *rows])


if __name__ == "__main__":
    main()
