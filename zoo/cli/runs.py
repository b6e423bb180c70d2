"""`zoo fit`, `validate`, `test` and `prepare`: checks and configuration, before Lightning is imported."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path

import yaml

import callbacks
import datamodules
from datamodules.core.errors import InputError, excerpt
from datamodules.core.types import PlainDict
from datamodules.retrieval import checked_description, load_all_retrievers
from datamodules.state import options_to_evaluate
from zoo.cli import configs
from zoo.cli.options import named_values, user_strings
from zoo.registry import MODELS, model_class
from zoo.saving.checkpoint import explained_by
from zoo.saving.saved_model import SavedModel, option_names

log = logging.getLogger("zoo")

#: Options that can be given where a run is resumed; all others are the run's.
_WHEN_RESUMED = ("--ckpt_path", "--trainer.max_epochs", "--help")

#: They log seeds, missing devices and advertisements.
LIGHTNING_LOGGERS = ("pytorch_lightning", "lightning_fabric")


def run(command: str, options: list[str], files: Mapping[str, str] | None = None) -> None:
    """Run `fit`, `validate`, `test` or `prepare`; `files` are written into the run folder when it is made."""
    options = configs.with_files(options)
    given = dict(named_values(options))
    for option in given:
        if option.partition(".")[0] in ("--optimizer", "--lr_scheduler"):
            raise InputError(f"{option}: belongs to the model; write --model.{option.removeprefix('--')}")
    source = given.get("--ckpt_path")
    if source is None and command in ("validate", "test") and "--help" not in options:
        raise InputError(f"zoo {command}: name a trained model with --ckpt_path")
    saved = None if source is None else SavedModel.open(source)
    if saved is not None and command == "fit":
        options = _resumed(saved, options)
    strings = user_strings(options)
    if saved is not None and command != "fit":
        base = _config_of(saved, command, given)
    else:
        base = {} if saved is not None or "--help" in options else configs.recipe(options)

    from zoo.cli.lightning import ZooCLI

    # Lightning sets these levels when it is imported.
    for name in LIGHTNING_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    _import_classes(strings | {base[name]["class_path"] for name in ("model", "data") if name in base})
    with tempfile.TemporaryDirectory() as folder:
        if base:
            # Below the user's own options, which override it.
            file = Path(folder) / "base.yaml"
            file.write_text(yaml.safe_dump(base, sort_keys=False))
            options = ["--config", str(file), *options]
        try:
            ZooCLI(command, saved, options, files or {})
        finally:
            os.environ.pop("ZOO_RUN_DIR", None)


def _resumed(saved: SavedModel, options: list[str]) -> list[str]:
    """Return the options that resume the run of a checkpoint in its folder, as its configuration describes it."""
    source = saved.source
    start = f"start a new run from its weights with zoo fit --model.init_from {source}"
    if not Path(source).is_file():
        raise InputError(f"--ckpt_path {source}: a run is resumed from its checkpoints/last.ckpt; or {start}")
    names = (option.partition("=")[0] for option in options if option.startswith("--"))
    if others := [name for name in names if name not in _WHEN_RESUMED]:
        raise InputError(
            f"{', '.join(others)}: a resumed run has its own options, and only --trainer.max_epochs can be given; omit"
            f" the others, or {start}"
        )
    folder = Path(os.path.normpath(Path(source) / ".." / ".."))
    config = folder / "config.yaml"
    if not config.is_file():
        raise InputError(f"{config}: no such file, so the run can't be resumed; {start}")
    if not saved.is_own:
        raise InputError(f"--ckpt_path {source}: is not a checkpoint of your own runs; {start}")
    return ["--config", str(config), *options, "--run_dir", str(folder)]


def _import_classes(strings: set[str]) -> None:
    """Import callbacks, and the models and data modules that are named: options name them without their modules."""
    load_all_retrievers()
    for name in callbacks.__all__:
        getattr(callbacks, name)
    names = {string.rpartition(".")[2] for string in strings}
    for name in names & MODELS.keys() or MODELS:
        model_class(name)
    for name in names & datamodules.MODULES.keys() or datamodules.MODULES:
        datamodules.find(name)


def _config_of(saved: SavedModel, command: str, given: dict[str, str]) -> PlainDict:
    """Return a configuration with the model and data of a checkpoint, for a command with the user's options."""
    # `ZooCLI` opens the memory, which the user may name in a file of --config.
    state, data = saved.state(names_memory=True), saved.data_kind
    if saved.path.is_file() and not saved.is_own:
        log.info(
            "%s: is not a checkpoint of your own runs, so the files that its options name are not read"
            " (README, 'Share, compare, scale')",
            saved.source,
        )
    options = state.options
    if command in ("validate", "test"):
        named = {name.removeprefix("--data."): value for name, value in given.items()}
        options = options_to_evaluate(state, data.options_type, command, named)
    with explained_by(saved.source):
        _check_names(saved.options, option_names(saved.kind))
        _check_names(options, [field.name for field in fields(data.options_type)])
        retriever = checked_description(state.retriever, saved.stranger)
    return {
        "model": {"class_path": saved.kind.__name__, "init_args": saved.options},
        "data": {"class_path": data.__name__, "init_args": {**options, "retriever": retriever}},
    }


def _check_names(options: PlainDict, names: Collection[str]) -> None:
    """Refuse options that a class does not have: the parser would import a class that `optimizer.class_path` names."""
    if unknown := sorted(options.keys() - {*names}):
        raise InputError(f"has options that this version does not have: {excerpt(', '.join(unknown))}")
