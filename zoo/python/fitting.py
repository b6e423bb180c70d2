"""`zoo.fit`: the command `zoo fit` as a function of Python."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules.core.errors import InputError, excerpt, reason
from datamodules.retrieval import Retriever
from zoo.cli import runs
from zoo.cli.errors import explain
from zoo.cli.main import ignore_irrelevant_warnings
from zoo.cli.options import refuse_secrets_of
from zoo.cli.signals import ending_signal
from zoo.registry import model_class
from zoo.saving.saved_model import is_model, load, move
from zoo.tasks.predictor import as_texts

#: The table in the run folder that holds texts and labels of Python.
_TABLE = "train.jsonl"
#: Options of the data that name columns of a table.
_OF_TABLES = ("train_file", "text_column", "label_column")
_ONE_LABEL = "give one label for each text (for several, fit one model for each label)"
#: A run sets the random states of the whole process.
_one_at_a_time = threading.RLock()


def fit(
    texts: str | Path | Iterable[str],
    labels: Iterable[object] | None = None,
    *,
    model: str | type[Any] | None = None,
    model_options: Mapping[str, object] | None = None,
    trainer: Mapping[str, object] | None = None,
    config: str | Path | Sequence[str | Path] = (),
    run_dir: str | Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    verbose: bool = False,
    **data_options: object,
) -> Any:
    """Train a model as the command `zoo fit` does, with the same result, and load it for prediction.

    Random states, environment, logging and signal handlers of the process stay as they are. Calls from several threads
    wait for each other.

    Args:
        texts: n texts (a list, an array, a column of a data frame), or the name of a table.
        labels: n strings or numbers; None for a table. Predictions have them as strings.
        model: name or class of a model; None: `MemoryEnsemble`, or the model of `config`.
        model_options: as after `--model.`: `{"transformer": "NAME"}`.
        trainer: as after `--trainer.`: `{"max_epochs": 3}`. One device is used, unless `devices` are named.
        config: configurations as after `--config`, `hmn/hmn4qa` or a file; later ones override earlier ones.
        run_dir: folder of the run, for `zoo.load` and all commands. None: a temporary folder, which is deleted with the
            returned predictor, or when the process ends; `export` of the predictor writes a folder that stays.
        seed: of all random numbers.
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
    with ExitStack() as resources:
        if run_dir is None:
            run_dir = resources.enter_context(tempfile.TemporaryDirectory(prefix="memory-zoo-"))
        folder = Path(run_dir).absolute()
        files, table = _table(texts, labels, folder, data_options)
        options = [
            f"--trainer.enable_progress_bar={verbose}",
            "--trainer.enable_model_summary=false",
            "--trainer.devices=1",
            *(f"--config={each}" for each in ([config] if isinstance(config, str | Path) else config)),
            *([] if name is None else [f"--model={name}"]),
            *_options("model", model_options or {}),
            *_options("data", {**table, **data_options}),
            *_options("trainer", trainer or {}),
            f"--seed_everything={seed}",
            f"--run_dir={folder}",
        ]
        with _one_at_a_time, _as_a_library(verbose):
            move(torch.nn.Linear(1, 1), device)  # an error now, not after the training
            refuse_secrets_of(options)
            runs.run("fit", options, files)
            if not is_model(folder):
                raise InputError("texts: no epoch was saved: there are no validation rows; give more rows")
            predictor = load(folder, device=device)
        weakref.finalize(predictor, resources.pop_all().close)
        return predictor


def _table(
    texts: str | Path | Iterable[str],
    labels: Iterable[object] | None,
    folder: Path,
    data_options: Mapping[str, object],
) -> tuple[dict[str, str], dict[str, object]]:
    """Return the files to write into the run folder, and the options of the data that name the table."""
    if isinstance(texts, str | Path):
        if labels is not None:
            raise InputError(f"labels: {texts} is the name of a table; name its labels with label_column")
        return {}, {"train_file": texts}
    if labels is None:
        raise InputError("labels: missing; give a label for each text, or the name of a table as texts")
    if named := [name for name in _OF_TABLES if name in data_options]:
        raise InputError(f"{named[0]}: belongs to a table; omit it, or give the name of a table as texts")
    texts = as_texts(texts, "texts: row")
    names = label_names(labels, len(texts))
    rows = zip(texts, names, strict=True)
    lines = [json.dumps({"text": text, "label": name}) + "\n" for text, name in rows]
    columns = {"train_file": folder / _TABLE, "text_column": "text", "label_column": "label"}
    return {_TABLE: "".join(lines)}, columns


def label_names(labels: Iterable[object], number: int) -> list[str]:
    """Return the labels of `number` texts as strings; raise an `InputError` that names the first wrong row."""
    is_list = isinstance(labels, Iterable) and not isinstance(labels, str | Mapping)
    if not is_list or getattr(labels, "ndim", 1) != 1:
        raise InputError(f"labels: a {type(labels).__name__} is not a list of labels; {_ONE_LABEL}")
    values = [value.item() if isinstance(value, np.generic) else value for value in labels]
    if len(values) != number:
        raise InputError(f"labels: {number:,} texts but {len(values):,} labels; give one label for each text")
    for row, value in enumerate(values):
        kind, first = type(value).__name__, type(values[0]).__name__
        is_blank = isinstance(value, str) and not value.strip()
        if value is None or is_blank or (isinstance(value, float) and math.isnan(value)):
            raise InputError(f"labels: row {row} has no label ({value!r}); add one or remove the row")
        if not isinstance(value, str | int | float):
            raise InputError(f"labels: row {row} is a {kind}, not a string or number; {_ONE_LABEL}")
        if kind != first:
            raise InputError(f"labels: row {row} is a {kind}, row 0 a {first}; give labels of one type")
    names = [str(value) for value in values]
    if len(set(names)) < 2:
        have = f"all rows have the label {excerpt(names[0])!r}" if names else "there are no rows"
        raise InputError(f"labels: {have}; a classifier needs two classes")
    return names


def _options(group: str, values: Mapping[str, object]) -> Iterator[str]:
    """Yield values as options of the command line: strings as they are, others as JSON."""
    for name, value in values.items():
        try:
            text = str(value) if isinstance(value, str | Path) else json.dumps(value, default=_plain)
        except TypeError as error:
            raise InputError(f"{group}.{name}: {reason(error)}; give plain values, as in YAML") from None
        yield f"--{group}.{name}={text}"


def _plain(value: object) -> object:
    if isinstance(value, Retriever):
        described = value.describe()
        if value.local_options:
            described["init_args"]["url"] = vars(value)["server"].urls
        return described
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written to the configuration of a run")


@contextmanager
def _as_a_library(verbose: bool) -> Iterator[None]:
    """Restore the state of the process after a run, and raise its errors as `InputError`, without an exit."""
    environment, interrupt = dict(os.environ), signal.getsignal(signal.SIGINT)
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - which a seed sets
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    levels = {name: logging.getLogger(name).level for name in runs.LIGHTNING_LOGGERS}
    try:
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(range(torch.cuda.device_count()) if has_gpu else ()),
            redirect_stdout(sys.stdout if verbose else io.StringIO()),
        ):
            ignore_irrelevant_warnings()
            yield
    except SystemExit as end:
        if ending_signal(end) == signal.SIGINT:
            raise KeyboardInterrupt from None  # which Lightning turns into an exit
        raise
    except Exception as error:
        if isinstance(error, InputError) or (line := explain(error, "fit")) is None:
            raise
        raise InputError(line) from None
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)  # Lightning ignores it after an interrupt
