"""`zoo fit`, `validate`, `test` and `prepare`: checks and configuration, before Lightning is imported."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

import callbacks
import datamodules
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.retrieval import checked_description, load_all_retrievers
from zoo.cli import configs
from zoo.cli.options import named_values, user_strings
from zoo.model_folder.folder import ModelFolder
from zoo.registry import MODELS, model_class

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
    folder = None
    if source is not None and command == "fit":
        options, base = _resumed(source, options), {}
    elif source is not None:
        folder = ModelFolder.open(source)
        base = _config_of(folder, command, given)
    else:
        base = {} if "--help" in options else configs.recipe(options)
    strings = user_strings(options)

    from zoo.cli.lightning import ZooCLI

    # Lightning sets these levels when it is imported.
    for name in LIGHTNING_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    _import_classes(strings | {base[name]["class_path"] for name in ("model", "data") if name in base})
    with tempfile.TemporaryDirectory() as place:
        if base:
            # Below the user's own options, which override it.
            file = Path(place) / "base.yaml"
            file.write_text(yaml.safe_dump(base, sort_keys=False))
            options = ["--config", str(file), *options]
        try:
            ZooCLI(command, folder, "--data.memory" in given, options, files or {})
        finally:
            os.environ.pop("ZOO_RUN_DIR", None)


def _resumed(source: str, options: list[str]) -> list[str]:
    """Return the options that resume the run of a checkpoint in its folder, as its configuration describes it."""
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
    from zoo.training.checkpoints import meta_of, read_contents

    meta_of(read_contents(Path(source)), source)  # Lightning reports a damaged one late, with a traceback
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


def _config_of(folder: ModelFolder, command: str, given: dict[str, str]) -> PlainDict:
    """Return a configuration with the model and data of a trained model, for a command with the user's options."""
    from zoo.loading import check_options, class_of, option_names, options_of_data

    kind, (data, options) = class_of(folder), options_of_data(folder)
    check_options(folder.meta.options, option_names(kind), folder)
    names_test = any(
        given.get(f"--data.{name}") for name in data.options_type.files if name.startswith("test_")
    )
    if command == "test" and names_test and "test_split" in options:
        options["test_split"] = None  # the file replaces it
    retriever = checked_description(folder.meta.data.retriever, folder.path)
    return {
        "model": {"class_path": kind.__name__, "init_args": folder.meta.options},
        "data": {"class_path": data.__name__, "init_args": {**options, "retriever": retriever}},
    }
