"""`zoo.fit`: the command `zoo fit` as a function of Python."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules.core.errors import InputError, excerpt, reason
from datamodules.core.secrets import refuse_secrets
from datamodules.core.types import PlainDict
from datamodules.retrieval import Retriever
from zoo.loading import load, move
from zoo.model_folder.folder import is_model
from zoo.registry import model_class
from zoo.runs import configs
from zoo.runs.names import check_names
from zoo.runs.options import RunOptions
from zoo.runs.process import seeded
from zoo.tasks.records import as_texts

#: The table in the run folder that holds texts and labels of Python.
_TABLE = "train.jsonl"
#: Options of the data that name columns of a table.
_OF_TABLES = ("train_file", "text_column", "label_column")
_ONE_LABEL = "give one label for each text, or a list of labels for each"
#: Stands between the labels of a text, unless the data's options name another one.
SEPARATOR = ";"
#: Characters that `Rows` replaces: NULs and lone surrogates.
_REPLACED = re.compile("[\0\ud800-\udfff]")
#: Types of a set of labels.
SET = (list, tuple, set, frozenset, np.ndarray)


def fit(
    texts: str | Path | Iterable[str] | None = None,
    labels: Iterable[object] | None = None,
    *,
    model: str | type[Any] | None = None,
    model_options: Mapping[str, object] | None = None,
    trainer: Mapping[str, object] | None = None,
    config: str | Path | Sequence[str | Path] = (),
    run_dir: str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    device: str = "cpu",
    verbose: bool = False,
    **data_options: object,
) -> Any:
    """Train a model as the command `zoo fit` does, with the same result, and load it for prediction.

    The state of the process stays as it is: random states, environment, logging, signal handlers. Calls from several
    threads wait for each other.

    Args:
        texts: n texts (a list, an array, a column of a data frame), or the name of a table; None: only `label_texts`.
        labels: n strings or numbers, or n lists of them, which are sets; None for a table. Predictions have strings.
        model: name or class of a model; None: `MemoryEnsemble`, or the model of `config`.
        model_options: as after `--model.`: `{"transformer": "NAME"}`.
        trainer: as after `--trainer.`: `{"max_epochs": 3}`. One device is used, unless `devices` are named.
        config: configurations as after `--config`, `hmn/hmn4qa` or a file; later ones override earlier ones.
        run_dir: folder of the run, for `zoo.load` and all commands. None: a temporary folder, which is deleted with the
            returned predictor, or when the process ends; `export` of the predictor writes a folder that stays.
        seed: of all random numbers.
        time_limit: seconds of the training, as after `--time_limit`.
        device: of the returned predictor, `cpu` or `cuda`; the training uses a GPU if there is one.
        verbose: print what the command prints: progress, the table of results, the run folder.
        data_options: as after `--data.`: `text_column="headline"`, `validation_split=0.2`, `retriever=...`.

    Returns:
        The predictor, as `zoo.load` returns it. Its `answer` is the table of results of a `MemoryEnsemble`.

    Raises:
        InputError: an argument or a row cannot be used.

    Example:
        >>> model = zoo.fit("train.csv", text_column="headline", label_column="topic")  # doctest: +SKIP
        >>> model.predict(["a text"])[0].label  # doctest: +SKIP
    """
    if not isinstance(seed, int | np.integer):
        raise InputError(f"seed: {excerpt(repr(seed))} is not a whole number; give one")
    name = model.__name__ if isinstance(model, type) else model
    if labels is not None and name is not None and (task := model_class(name).task) != "classification":
        raise InputError(f"texts: a {name} is a model for {task}, which reads a table; give its name")
    named = [config] if isinstance(config, str | Path) else config
    contents = [configs.contents(configs.find(str(file))) for file in named]
    layers = [configs.recipe(name, False, contents), *contents]
    if name is not None:
        layers.append({"model": {"class_path": name}})
    given = {**_named("model", model_options or {}), **_named("trainer", trainer or {})}
    of_model, of_data, classes = configs.classes_of(layers)
    check_names([*given, *_named("data", data_options)], of_model, of_data)
    with ExitStack() as resources:
        if run_dir is None:
            run_dir = resources.enter_context(tempfile.TemporaryDirectory(prefix="memory-zoo-"))
        folder = Path(run_dir).absolute()
        files, table = _table(texts, labels, folder, data_options)
        given |= {
            **_named("data", {**table, **data_options}),
            "seed_everything": int(seed),
            **({} if time_limit is None else {"time_limit": time_limit}),
            "run_dir": str(folder),
        }
        for layer in [*layers, given]:
            refuse_secrets(layer, "")
        quiet = {
            # Otherwise the log has a line for each epoch.
            "trainer.enable_progress_bar": verbose and sys.stdout.isatty(),
            "trainer.enable_model_summary": False,
            "trainer.devices": 1,
        }
        with seeded(int(seed)), _printed_log() if verbose else nullcontext():
            move(torch.nn.Linear(1, 1), device)  # an error now, not after the training
            trained = RunOptions("fit", classes, [quiet, *layers, given]).fit(folder, files)
            if verbose and trained is not None:
                print(trained.as_text())
            if not is_model(folder):
                raise InputError("texts: no epoch was saved: there are no validation rows; give more rows")
            predictor = load(folder, device=device)
        weakref.finalize(predictor, resources.pop_all().close)
        return predictor


@contextmanager
def _printed_log() -> Iterator[None]:
    """Print our own progress on standard error, unless the process has handlers of its own."""
    with ExitStack() as resources:
        for logger in map(logging.getLogger, ("zoo", "datamodules")):
            resources.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.INFO)
            if not logger.hasHandlers():
                logger.addHandler(handler := logging.StreamHandler())
                resources.callback(logger.removeHandler, handler)
        yield


def _table(
    texts: str | Path | Iterable[str] | None,
    labels: Iterable[object] | None,
    folder: Path,
    data_options: Mapping[str, object],
) -> tuple[dict[str, str], dict[str, object]]:
    """Return the files to write into the run folder, and the options of the data that name the table."""
    if texts is None:
        if labels is not None:
            raise InputError("texts: missing; give a text for each label")
        return {}, {}
    if isinstance(texts, str | Path):
        if labels is not None:
            raise InputError(f"labels: {texts} is the name of a table; name its labels with label_column")
        return {}, {"train_file": texts}
    if labels is None:
        raise InputError("labels: missing; give a label for each text, or the name of a table as texts")
    if named := [name for name in _OF_TABLES if name in data_options]:
        raise InputError(f"{named[0]}: belongs to a table; omit it, or give the name of a table as texts")
    texts, labels = as_texts(texts, "texts: row"), as_labels(labels)
    sets, columns = label_sets(labels, len(texts)), {"text_column": "text", "label_column": "label"}
    if sets is not None:
        columns["label_separator"] = SEPARATOR
    rows = zip(texts, label_names(labels, len(texts)) if sets is None else sets, strict=True)
    lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
    return {_TABLE: "".join(lines)}, {"train_file": folder / _TABLE, **columns}


def as_labels(labels: Any) -> Any:
    """Return labels as an array or a part of a data frame, as far as they are one, and others as a list."""
    is_wrong = isinstance(labels, str | Mapping | set | frozenset)
    if not isinstance(labels, Iterable) or is_wrong or getattr(labels, "ndim", 1) == 0:
        raise InputError(f"labels: a {type(labels).__name__} is not a list of labels; {_ONE_LABEL}")
    if hasattr(labels, "toarray"):  # a sparse matrix
        return labels.toarray()
    return labels if hasattr(labels, "ndim") else list(labels)


def columns_of(matrix: Any) -> list[object]:
    """Return the names of the columns of a data frame, or the numbers of those of a matrix."""
    return list(getattr(matrix, "columns", range(matrix.shape[1])))


def label_sets(labels: Any, number: int) -> list[list[str]] | None:
    """Return the sets of labels of `number` texts as lists of strings; None where a text has one label.

    Sets are lists, or rows of a matrix of 0 and 1 whose columns are the labels; an `InputError` names a wrong row.
    """
    if is_matrix := getattr(labels, "ndim", 0) == 2:
        if not len(labels) or not np.isin(labels, (0, 1)).all():
            raise InputError("labels: a matrix of sets has rows of 0 and 1, 1 for the label of a text")
        names = columns_of(labels)
        if len({str(name).strip() for name in names} - {""}) < len(names):
            raise InputError("labels: the columns of a matrix are labels; give each a name of its own")
        labels = [[names[column] for column in np.flatnonzero(row)] for row in np.asarray(labels)]
    if not is_matrix and not any(isinstance(each, SET) for each in labels):
        return None
    if len(labels) != number:
        raise InputError(f"labels: {number:,} texts but {len(labels):,} sets; give one for each text")
    for row, each in enumerate(labels):
        is_list = isinstance(each, SET) and getattr(each, "ndim", 1) == 1
        if not is_list or not all(isinstance(name, str | int | np.integer) for name in each):
            raise InputError(f"labels: row {row} is no list of strings or whole numbers; give such lists")
    sizes = {len(each) for each in labels}
    if not is_matrix and len(sizes) == 1 < max(sizes) and all({*each} <= {0, 1} for each in labels):
        raise InputError("labels: lists of 0 and 1 are the rows of a matrix; give it as an array")
    return [sorted(map(_checked, each)) for each in labels]


def label_names(labels: Iterable[object], number: int, least: int = 2) -> list[str]:
    """Return the labels of `number` texts, of `least` classes, as strings; an `InputError` names a wrong row."""
    values = [value.item() if isinstance(value, np.generic) else value for value in labels]
    if len(values) != number:
        raise InputError(f"labels: {number:,} texts but {len(values):,} labels; give one label for each text")
    for row, value in enumerate(values):
        kind, first = type(value).__name__, type(values[0]).__name__
        is_blank = isinstance(value, str) and not value.strip()
        is_missing = kind in ("NoneType", "NAType", "NaTType")  # the last two are those of pandas
        if is_missing or is_blank or (isinstance(value, float) and math.isnan(value)):
            raise InputError(f"labels: row {row} has no label ({value!r}); add one or remove the row")
        if not isinstance(value, str | int | float):
            raise InputError(f"labels: row {row} is a {kind}, not a string or number; {_ONE_LABEL}")
        if kind != first:
            raise InputError(f"labels: row {row} is a {kind}, row 0 a {first}; give labels of one type")
    names = list(map(_checked, values))
    if len(set(names)) < least:
        have = f"all rows have the label {excerpt(names[0])!r}" if names else "there are no rows"
        raise InputError(f"labels: {have}; a classifier needs two classes")
    return names


def _checked(label: object) -> str:
    if _REPLACED.search(name := str(label)):
        raise InputError(f"labels: {name!r} has a character that tables and memories replace; remove it")
    return name


def _named(group: str, values: Mapping[str, object]) -> PlainDict:
    """Return values as in YAML, with names such as `model.hidden_size`."""
    named = PlainDict()
    for name, value in values.items():
        try:
            named[f"{group}.{name}"] = json.loads(json.dumps(value, default=_plain))
        except TypeError as error:
            raise InputError(f"{group}.{name}: {reason(error)}; give plain values, as in YAML") from None
    return named


def _plain(value: object) -> object:
    if isinstance(value, Retriever):
        described = value.describe()
        if value.local_options:
            described["init_args"]["url"] = vars(value)["server"].urls
        return described
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written to the configuration of a run")
