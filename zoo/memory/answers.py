"""Answers of a model to texts before and after an edit of its memory."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from datamodules.core import storage
from datamodules.core.errors import InputError, excerpt, visible
from datamodules.corpora.table import read_table
from datamodules.retrieval.memories.memory import Addition, Change
from zoo.memory.opened import OpenedMemory
from zoo.model_folder.folder import STATE, ModelFolder

if TYPE_CHECKING:
    from zoo.tasks.classification.predictor import ClassificationPredictor, Prediction

DoneT = TypeVar("DoneT", Addition, Change)
Edit: TypeAlias = Callable[[OpenedMemory], DoneT]
#: Fits the weights of a model again.
Fit: TypeAlias = Callable[[ModelFolder], object]
#: The answers to n texts before and after an edit.
Answers: TypeAlias = "list[tuple[Prediction, Prediction]]"


def preview_edit(opened: OpenedMemory, file: str, edit: Edit[DoneT], fit: Fit | None) -> None:
    """Print what an edit, and a fit after it, would do to the answers to the texts of a table; change nothing.

    `file` has the columns of the training; without labels, no accuracy is printed.
    """
    from zoo.loading import held_out_rows

    model, unlabelled = opened.named_model("--preview"), ""
    columns = model.training_columns()
    try:
        rows = read_table(file, **columns)
    except InputError as error:
        rows, unlabelled = read_table(file, **{**columns, "label_column": None}), f"no accuracy: {error}"
    kept = held_out_rows(model, model.state.fitted_to(opened.folder.version))
    held_out = [] if kept is None or kept.texts is None else kept.texts
    done, (answers, of_held_out) = answers_around(opened, [rows.texts[:], held_out], edit, fit)
    changes = [describe_change(*each) for each in answers if each[0].label != each[1].label]
    print(f"preview: {opened.memory.location()}: {done.describe()}")
    print(f"{len(changes):,} of {len(answers):,} answers change", *changes, sep="\n")
    print(unlabelled or _describe_accuracy(file, answers, rows.labels or []))
    if kept is not None and held_out:
        print(_describe_accuracy("held-out rows", of_held_out, kept.labels))
    print("nothing is changed; without --preview, the same command makes the edit")


def answers_around(
    opened: OpenedMemory, tables: Sequence[list[str]], edit: Edit[DoneT], fit: Fit | None
) -> tuple[DoneT, list[Answers]]:
    """Return the result of an edit of a copy of the model, and the answers to the texts of tables around it."""
    if opened.folder.retriever.is_on_server:
        raise InputError(
            f"--preview: the index of {opened.memory.location()} is on a server, to which the edit would write; make"
            " the edit, and take it back with `zoo memory revert`"
        )
    with _linked(opened.named_model("--preview")) as copy:
        # The texts of a table alone, as they are predicted elsewhere: sums depend on the texts of a batch.
        model = classifier(copy)
        before = [model.predict(texts, memories=0) for texts in tables]
        done = edit(OpenedMemory(copy.open_memory(), copy))
        if fit is not None:
            fit(copy)
        model = classifier(copy)
        after = [model.predict(texts, memories=0) for texts in tables]
    return done, [list(zip(*both, strict=True)) for both in zip(before, after, strict=True)]


@contextmanager
def _linked(model: ModelFolder) -> Iterator[ModelFolder]:
    """Yield a copy of a model folder, of links; the next preview or `compact` deletes that of a killed process."""
    name, link = f"preview-{uuid.uuid4().hex[:12]}", storage.link
    partial, hidden = model.path / f".{name}.partial", shutil.ignore_patterns(".*", STATE)
    storage.delete_leftovers(model.path)
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
            raise type(error)(str(error).replace(str(partial), str(model.path))) from error
        finally:
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
    states = " -> ".join(f"{each.label} {each.probability:.2f}" for each in (before, after))
    return f"~ [{visible(states)}] {excerpt(after.text)}"


def _describe_accuracy(rows: str, answers: Answers, labels: Sequence[str]) -> str:
    right = [[each.label == label for each in both] for both, label in zip(answers, labels, strict=True)]
    before, after = (sum(column) / len(labels) for column in zip(*right, strict=True))
    counts = f"{right.count([False, True]):,} errors less, {right.count([True, False]):,} more"
    return f"accuracy on {rows} ({len(labels):,}): {before:.4f} -> {after:.4f}; {counts}"
