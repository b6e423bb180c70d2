"""The texts that are labelled on the page (`zoo serve --pool`), and the route that returns the next one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated

import numpy as np
from fastapi import FastAPI, Query, Response

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.multilabel import split_labels
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.folding import distinct_rows, fold_hashes
from zoo.model_folder.folder import ModelFolder
from zoo.search.suggest import pick
from zoo.serve.bodies import LONGEST_TEXT
from zoo.serve.live_model import LiveModel, Served
from zoo.tasks.classification.predictor import ClassificationPredictor
from zoo.tasks.records import as_record

log = logging.getLogger("zoo")

#: Texts that are compared for a question, while the person who labels waits.
_COMPARED = 64
#: Texts that are picked of these, a fifth at random; the first one is asked.
_PICKED = 10
#: Skipped texts that a request may name: uvicorn reads 16 KiB of its first line and headers.
_MOST_SKIPPED = 500


def read_pool(file: str, model: ModelFolder) -> Rows:
    """Read the distinct texts of a table, with labels (None where a row has none), from the columns of the training."""
    columns = model.training_columns()
    # As sets, which may be empty: rows of the pool may lack a label.
    as_sets = {**columns, "label_separator": columns.get("label_separator") or "\0"}
    try:
        rows = read_table(file, **as_sets)
    except InputError as unlabelled:
        log.info("--pool: guesses are not compared with labels: %s", unlabelled)
        try:
            rows = read_table(file, **{**columns, "label_column": None})
        except InputError as error:
            hint = "name the columns as in the training table"
            message = str(error).replace("name it with text_column, several as [one,other]", hint)
            raise InputError(f"--pool {message}") from error
    labels = None if rows.labels is None else [label or None for label in rows.labels]
    rows = Rows.from_lists(rows.texts, labels, source=file)
    chosen = distinct_rows(rows.texts, fold_hashes(rows.texts))
    is_short = [len(text) <= LONGEST_TEXT for text in rows.texts.take(chosen)]
    if (left_out := is_short.count(False)) > 0:
        log.warning("--pool %s: skipped %d texts above %d characters", file, left_out, LONGEST_TEXT)
    rows = rows.select(chosen[is_short])
    if len(rows) == 0:
        raise InputError(f"--pool {file}: all texts are empty or too long; give a table with texts")
    return rows


def add_pool(app: FastAPI, live: LiveModel, pool: Rows, answer: Callable[[PlainDict], Response]) -> None:
    """Add the route to an application; an `InputError` if the model has no memory to add labelled texts to."""
    keys, ids = fold_hashes(pool.texts), pool.table.column("id")
    _opened(live.current())

    @app.get("/suggest")
    def suggest(skipped: Annotated[list[int] | None, Query(max_length=_MOST_SKIPPED)] = None) -> Response:
        """Return the text of the pool to label next, as `zoo suggest` chooses it, with its prediction.

        Texts of the memory are not returned, nor the rows that are named as `skipped`. `row` is null if none is left.
        """
        predictor, memory = _opened(live.current())
        unlabelled = np.flatnonzero(memory.opened.lookup.first_rows(keys) < 0)
        left_out = [row for row in skipped or () if 0 <= row < len(pool)]
        rows = np.setdiff1d(unlabelled, np.array(left_out, np.int64))
        counts = {"texts": len(pool), "unlabelled": len(unlabelled), "memory_version": memory.version}
        if len(rows) == 0:
            return answer({"row": None, **counts})
        # Not of a fixed seed: two people would be asked the same texts.
        random, number = np.random.default_rng(), min(_PICKED, len(rows))
        row, drawn = pick(pool.texts, rows, number, random, predictor, most=_COMPARED)[0]
        (prediction,) = predictor.predict(pool.texts[row], memories=0)
        written, separator = pool.label(row), predictor.model.spec.label_separator
        # A row of the pool without a label is not labelled, even where sets may be empty.
        labels = [] if written is None else split_labels(written, separator)
        is_known = bool(labels) and prediction.probabilities.keys() >= set(labels)
        known = {"label": (separator or "").join(labels) if is_known else None, "id": ids[row].as_py()}
        return answer({"row": row, **known, "drawn": drawn, "prediction": as_record(prediction), **counts})


def _opened(served: Served) -> tuple[ClassificationPredictor, FolderMemory]:
    """Return the classifier and its memory; an `InputError` if labelled texts cannot be added to it."""
    if not isinstance(served.predictor, ClassificationPredictor):
        raise InputError("--pool: the model gives no labels; serve a classifier")
    served.folder.check_changeable()
    memory = served.opened.folder
    if not memory.labels():
        raise InputError(f"--pool: {memory.location()}: the memory has no labels, and takes none")
    return served.predictor, memory
