"""`zoo memory tune`, and the fit that ends other commands: weights and members for the memory as it is now."""

from __future__ import annotations

from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval import FolderMemory, Retriever
from zoo.memory.opened import OpenedMemory
from zoo.model_folder.folder import FITTED, ModelFolder
from zoo.model_folder.state import Fitted, write_values


def tune(
    model: str,
    file: str,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    refit: bool = False,
    push: str | None = None,
    retriever: Retriever | None = None,
) -> None:
    """Fit the weights of a model's memory again, on labelled rows: after it has grown, or to start with.

    The calibration and the weights of the members are written into the model folder, and used from the memory's present
    version on. An earlier version of the memory keeps its own.

    Args:
        model: a run folder or a model folder.
        file: table of labelled rows that are in neither the training set nor the memory.
        text_column: name or number of the text, or several; null: as in training.
        label_column: name or number of the label; null: as in training.
        refit: first fit the members that need no gradients (lexical, bag, the kernel machine on a frozen encoder) to
            the memory's labelled rows instead of the training rows.
        push: see `zoo memory add`.
        retriever: back end to use instead of the model's (another server).
    """
    opened = OpenedMemory.open_to_change(model, retriever, push=push)
    folder = opened.check_fits_weights("zoo memory tune")
    options = folder.meta.data.options
    names = ("text_column", "label_column", "header", "quotes", "class_names")
    columns = {name: options[name] for name in names if name in options}
    given = {"text_column": text_column, "label_column": label_column}
    columns |= {name: value for name, value in given.items() if value is not None}
    fit_again(folder, read_table(file, **columns), refit, retriever)
    opened.share(push)


def fit_again(folder: ModelFolder, rows: Rows | None, refit: bool, retriever: Retriever | None) -> None:
    """Fit weights to a model's memory, after the members with `refit`, and switch the model to them.

    `rows` are labelled; None = the held-out rows that stayed with the model, and rows of the memory.
    """
    from zoo.loading import held_out_rows, load  # the import takes seconds

    state = folder.state
    predictor = load(folder, retriever=retriever)
    version = predictor.memory.version if isinstance(predictor.memory, FolderMemory) else 0
    before = state.fitted_to(version)
    kept = held_out_rows(folder, before)
    if rows is None and kept is not None and kept.texts is not None:
        rows = Rows.from_lists(kept.texts, kept.labels, source="the held-out rows of the model")
    task = predictor.model
    report = task.refit(predictor.data, predictor.memory, rows, refit)
    values, held_out = folder.path / FITTED, task.describe_held_out()
    fitted = Fitted(
        weights=write_values(values, "weights", task.describe_weights()),
        members=write_values(values, "members", task.describe_members()) if refit else before.members,
        held_out=None if held_out is None else write_values(values, "held_out", held_out),
    )
    folder.switch(state.with_fitted(version, fitted))
    print(f"{folder.path}: {report}")
    if refit and (part := task.learned_by_gradients()) is not None:
        print(f"{part} has learned from the rows of the training only; {how_to_train(folder)}")


def how_to_train(folder: ModelFolder) -> str:
    """Return the advice to train a model again."""
    config = folder.path.parent / "config.yaml"
    from_run = f" --config {config}" if config.is_file() else ""
    return f"to train it on all rows: zoo fit{from_run} --data.train_file ALL_ROWS.csv --run_dir NEW_RUN"


def name_what_stays(folder: ModelFolder, refit: bool, retriever: Retriever | None) -> None:
    """After a change of the memory's rows: fit again what can be, and name what still knows the old rows."""
    if refit:
        fit_again(folder, None, refit, retriever)
    elif folder.meta.fits_weights:
        print(
            "the fitted members and their weights are as they were; to fit them to the rows of the memory: this command"
            f" with --refit true, or zoo memory tune {folder.source} LABELLED.csv --refit true"
        )
    else:
        print(
            f"the network is as it was, and knows the rows that it was trained with; {how_to_train(folder)}"
        )
