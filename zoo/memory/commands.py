"""`zoo memory`: the contents of a memory, and its growth while the model stays as it is."""

from __future__ import annotations

from datamodules.core.errors import InputError, visible
from datamodules.core.storage import fingerprint_of
from datamodules.core.types import PlainDict
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.retrieval import (
    FolderMemory,
    IndexMemory,
    Memory,
    Retriever,
    UnknownLabels,
    make_retriever,
    open_memory,
)
from zoo.saving import fitted_weights
from zoo.saving.saved_model import SavedModel, is_model


def add(
    model: str,
    file: str,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    id_column: Column | None = None,
    header: bool | None = None,
    class_names: str | list[str] | None = None,
    unknown_labels: UnknownLabels = "refuse",
    new_labels: bool = False,
    retriever: Retriever | None = None,
) -> None:
    """Add the rows of a table to a model's memory. Its predictions use them at once, without training.

    Duplicates of rows in the memory (case, punctuation and white space folded, same label) are skipped and counted; a
    duplicate with another label is kept next to the old row. The old version stays: see `memory_version` of `zoo
    predict`. A memory that other runs share is first copied next to the model.

    Args:
        model: a run folder, a checkpoint or an exported folder; or a memory folder.
        file: table of texts (CSV, TSV, JSONL, Parquet, a saved dataset, hub:NAME), labelled if the memory is.
        text_column: name or number of the text, or several; null: as for the first rows of the memory.
        label_column: name or number of the label; null: as for the first rows.
        id_column: name or number of an id; null names the rows VERSION:POSITION.
        header: whether a CSV file has a header line; null: as for the first rows.
        class_names: names for labels that are numbers from 1: a list, or a file; null: as for the first rows.
        unknown_labels: refuse a table with labels that the model does not know, or skip and count these rows.
        new_labels: add such rows: the model predicts their labels from then on by its memory alone.
        retriever: back end to use instead of the model's (another server).
    """
    memory, saved = open_model_memory(model, retriever)
    labels = memory.labels()
    columns: PlainDict = {} if saved is None else saved.make_data(retriever).memory_columns()
    given = {
        "text_column": text_column,
        "label_column": label_column,
        "header": header,
        "class_names": class_names,
    }
    columns |= {name: value for name, value in given.items() if value is not None}
    columns["id_column"] = id_column
    if not labels:
        columns["label_column"] = label_column
    rows = read_table(file, **columns)
    known = None
    if saved is not None and labels:
        known = None if new_labels else [*saved.checkpoint.spec.get("memory_labels", ()), *labels]
    if new_labels:
        _check_new_labels(model, saved)
    if saved is not None and isinstance(memory, FolderMemory):
        memory = _own_memory(saved, memory)
    done = memory.add(rows, known, unknown_labels, keep_ids=id_column is not None)
    fresh = [label for label in memory.labels() if label not in labels]
    if saved is not None and fresh:
        print(f"labels that only the memory has: {', '.join(map(visible, fresh))}")
    facts = [
        (done.relabelled, "with the text of a memory with another label"),
        (done.duplicates, "duplicates skipped"),
        (done.unknown, "rows with unknown labels skipped"),
    ]
    listed = ", ".join(f"{number} {what}" for number, what in facts if number)
    print(
        f"{memory.location()}: version {done.version}, {done.rows} memories, {done.added} new"
        + (f" ({listed})" if listed else "")
    )


def _check_new_labels(model: str, saved: SavedModel | None) -> None:
    if saved is None:
        raise InputError(f"--new_labels: {model} is a memory folder, which takes any label without it")
    if not getattr(saved.kind, "takes_new_labels", False):
        raise InputError(
            f"--new_labels: a {saved.kind.__name__} cannot predict labels that it was not trained with; train it again"
            " with their rows, or use a MemoryEnsemble"
        )


def _own_memory(saved: SavedModel, memory: FolderMemory) -> FolderMemory:
    """Return the memory that may grow: a copy of one that other runs share."""
    if saved.is_download:
        raise InputError(
            f"{saved.source}: a model of the Hub is not changed in its download; copy it with"
            f" `zoo export {saved.source} FOLDER` and add the rows to that"
        )
    is_shared = saved.memory is not None and saved.memory.rows is not None
    return memory.copy_to(saved.own_memory) if is_shared else memory


def tune(
    model: str,
    file: str,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    refit: bool = False,
    retriever: Retriever | None = None,
) -> None:
    """Fit the weights of a model's memory again, on labelled rows: after it has grown, or to start with.

    The calibration and the weights of the members are written to `weights.json` next to the model, and used from the
    memory's present version on; without the file, the model has the weights of its training. An earlier version of the
    memory keeps its own.

    Args:
        model: a run folder, a checkpoint or an exported folder.
        file: table of labelled rows that are in neither the training set nor the memory.
        text_column: name or number of the text, or several; null: as in training.
        label_column: name or number of the label; null: as in training.
        refit: first fit the members that need no gradients (lexical, bag, the kernel machine on a frozen encoder) to
            the memory's labelled rows instead of the training rows. They are written to `members-*.safetensors`.
        retriever: back end to use instead of the model's (another server).
    """
    saved = SavedModel.open(model)
    predictor = saved.predictor(retriever=retriever)
    task = predictor.model
    if not isinstance(task, fitted_weights.FitsWeights):
        raise InputError(
            f"zoo memory tune: a {saved.kind.__name__} has no weights that could be fitted without training; train a"
            " MemoryEnsemble"
        )
    trained = saved.make_model()
    assert isinstance(trained, fitted_weights.FitsWeights)
    options = saved.checkpoint.data.options
    names = ("text_column", "label_column", "header", "quotes", "class_names")
    columns = {name: options[name] for name in names if name in options}
    given = {"text_column": text_column, "label_column": label_column}
    columns |= {name: value for name, value in given.items() if value is not None}
    if predictor.memory is None:
        raise InputError(f"{model}: this model reads no memory; train one with --data.num_memories")
    report = task.refit(predictor.data, predictor.memory, read_table(file, **columns), refit)
    weights = task.describe_weights()
    assert weights is not None
    key, version = saved.memory_key(predictor.memory)
    fingerprint = fingerprint_of({"weights": trained.describe_weights()})
    if refit:
        members: str | None = fitted_weights.write_values("members", task.describe_members(), saved.file)
    else:
        before = fitted_weights.entry_for(saved.fitted_weights(), key, version, fingerprint)
        members = None if before is None else before.members
    held_out = task.describe_held_out()
    rows = None if held_out is None else fitted_weights.write_values("held_out", held_out, saved.file)
    weights_file = saved.file(fitted_weights.FILE)
    entry = fitted_weights.Entry(key, version, fingerprint, weights, members, rows)
    fitted_weights.add_entry(weights_file, entry)
    print(f"{weights_file}: {report}")
    if refit and (part := task.learned_by_gradients()) is not None:
        config = saved.file("config.yaml")
        from_run = f" --config {config}" if config.is_file() else ""
        print(
            f"{part} has learned from the rows of the training only; to train it on all rows: zoo"
            f" fit{from_run} --data.train_file ALL_ROWS.csv --run_dir NEW_RUN"
        )


def show(model: str, memory: str | None = None, retriever: Retriever | None = None) -> None:
    """Print where a memory is, its versions, labels, back end and ranking.

    Args:
        model: a run folder, a checkpoint or an exported folder; or a memory folder.
        memory: a memory folder instead of the model's.
        retriever: back end to use instead of the model's (another server).
    """
    import pyarrow.compute as pc

    opened, _ = open_model_memory(model, retriever, memory)
    facts = {"memory": opened.location()}
    labels = opened.labels()
    if isinstance(opened, FolderMemory):
        facts["version"] = str(opened.version)
        facts["versions"] = ", ".join(f"{version}: {rows} rows" for version, rows in opened.versions())
        counts = pc.value_counts(opened.rows.table.column("label").drop_null()).to_pylist()
        number_of = {count["values"]: count["counts"] for count in counts}
        labels = [f"{label} {number_of[label]}" for label in labels]
    facts["labels"] = ", ".join(labels) or "none"
    facts["back end"] = type(opened.retriever).__name__
    if not isinstance(opened, IndexMemory):  # an index of the user's has its own ranking
        ranking = opened.retriever.ranking.describe()
        facts["ranking"] = ", ".join(f"{name}={value}" for name, value in ranking.items())
    for name, value in facts.items():
        print(f"{name:9} {visible(value)}")


def open_model_memory(
    model: str, retriever: Retriever | None = None, memory: str | None = None
) -> tuple[Memory, SavedModel | None]:
    """Open the current version of a memory, and the model that reads it; None if a memory folder was named."""
    if not is_model(model):
        if memory is not None:
            raise InputError(f"{model}: is a memory folder; give a model, or omit --memory")
        return open_memory(model, retriever), None
    saved = SavedModel.open(model)
    location = saved.memory if memory is None else None
    if location is not None and location.rows is None:
        # The data module, and with it Lightning, is not needed.
        chosen = retriever or make_retriever(saved.checkpoint.data.retriever)
        opened = open_memory(location.path, chosen)
    else:
        data = saved.make_data(retriever, names_memory=memory is not None)
        if data.memory is None or not data.has_memory:
            raise InputError(f"{model}: this model reads no memory; train one with --data.num_memories")
        opened = data.memory.open(memory, retriever=retriever)
    _check_labels(saved, opened)
    return opened, saved


def _check_labels(saved: SavedModel, memory: Memory) -> None:
    """Raise an `InputError` for a memory with labels that a classifier lacks."""
    known = saved.checkpoint.spec.get("memory_labels")
    if known is None:
        return
    labels = memory.labels()
    unknown = [label for label in labels if label not in known]
    if bool(labels) == bool(known) and (not unknown or getattr(saved.kind, "takes_new_labels", False)):
        return
    why = f"has the label {unknown[0]!r}, which it does not know" if unknown else "has no labels"
    raise InputError(
        f"{memory.location()}: belongs to another model: it {why}; name this model's memory, or omit --memory"
    )
