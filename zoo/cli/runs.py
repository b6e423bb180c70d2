"""`zoo fit`, `validate`, `test` and `prepare`: names of options are checked before Lightning is imported."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.cli.commands import named_values, with_files
from zoo.runs import configs
from zoo.runs.names import check_names

if TYPE_CHECKING:
    from zoo.model_folder.folder import ModelFolder
    from zoo.runs.options import RunOptions

log = logging.getLogger("zoo")

#: Options that can be given where a run is resumed; all others are the run's.
_WHEN_RESUMED = ("--ckpt_path", "--trainer.max_epochs", "--time_limit", "--help")


def run(command: str, options: Sequence[str], /) -> None:
    """Run `fit`, `validate`, `test` or `prepare`."""
    options = with_files(options)
    given = dict(named_values(options))
    names = [each.partition("=")[0] for each in options if each[:2] == "--"]
    files = [configs.contents(value) for name, value in named_values(options) if name == "--config"]
    named = {part: given.get(f"--{part}", given.get(f"--{part}.class_path")) for part in ("model", "data")}
    source = given.get("--ckpt_path")
    shows_help = "-h" in options or any(name.endswith(("--help", ".help")) for name in names)
    folder, base = None, PlainDict()
    if command in ("validate", "test"):
        check_names(names)
        if source is not None:
            folder, base = _open(source, command, given)
        elif not shows_help:
            raise InputError(f"zoo {command}: name a trained model with --ckpt_path")
    elif source is not None:
        base = _config_of_run(source, names)
    elif not shows_help:
        base = configs.recipe(named["model"], named["data"] is not None, files)
    model, data, classes = configs.classes_of([base, *files, named])
    check_names(names, model, data)
    if source is None and base and model is not None:
        recipe = configs.RECIPES[configs.task_of(model)]
        log.info("no model in --config: %s with the options of `zoo config %s`", model, recipe)

    from zoo.runs.options import RunOptions

    shown = [given[name] for name in ("--model.help", "--data.help") if name in given]
    # The parser also checks the configurations that others override.
    parsed = RunOptions(command, {*classes, *shown}, [base], options)
    if command == "fit":
        _fit(parsed)
    elif command == "prepare":
        parsed.prepare()
    elif folder is not None:
        _evaluate(command, parsed, folder, "--data.memory" in given)


def _fit(options: RunOptions) -> None:
    """Train, and print the answer, the score of the best epoch and the run folder."""
    folder = options.values.run_dir
    if folder is None:
        model = str(options.values.model.class_path).rpartition(".")[2]
        # Runs that a sweep starts in the same second have folders of their own.
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        # Processes that the launcher starts for other devices inherit the name.
        folder = os.environ.setdefault("ZOO_RUN_DIR", f"runs/{model}/{name}")
    try:
        trained = options.fit(Path(folder))
    finally:
        os.environ.pop("ZOO_RUN_DIR", None)
    if trained is not None:
        print(trained.as_text())


def _config_of_run(source: str, names: Sequence[str]) -> PlainDict:
    """Return the configuration of the run that a checkpoint is in, for a command with options of these names."""
    start = f"start a new run from its weights with zoo fit --model.init_from {source}"
    if not Path(source).is_file():
        raise InputError(f"--ckpt_path {source}: a run is resumed from its checkpoints/last.ckpt; or {start}")
    if others := [name for name in names if name not in _WHEN_RESUMED]:
        raise InputError(
            f"{', '.join(others)}: a resumed run has its own options, except --trainer.max_epochs; omit it, or {start}"
        )
    folder = Path(os.path.normpath(Path(source) / ".." / ".."))
    config = folder / "config.yaml"
    if not config.is_file():
        raise InputError(f"{config}: no such file, so the run can't be resumed; {start}")
    return {**configs.contents(config), "run_dir": str(folder)}


def _open(source: str, command: str, given: Mapping[str, str]) -> tuple[ModelFolder, PlainDict]:
    """Open a trained model, and return it with the configuration with which it is evaluated."""
    from datamodules.core.classes import option_defaults
    from datamodules.retrieval import checked_description
    from zoo.loading import check_options, options_of_data
    from zoo.model_folder.folder import ModelFolder
    from zoo.registry import model_class

    folder = ModelFolder.open(source)
    kind, (data, options) = model_class(folder.meta.model), options_of_data(folder)
    check_options(folder.meta.options, option_defaults(kind), folder)
    names_test = any(
        given.get(f"--data.{name}") for name in data.options_type.files if name.startswith("test_")
    )
    if command == "test" and names_test and "test_split" in options:
        options["test_split"] = None  # the file replaces it
    retriever = checked_description(folder.meta.data.retriever, folder.path)
    return folder, {
        "model": {"class_path": kind.__name__, "init_args": folder.meta.options},
        "data": {"class_path": data.__name__, "init_args": {**options, "retriever": retriever}},
    }


def _evaluate(command: str, options: RunOptions, folder: ModelFolder, names_memory: bool) -> None:
    """Evaluate a trained model, print its scores, and write them to the file of `--output`."""
    from datamodules.core.outputs import check_output
    from zoo.runs.evaluation import as_text, evaluate, restore, write

    output = options.values.output
    if output is not None:  # hours of evaluation should not end in a refusal
        files = [value for value in vars(options.values.data.init_args).values() if isinstance(value, str)]
        output = check_output(output, [folder.source, *files])
    model, data, trainer = options.make()
    split = "validation" if command == "validate" else "test"
    restore(model, data, folder, split, names_memory)
    evaluation = evaluate(model, data, split, trainer, lists_errors=output is not None)
    if evaluation is None:
        return
    print(as_text(evaluation))
    if output is not None:
        write(evaluation, output)
