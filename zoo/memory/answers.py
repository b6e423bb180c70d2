"""Answers of a model to texts before and after an edit of its memory."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from datamodules.core import storage
from datamodules.core.errors import InputError, excerpt, visible
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval.folding import fold_hashes
from zoo.memory.opened import DoneT, Edit, OpenedMemory
from zoo.model_folder.folder import STATE, ModelFolder, ignoring

if TYPE_CHECKING:
    from zoo.tasks.classification.predictor import ClassificationPredictor, Prediction

#: Fits the weights of a model again.
Fit: TypeAlias = Callable[[ModelFolder], object]
#: Held-out rows that are predicted around an edit, within seconds.
_MOST_COMPARED = 1_000
#: Probability of a loss of accuracy that counts as chance.
_CHANCE = 0.05
#: The answers to n texts before and after an edit.
Answers: TypeAlias = "list[tuple[Prediction, Prediction]]"


def preview_edit(opened: OpenedMemory, file: str, edit: Edit[DoneT], fit: Fit | None) -> None:
    """Print what an edit, and a fit after it, would do to the answers to the texts of a table; change nothing.

    `file` has the columns of the training; without labels, no accuracy is printed.
    """
    model, unlabelled = opened.named_model("--preview"), ""
    columns = model.training_columns()
    try:
        rows = read_table(file, **columns)
    except InputError as error:
        rows, unlabelled = read_table(file, **{**columns, "label_column": None}), f"no accuracy: {error}"
    done, answers, of_held_out = answers_around(opened, rows.texts[:], edit, fit)
    changes = [describe_change(*each) for each in answers if each[0].label != each[1].label]
    print(f"preview: {opened.memory.location()}: {done.describe()}")
    print(f"{len(changes):,} of {len(answers):,} answers change", *changes, sep="\n")
    print(unlabelled or describe_accuracy(file, answers, rows.labels or []))
    if of_held_out is not None:
        print(of_held_out)
    print("nothing is changed; without --preview, the same command makes the edit")


def answers_around(
    opened: OpenedMemory, texts: list[str], edit: Edit[DoneT], fit: Fit | None
) -> tuple[DoneT, Answers, str | None]:
    """Return the result of an edit of a copy of the model, the answers to texts around it, a line on held-out rows."""
    rows = read_held_out(opened, opened.folder.version)
    tables = [texts, [] if rows is None else rows.texts[:]]
    with _linked(opened) as copy, ThreadPoolExecutor(1) as thread:
        edited = OpenedMemory(copy.open_memory(), copy)
        # The texts of a table alone, as they are predicted elsewhere: sums depend on the texts of a batch.
        before = thread.map(partial(classifier(copy).predict, memories=0), tables)  # as long as the edit
        edited.folder.retriever.use_scratch(copy.path.stem[1:])
        done = edit(edited)
        if edited.folder.version > opened.folder.version:
            data = replace(copy.meta.data, retriever=edited.folder.retriever.describe())
            copy = ModelFolder(copy.source, copy.path, replace(copy.meta, data=data))
        if fit is not None:
            fit(copy)
        model = classifier(copy)
        after = [model.predict(texts, memories=0) for texts in tables]
    answers, of_rows = (list(zip(*both, strict=True)) for both in zip(before, after, strict=True))
    line = None if rows is None else describe_accuracy("held-out rows", of_rows, rows.labels or ())
    return done, answers, line


def delete_previews(opened: OpenedMemory, model: ModelFolder) -> None:
    """Delete the links of a model that killed previews have left, and their indexes on a server."""
    for name in storage.delete_leftovers(model.path):
        if re.fullmatch("preview-[0-9a-f]{12}", name):  # a server takes other names for patterns
            opened.folder.retriever.delete_scratch(name)


@contextmanager
def _linked(opened: OpenedMemory) -> Iterator[ModelFolder]:
    """Yield a copy of a model folder, of links; the next preview or `compact` deletes that of a killed process."""
    model = opened.named_model("--preview")
    name, link = f"preview-{uuid.uuid4().hex[:12]}", storage.link
    # Absolute: the retriever of an edit describes its encoder by its path.
    partial, hidden = (model.path / f".{name}.partial").absolute(), ignoring(model.path, STATE)
    delete_previews(opened, model)
    with storage.lock(model.path / name):
        try:
            with storage.named_disk_errors(partial, "the model's folder"):
                partial.mkdir()
                # First: the files that this state names exist, and others that are being written do no harm.
                link(model.state_file, partial / STATE)
                shutil.copytree(model.path, partial, ignore=hidden, copy_function=link, dirs_exist_ok=True)
            yield ModelFolder(model.source, partial, model.meta)
        except shutil.Error as error:
            raise InputError(f"{model.source}: was changed meanwhile; run the command again") from error
        except InputError as error:
            message = str(error).replace(str(partial), str(model.path))
            raise type(error)(message) from error.__cause__ or error
        finally:
            opened.folder.retriever.delete_scratch(name)
            shutil.rmtree(partial, ignore_errors=True)
            # No other process waits for a lock of this name.
            (model.path / f".{name}.lock").unlink(missing_ok=True)


def classifier(model: ModelFolder, version: int | None = None) -> ClassificationPredictor:
    """Load a classifier at a version of its memory; raise an `InputError` for a model of another kind."""
    from zoo.loading import load  # the import takes seconds
    from zoo.tasks.classification.predictor import ClassificationPredictor

    predictor = load(model, memory_version=version)
    if not isinstance(predictor, ClassificationPredictor):
        raise InputError(f"{model.source}: a {model.meta.model} is no classifier, whose answers are compared")
    return predictor


def describe_change(before: Prediction, after: Prediction) -> str:
    """Describe two answers to a text in a line."""
    states = " -> ".join(f"{each.label or 'no label'} {each.probability:.2f}" for each in (before, after))
    return f"~ [{visible(states)}] {excerpt(after.text)}"


def read_held_out(opened: OpenedMemory, *versions: int) -> Rows | None:
    """Draw at most 1,000 held-out rows of a model that no row of these versions of its memory answers.

    None if there are none: without `zoo memory tune` or a validation split, they are rows of the training.
    """
    from zoo.loading import held_out_rows  # the import takes seconds

    model, memory = opened.named_model("held-out rows"), opened.folder
    kept = held_out_rows(model, model.state.fitted_to(model.state.version))
    if kept is None or kept.texts is None:
        return None
    hashes, lookups = fold_hashes(kept.texts), [memory.open_version(number).lookup for number in versions]
    unknown = np.flatnonzero(np.all([lookup.first_rows(hashes) < 0 for lookup in lookups], axis=0))
    drawn = np.random.default_rng(0).permutation(unknown)[:_MOST_COMPARED]
    return Rows.from_lists(kept.texts, kept.labels).select(drawn) if len(drawn) else None


def find_right_answers(model: ModelFolder, version: int, rows: Rows) -> list[bool]:
    """Return which of n held-out rows a version of a model answers right."""
    answers = classifier(model, version).predict(rows.texts[:], memories=0)
    return [each.label == label for each, label in zip(answers, rows.labels or (), strict=True)]


def describe_harm(before: list[bool], after: list[bool]) -> str | None:
    """Describe a loss of accuracy on n held-out rows, paired; None if chance would explain it."""
    from zoo.tasks.metrics import sign_test

    pairs = [*zip(before, after, strict=True)]
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    p_value = sign_test(gained, lost)
    if lost <= gained or p_value >= _CHANCE:
        return None
    shares = " -> ".join(f"{sum(each) / len(pairs):.4f}" for each in (before, after))
    return f"lowered the accuracy on {len(pairs):,} held-out rows: {shares} (McNemar p = {p_value:.1g})"


def describe_accuracy(rows: str, answers: Answers, labels: Sequence[str]) -> str:
    """Describe the accuracy on n labelled rows before and after an edit."""
    right = [[each.label == label for each in both] for both, label in zip(answers, labels, strict=True)]
    before, after = (sum(column) / len(labels) for column in zip(*right, strict=True))
    counts = f"{right.count([False, True]):,} errors less, {right.count([True, False]):,} more"
    return f"accuracy on {rows} ({len(labels):,}): {before:.4f} -> {after:.4f}; {counts}"
