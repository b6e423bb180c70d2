"""`zoo memory`: the contents of a memory, and its growth while the model stays as it is."""

from __future__ import annotations

from datamodules.core.errors import InputError, excerpt, visible
from datamodules.core.storage import fingerprint_of
from datamodules.core.types import PlainDict
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
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
from datamodules.retrieval.memories.changes import conflicting_rows, corrections
from zoo.saving import fitted_weights
from zoo.saving.saved_model import SavedModel, is_model

_SHOWN_CONFLICTS = 10


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
    relabel: bool = False,
    tune: bool = False,
    push: str | None = None,
    retriever: Retriever | None = None,
) -> None:
    """Add the rows of a table to a model's memory. Its predictions use them at once, without training.

    Duplicates of rows in the memory (case, punctuation and white space folded, same label) are skipped and counted; a
    duplicate with another label is kept next to the old row, unless `relabel`. The old version stays: see
    `memory_version` of `zoo predict`. A memory that other runs share is first copied next to the model.

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
        relabel: correct the memory: rows with the text of a new one get its label.
        tune: fit the weights to the grown memory, on the held-out rows that stayed with the model and on the added
            rows, each classified without it.
        push: upload the changed model, too: wandb:entity/project/name, a new version of an artifact whose inputs have
            the table, or user/name on the Hugging Face Hub.
        retriever: back end to use instead of the model's (another server).
    """
    memory, saved = open_model_memory(model, retriever)
    check_push(push, model, saved)
    labels = memory.labels()
    columns = table_options(saved, retriever)
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
    known = addable_labels(saved, memory, new_labels)
    if saved is not None and isinstance(memory, FolderMemory):
        memory = own_memory(saved, memory)
    if tune:
        _check_tuned(model, saved)
    corrected = 0
    if relabel:
        corrected = _correct(memory, rows, known)
    done = memory.add(rows, known, unknown_labels, keep_ids=id_column is not None)
    fresh = [label for label in memory.labels() if label not in labels]
    if saved is not None and fresh:
        print(f"labels that only the memory has: {', '.join(map(visible, fresh))}")
    facts = [
        (done.conflicting, "with the text of a memory with another label"),
        (done.duplicates, "duplicates skipped"),
        (done.unknown, "rows with unknown labels skipped"),
        (corrected, "old ones relabelled"),
    ]
    listed = ", ".join(f"{number} {what}" for number, what in facts if number)
    print(
        f"{memory.location()}: version {done.version}, {done.rows} memories, {done.added} new"
        + (f" ({listed})" if listed else "")
    )
    if done.conflicting:
        print(
            "a text with two labels has two votes; to give the old memories the new label: the same command with"
            " --relabel true"
        )
    if saved is not None and tune:
        # Opened again: the memory may be a copy now.
        fit_again(SavedModel.open(saved.source), None, refit=False, retriever=retriever)
    share_changed(push, model)


def check_push(push: str | None, model: str, saved: SavedModel | None) -> None:
    """Raise an `InputError` unless the model, once changed, can be uploaded as `push`."""
    if push is None:
        return
    if saved is None:
        raise InputError(f"--push: {model} is a memory folder; name the model")
    from zoo.saving import sharing  # the import takes seconds

    sharing.check_target(push)


def share_changed(push: str | None, model: str) -> None:
    """Upload a changed model, if `push` names where."""
    if push is not None:
        from zoo.saving import sharing

        print(sharing.share(model, push))


def _check_tuned(model: str, saved: SavedModel | None) -> None:
    if saved is None:
        raise InputError(f"--tune: {model} is a memory folder, and has no weights; name the model")
    check_fits_weights(saved)


def _correct(memory: Memory, rows: Rows, known: list[str] | None) -> int:
    """Relabel the memories that have the texts of rows with other labels; return their number."""
    if not isinstance(memory, FolderMemory):
        raise memory.is_only_read()
    labels = corrections(memory.rows, memory.opened.lookup, rows)
    return memory.relabel(labels, known).changed if labels else 0


def table_options(saved: SavedModel | None, retriever: Retriever | None) -> PlainDict:
    """Return the options of `read_table` for rows like those of a model's memory."""
    return {} if saved is None else saved.make_data(retriever).memory_columns()


def addable_labels(saved: SavedModel | None, memory: Memory, new_labels: bool = False) -> list[str] | None:
    """Return the labels that rows of a model's memory may have; None = any."""
    if new_labels:
        _check_new_labels(memory.location() if saved is None else saved.source, saved)
    labels = memory.labels()
    if saved is None or new_labels or not labels:
        return None
    return [*saved.checkpoint.spec.get("memory_labels", ()), *labels]


def _check_new_labels(model: str, saved: SavedModel | None) -> None:
    if saved is None:
        raise InputError(f"--new_labels: {model} is a memory folder, which takes any label without it")
    if not getattr(saved.kind, "takes_new_labels", False):
        raise InputError(
            f"--new_labels: a {saved.kind.__name__} cannot predict labels that it was not trained with; train it again"
            " with their rows, or use a MemoryEnsemble"
        )


def own_memory(saved: SavedModel, memory: FolderMemory) -> FolderMemory:
    """Return the memory that may grow: a copy of one that other runs share."""
    saved.check_changeable()
    is_shared = saved.memory is not None and saved.memory.rows is not None
    return memory.copy_to(saved.own_memory) if is_shared else memory


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
        push: see `zoo memory add`.
        retriever: back end to use instead of the model's (another server).
    """
    saved = SavedModel.open(model)
    check_fits_weights(saved)
    check_push(push, model, saved)
    options = saved.checkpoint.data.options
    names = ("text_column", "label_column", "header", "quotes", "class_names")
    columns = {name: options[name] for name in names if name in options}
    given = {"text_column": text_column, "label_column": label_column}
    columns |= {name: value for name, value in given.items() if value is not None}
    fit_again(saved, read_table(file, **columns), refit, retriever)
    share_changed(push, model)


def check_fits_weights(saved: SavedModel) -> None:
    """Raise an `InputError` for a model without weights that could be fitted without training."""
    saved.check_changeable()
    if not issubclass(saved.kind, fitted_weights.FitsWeights):
        raise InputError(
            f"{saved.source}: a {saved.kind.__name__} has no weights that could be fitted without training; train a"
            " MemoryEnsemble"
        )
    if saved.memory is None:
        raise InputError(f"{saved.source}: this model reads no memory; train one with --data.num_memories")


def fit_again(saved: SavedModel, rows: Rows | None, refit: bool, retriever: Retriever | None) -> None:
    """Fit weights to a model's memory, after the members with `refit`, and write them next to the model.

    `rows` are labelled; None = the held-out rows that stayed with the model, and rows of the memory.
    """
    predictor = saved.predictor(retriever=retriever)
    kept = predictor.held_out
    if rows is None and kept is not None and kept.texts is not None:
        rows = Rows.from_lists(kept.texts, kept.labels, source="the held-out rows of the model")
    task, trained = predictor.model, saved.make_model()
    assert isinstance(task, fitted_weights.FitsWeights)
    assert isinstance(trained, fitted_weights.FitsWeights)
    assert predictor.memory is not None
    report = task.refit(predictor.data, predictor.memory, rows, refit)
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
    file = None if held_out is None else fitted_weights.write_values("held_out", held_out, saved.file)
    weights_file = saved.file(fitted_weights.FILE)
    entry = fitted_weights.Entry(key, version, fingerprint, weights, members, file)
    fitted_weights.add_entry(weights_file, entry)
    print(f"{weights_file}: {report}")
    if refit and (part := task.learned_by_gradients()) is not None:
        print(f"{part} has learned from the rows of the training only; {_how_to_train(saved)}")


def _how_to_train(saved: SavedModel) -> str:
    config = saved.file("config.yaml")
    from_run = f" --config {config}" if config.is_file() else ""
    return f"to train it on all rows: zoo fit{from_run} --data.train_file ALL_ROWS.csv --run_dir NEW_RUN"


def name_what_stays(saved: SavedModel, refit: bool, retriever: Retriever | None) -> None:
    """After a change of the memory's rows: fit again what can be, and name what still knows the old rows."""
    if refit:
        fit_again(saved, None, refit, retriever)
    elif issubclass(saved.kind, fitted_weights.FitsWeights):
        print(
            "the fitted members and their weights are as they were; to fit them to the rows of the memory: this command"
            f" with --refit true, or zoo memory tune {saved.source} LABELLED.csv --refit true"
        )
    else:
        print(
            f"the network is as it was, and knows the rows that it was trained with; {_how_to_train(saved)}"
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
    conflicts = (
        conflicting_rows(opened.rows, opened.opened.lookup) if isinstance(opened, FolderMemory) else []
    )
    if conflicts:
        facts["conflicts"] = f"{len(conflicts)} texts with several labels; `zoo memory relabel` corrects them"
    facts["back end"] = type(opened.retriever).__name__
    if not isinstance(opened, IndexMemory):  # an index of the user's has its own ranking
        ranking = opened.retriever.ranking.describe()
        facts["ranking"] = ", ".join(f"{name}={value}" for name, value in ranking.items())
    for name, value in facts.items():
        print(f"{name:9} {visible(value)}")
    for rows in conflicts[:_SHOWN_CONFLICTS]:
        assert isinstance(opened, FolderMemory)
        named = opened.rows.select(rows)
        votes = zip(named.ids, named.table.column("label").to_pylist(), strict=True)
        listed = ", ".join(f"{name} {label}" for name, label in votes)
        print(f"{'':9} {excerpt(named.texts[0], 60)}: {visible(listed)}")


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
        chosen = retriever or make_retriever(saved.checkpoint.data.retriever, saved.stranger)
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
