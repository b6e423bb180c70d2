"""`zoo memory`: the rows of a memory are shown, added and corrected, while the model stays as it is."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import numpy as np
import pyarrow.compute as pc

from datamodules.core.errors import InputError, excerpt, name_some, visible
from datamodules.core.storage import lock, set_key
from datamodules.corpora.multilabel import edit_labels, split_labels
from datamodules.corpora.readers import open_lines, read_blocks
from datamodules.corpora.records import Column, Columns, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval import FolderMemory, IndexMemory
from datamodules.retrieval.memories.changes import conflicting_rows
from datamodules.retrieval.memories.memory import Addition, Change
from datamodules.retrieval.memories.versions import Version
from zoo.memory.answers import delete_previews, describe_harm, find_right_answers, preview_edit, read_held_out
from zoo.memory.opened import Edit, OpenedMemory
from zoo.model_folder.folder import FITTED, LEARNED, MEMORY, REPORT, ModelFolder
from zoo.model_folder.state import FittedFiles, read_values, write_values
from zoo.tasks.records import AT_RANDOM

_SHOWN_CONFLICTS = 10
_SHOWN_ANSWERS = 3
#: Rows of an edit that is checked for harm, slowly: six lost answers are the fewest that are no chance.
_MANY_ROWS = 6


def add(
    model: str,
    file: str,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    id_column: Column | None = None,
    new_labels: bool = False,
    relabel: bool = False,
    tune: bool = False,
    note: str | None = None,
    preview: str | None = None,
) -> None:
    """Add the rows of a table to a model's memory. Its predictions use them at once, without training.

    Duplicates of rows in the memory (case, punctuation and white space folded, same label) are skipped and counted; a
    duplicate with another label is kept next to the old row, unless `relabel`. The old version stays: see
    `memory_version` of `zoo predict`.

    Args:
        model: a run folder or a model folder; or a memory folder.
        file: table of texts (CSV, TSV, JSONL, Parquet, a saved dataset, hub:NAME), labelled if the memory is.
        text_column: name or number of the text, or several; null: as for the first rows of the memory.
        label_column: name or number of the label; null: as for the first rows.
        id_column: name or number of an id; null names the rows VERSION:POSITION.
        new_labels: add rows with labels that the model does not know, and predicts by its memory alone from then on.
        relabel: correct the memory: rows with the text of a new one get its label.
        tune: fit the weights to the grown memory, on the held-out rows that stayed with the model and on the added
            rows, each classified without it.
        note: a reason, which is kept with the new version; see `zoo memory log`.
        preview: a table of texts, with or without labels: change nothing, but print which answers to them would change.
    """
    opened = OpenedMemory.open_to_change(model, "--tune" if tune else None)
    labels, before = opened.labels(), opened.folder.version
    rows = opened.read(file, id_column, text_column=text_column, label_column=label_column)

    def edit(each: OpenedMemory) -> Addition:
        return each.add(rows, new_labels, id_column is not None, relabel, note)

    if preview is not None:
        preview_edit(opened, preview, edit, partial(fit_again, rows=None, refit=False) if tune else None)
        return
    done = edit(opened)
    print(f"{opened.memory.location()}: {done.describe()}")
    fresh = [label for label in opened.labels() if label not in labels]
    if opened.model is not None and fresh:
        print(f"labels that only the memory has: {', '.join(map(visible, fresh))}")
    if done.conflicting:
        print("a text with two labels has two votes; --relabel true gives the old memories the new label")
    _show_answers(opened, before)
    _show_accuracy(file, rows, opened.separator)
    if tune and opened.model is not None:
        print(fit_again(opened.model, None, refit=False))
    _name_harm(opened, before, done.added + done.relabelled)


def remove(
    model: str,
    ids: str | None = None,
    file: str | None = None,
    id_column: Column = "id",
    refit: bool = False,
    note: str | None = None,
    preview: str | None = None,
) -> None:
    """Remove rows from a model's memory. Its predictions do without them at once, as if they had never been there.

    The old version stays: see `memory_version` of `zoo predict`, and `zoo memory compact`, which deletes it for good.
    What the model itself has learned from the rows is printed, with the command that ends it.

    Args:
        model: a run folder or a model folder; or a memory folder.
        ids: the rows' ids, such as '[12,2:0]'.
        file: in place of ids, a table that has them in a column, or a .txt file with one in each line.
        id_column: name or number of the column of ids in `file`.
        refit: also fit the members that need no gradients again, and the weights, without the rows.
        note: see `zoo memory add`.
        preview: see `zoo memory add`.
    """
    opened = OpenedMemory.open_to_change(model, "--refit" if refit else None)
    memory = opened.folder
    if (ids is None) == (file is None):
        raise InputError("zoo memory remove: give --ids, or --file")
    if file is None:
        wanted = _parse_ids(str(ids))
    elif file.endswith(".txt"):
        wanted = [name for line in open_lines(file) if (name := line.rstrip("\r\n"))]
    else:
        wanted = list(read_table(file, id_column, None).texts)
    if refit:  # a command that was killed after its first step is repeated
        earlier = (Version.open(memory.folder, each["version"]).rows.ids for each in memory.history())
        gone = set().union(*earlier) - set(memory.rows.ids)
        wanted = [each for each in wanted if each not in gone]
    _correct(opened, lambda each: each.folder.remove(wanted, note), "removed", refit, preview)


def relabel(
    model: str,
    ids: str | None = None,
    label: str | None = None,
    file: str | None = None,
    id_column: Column = "id",
    label_column: Column = "label",
    refit: bool = False,
    note: str | None = None,
    preview: str | None = None,
) -> None:
    """Give other labels to rows of a model's memory.

    Args:
        model: a run folder or a model folder; or a memory folder.
        ids: the rows' ids, such as '[12,2:0]', which all get `label`.
        label: the label of `ids`. Where a row has several, all of them, or `+one` to add and `-one` to take away.
        file: in place of both, a table with ids and labels, such as that of `zoo audit`.
        id_column: name or number of the column of ids in `file`.
        label_column: name or number of the column of labels in `file`.
        refit: see `zoo memory remove`.
        note: see `zoo memory add`.
        preview: see `zoo memory add`.
    """
    opened = OpenedMemory.open_to_change(model, "--refit" if refit else None)
    if (file is None) == (ids is None) or (ids is None) != (label is None):
        raise InputError("zoo memory relabel: give --ids and --label, or --file")
    if file is not None:
        rows = opened.read_labels(file, text_column=id_column, label_column=label_column)
        wanted, labels = list(rows.texts), rows.labels or []
    else:
        wanted = _parse_ids(str(ids))
        labels = [str(label)] * len(wanted)
    memory, separator = opened.folder, opened.separator
    numbers = memory.opened.rows_with_ids(wanted)  # refuses an id that is given twice
    if file is None and separator is not None:
        before = memory.rows.select(numbers).table.column("label").fill_null("").to_pylist()
        labels = [edit_labels(*each, str(label), separator) for each in zip(wanted, before, strict=True)]
    changes = dict(zip(wanted, labels, strict=True))
    _correct(opened, lambda each: each.relabel(changes, note=note), "relabelled", refit, preview)


def replace(
    model: str,
    file: str,
    id_column: Column = "id",
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    refit: bool = False,
    note: str | None = None,
    preview: str | None = None,
) -> None:
    """Put the rows of a table in the place of those with the same ids in a model's memory.

    Args:
        model: a run folder or a model folder; or a memory folder.
        file: table of texts with ids, labelled if the memory is.
        id_column: name or number of the column of ids.
        text_column: name or number of the text, or several; null: as for the first rows of the memory.
        label_column: name or number of the label; null: as for the first rows.
        refit: see `zoo memory remove`.
        note: see `zoo memory add`.
        preview: see `zoo memory add`.
    """
    opened = OpenedMemory.open_to_change(model, "--refit" if refit else None)
    rows = opened.read(file, id_column, text_column=text_column, label_column=label_column)
    _correct(opened, lambda each: each.replace(rows, note), "replaced", refit, preview)


def compact(model: str, keep: int = 1) -> None:
    """Delete the old versions of a model's memory for good, with the texts that only they have.

    Args:
        model: a run folder or a model folder; or a memory folder.
        keep: number of versions to keep, the current one included.
    """
    opened = OpenedMemory.open_to_change(model)
    memory, folder = opened.folder, opened.model
    deleted = memory.compact(keep)
    first = memory.history()[0]["version"]
    kept = "version" if first == memory.version else f"versions {first} to"
    print(f"{memory.location()}: {deleted} versions deleted, {kept} {memory.version} kept")
    if deleted and memory.retriever.is_on_server:
        print("the server keeps the index of the first version, which others may share; delete it there")
    if folder is None:
        return
    members = folder.state.fitted_to(first).members
    fitted_at = first if members is None else read_values(folder.path / FITTED, members)["version"]
    folder.switch(lambda state: state.since(first))
    folder.delete_unused_values()
    delete_previews(opened, folder)
    if fitted_at < first:
        print(
            f"the members were fitted to version {fitted_at}, and know its rows; to fit them to those of the"
            f" memory: zoo memory tune {model} LABELLED.csv --refit true"
        )
    print(remembering(folder))


def tune(
    model: str,
    file: str,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    refit: bool = False,
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
    """
    folder = OpenedMemory.open_to_change(model).model_with_weights("zoo memory tune")
    columns = folder.training_columns(text_column=text_column, label_column=label_column)
    print(fit_again(folder, read_table(file, **columns), refit))


def show(model: str) -> None:
    """Print where a memory is, its versions, labels, back end and ranking.

    Args:
        model: a run folder or a model folder; or a memory folder.
    """
    opened = OpenedMemory.open(model)
    memory, labels, conflicts = opened.memory, opened.labels(), list[str]()
    facts = {"memory": memory.location()}
    if isinstance(memory, FolderMemory):
        facts["version"] = str(memory.version)
        facts["versions"] = ", ".join(f"{each['version']}: {each['rows']} rows" for each in memory.history())
        number_of = Counter[str]()
        for count in pc.value_counts(memory.rows.table.column("label").drop_null()).to_pylist():
            for label in split_labels(count["values"], opened.separator) or ["no label"]:
                number_of[label] += count["counts"]
        labels = [f"{label} {number}" for label, number in sorted(number_of.items())]
        conflicts = _conflicts_of(memory)
    facts["labels"] = ", ".join(labels) or "none"
    if conflicts:
        facts["conflicts"] = f"{len(conflicts)} texts with several labels; `zoo memory relabel` corrects them"
    facts["back end"] = type(memory.retriever).__name__
    if not isinstance(memory, IndexMemory):  # an index of the user's has its own ranking
        ranking = memory.retriever.describe_ranking()
        facts["ranking"] = ", ".join(f"{name}={value}" for name, value in ranking.items())
    for name, value in facts.items():
        print(f"{name:9} {visible(value)}")
    for line in conflicts[:_SHOWN_CONFLICTS]:
        print(f"{'':9} {line}")


def _conflicts_of(memory: FolderMemory) -> list[str]:
    """Return a line for each text that has several labels, with ids and labels of its rows."""
    lines = []
    for rows in conflicting_rows(memory.rows, memory.opened.lookup):
        named = memory.rows.select(rows)
        votes = zip(named.ids, named.table.column("label").to_pylist(), strict=True)
        listed = ", ".join(f"{name} {label}" for name, label in votes)
        lines.append(f"{excerpt(named.texts[0], 60)}: {visible(listed)}")
    return lines


def _parse_ids(text: str) -> list[str]:
    """Return the ids in '[a,b]', 'a,b' or a JSON list of strings; raise an `InputError` if there are none."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if isinstance(values, list) and all(isinstance(each, str) for each in values):
        ids = values
    else:  # not as JSON or YAML, where 007 is the number 7
        ids = [each.strip() for each in text.strip().removeprefix("[").removesuffix("]").split(",")]
    if not all(ids) or not ids:
        raise InputError(f"--ids {visible(text)}: names no id; give a list, such as '[12,2:0]'")
    return ids


def _show_answers(opened: OpenedMemory, since: int) -> None:
    """Print an ensemble's answers to texts that were added or corrected, if its memory has its classes' labels."""
    memory, meta = opened.folder, opened.model and opened.model.meta
    if not meta or not meta.fits_weights or meta.spec.get("memory_labels") != meta.spec.get("labels"):
        return
    fresh = memory.opened.rows_since(since)
    keys = memory.opened.lookup.keys_by_row()[fresh]
    firsts = np.sort(np.unique(keys, return_index=True)[1])
    for first in firsts[:_SHOWN_ANSWERS]:
        rows = memory.rows.select(fresh[keys == keys[first]])
        written = set(rows.table.column("label").to_pylist())
        labels = sorted(visible(label) or "no label" for label in written)
        print(f"the model now answers {excerpt(rows.texts[0], 60)} with {' or '.join(labels)}")
    if len(firsts) > _SHOWN_ANSWERS:
        print(f"and {len(firsts) - _SHOWN_ANSWERS} more texts with their labels")


def _show_accuracy(file: str, rows: Rows, separator: str | None) -> None:
    """Print how often a model was right on the texts that `zoo suggest` drew at random, before it read their labels."""
    try:
        blocks = list(read_blocks(file, Columns(["drawn", "likely_label", "probability"])))
    except InputError:  # another table
        return
    guesses = [fields for block in blocks for fields in zip(*map(block.strings, range(3)), strict=True)]
    right = [
        set(split_labels(guess, separator)) == set(split_labels(label, separator))
        for (drawn, guess, probability), label in zip(guesses, rows.labels or [], strict=False)
        if drawn == AT_RANDOM and probability
    ]
    if right:
        # As if one more had been right, and one wrong: few may all be right by chance (Agresti and Coull 1998).
        number, share = len(right), (sum(right) + 1) / (len(right) + 2)
        error = (share * (1 - share) / (number + 2)) ** 0.5
        stated = f"{sum(right) / number:.1%} ± {error:.1%} of the {number} texts drawn at random"
        print(f"{stated} had their label as likely_label")


def _name_harm(opened: OpenedMemory, before: int, changed: int) -> None:
    """Print whether a model answers held-out rows worse since a version of its memory, by an edit of many rows."""
    model, after = opened.model, opened.folder.version
    if model is None or not model.meta.fits_weights or changed < _MANY_ROWS:
        return
    if (rows := read_held_out(opened, before, after)) is None:
        return
    harm = describe_harm(*(find_right_answers(model, version, rows) for version in (before, after)))
    if harm is not None:
        print(f"version {after} {harm}; back to version {before}: zoo memory revert {model.source} {before}")


def _correct(opened: OpenedMemory, edit: Edit[Change], what: str, refit: bool, preview: str | None) -> None:
    """Make a change, and end it: fit again what can be, or name what still knows the old rows."""
    if preview is not None:
        preview_edit(opened, preview, edit, partial(fit_again, rows=None, refit=True) if refit else None)
        return
    labels, model = opened.labels(), opened.model
    done = edit(opened)
    print(f"{opened.memory.location()}: {done.describe(what)}")
    if lost := set(labels).difference(opened.labels()):
        print(f"no row is left with the label {name_some(sorted(lost))}")
    if model is None or not (done.changed or refit):
        return
    if what != "removed" and done.changed:
        _show_answers(opened, done.version - 1)
    if refit:
        print(fit_again(model, None, refit))
    elif model.meta.fits_weights:
        print(
            "the fitted members and their weights are as they were; to fit them to the rows of the memory: this command"
            f" with --refit true, or zoo memory tune {model.source} LABELLED.csv --refit true"
        )
    else:
        print(f"the network is as it was, and knows the rows that it was trained with; {how_to_train(model)}")
    print(remembering(model))
    _name_harm(opened, done.version - 1, done.changed)


def fit_again(folder: ModelFolder, rows: Rows | None, refit: bool) -> str:
    """Fit weights to a model's memory, after the members with `refit`, switch the model to them, and return a report.

    `rows` are labelled; None = the held-out rows that stayed with the model, and rows of the memory.
    """
    from zoo.loading import held_out_rows, load  # the import takes seconds

    state = folder.state
    predictor = load(folder)
    version = predictor.memory.version if isinstance(predictor.memory, FolderMemory) else 0
    before = state.fitted_to(version)
    kept = held_out_rows(folder, before)
    if is_own := rows is None and kept is not None and kept.texts is not None:
        rows = Rows.from_lists(kept.texts, kept.labels, source="the held-out rows of the model")
    task = predictor.model
    task.held_out = None if refit else kept  # stay where the weights stay as they are
    report = task.refit(predictor.data, predictor.memory, rows, refit, is_own)
    values, held_out = folder.path / FITTED, task.describe_held_out()
    with lock(values):  # until the state names the files, `zoo memory compact` would delete them
        if folder.state.fitted_to(version) != before:
            raise InputError(f"{folder.source}: was fitted or compacted meanwhile; run the command again")
        fitted = FittedFiles(
            write_values(values, "weights", task.network.pool.describe()),
            write_values(values, "members", task.network.describe_members()) if refit else before.members,
            None if held_out is None else write_values(values, "held_out", held_out),
        )
        folder.switch(lambda state: state.with_fitted(version, fitted))
    set_key(folder.state_file, REPORT, f"fitted to version {version} of the memory: {report}")
    report = f"{folder.path}: {report}"
    if refit and task.network.encoder_before is not None:
        advice = how_to_train(folder)
        report += f"\nthe encoder's metric has learned from the rows of the training only; {advice}"
    return report


def remembering(folder: ModelFolder) -> str:
    """Name the files of a model and its run that remember rows which are no longer in the memory."""
    run, current = folder.path.parent, f"version-{folder.state.version}"
    files = [*(folder.path / name for name in LEARNED), *sorted(run.glob("checkpoints/*.ckpt"))]
    files += sorted(run.glob("wandb/*run-*"))  # tables of texts
    files += [each for each in (folder.path / MEMORY).glob("version-*") if each.name != current]
    return (
        f"what remembers removed rows: {', '.join(map(str, files))}, the training table and its copies in the cache of"
        " data; `zoo memory compact` deletes versions, and only a new training forgets"
    )


def how_to_train(folder: ModelFolder) -> str:
    """Return the advice to train a model again."""
    config = folder.path.parent / "config.yaml"
    from_run = f" --config {config}" if config.is_file() else ""
    return f"to train it on all rows: zoo fit{from_run} --data.train_file ALL_ROWS.csv --run_dir NEW_RUN"
