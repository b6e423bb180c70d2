"""The options of a run: model, data and Lightning's Trainer, from a command line, from files or from Python values."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]
from lightning_fabric.utilities.rank_zero import rank_zero_only

import callbacks
import datamodules
from datamodules.base import DataModule
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.options import DEFAULT_TOKENIZER
from datamodules.retrieval import load_all_retrievers
from zoo.registry import MODELS, model_class
from zoo.runs.parser import Parser
from zoo.runs.process import running
from zoo.runs.run_dir import setting_of
from zoo.runs.training import Trained, TrainerOptions, as_list, check_fit, train
from zoo.tasks.base import Task

_SUMMARIES = {
    "fit": "Train a model.",
    "validate": "Compute the scores of a trained model on validation rows.",
    "test": "Compute the scores of a trained model on a table.",
    "prepare": "Read, index, retrieve and tokenize what a run reads.",
}


class RunOptions:
    """Parsed options: values, and classes by name. `zoo.cli.runs` and `zoo.fit` make them and run them.

    Args:
        command: a key of `_SUMMARIES`.
        classes: names, among which may be those of models and data modules; these are imported.
        layers: configurations, of which later ones override earlier ones.
        arguments: a command line, which overrides them.
    """

    def __init__(
        self, command: str, classes: Iterable[str], layers: Iterable[PlainDict], arguments: Sequence[str] = ()
    ) -> None:
        _import_classes({*classes})
        self.parser = _parser(command)
        if command != "fit" and any(argument.startswith("--time_limit") for argument in arguments):
            raise InputError(f"--time_limit: limits `zoo fit`, not `zoo {command}`; omit it")
        configs = [part for layer in layers if layer for part in ("--config", json.dumps(layer))]
        self.values: Any = self.parser.parse_args([*configs, *arguments])
        for name in ("model", "data"):
            if self.values[name] is None:
                raise InputError(f"--{name}: missing; name one, or omit the other of --model and --data")
        # So that the name of a transformer need not be given twice.
        model, data = (getattr(self.values[name], "init_args", None) for name in ("model", "data"))
        transformer = getattr(model, "transformer", None)
        if transformer is not None and getattr(data, "tokenizer", None) == DEFAULT_TOKENIZER:
            data.tokenizer = transformer  # type: ignore[union-attr]

    def describe(self) -> PlainDict:
        """Return the options as plain values, which `zoo fit --config` reads."""
        return yaml.safe_load(self.parser.dump(self.values, skip_unset=False))

    def make(self) -> tuple[Task, DataModule, TrainerOptions]:
        """Make the model, the data and the objects of the trainer."""
        values = self.values
        with running(values.seed_everything):
            made = self.parser.instantiate(values)
        arguments = {**made.trainer}
        if arguments["enable_progress_bar"] is None and sys.stdout.isatty():
            arguments["enable_progress_bar"] = True  # otherwise, the log has a line for each epoch
        resume = None if values.ckpt_path is None else Path(values.ckpt_path)
        trainer = TrainerOptions(arguments, values.seed_everything, resume, values.time_limit)
        return made.model, made.data, trainer

    def fit(self, run_dir: Path, files: Mapping[str, str] | None = None) -> Trained | None:
        """Train the model that the options describe."""
        values, config = self.values, self.describe()
        artifact, files = None, {**(files or {})}
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            for logger in as_list(values.trainer.logger):
                if getattr(logger, "class_path", "").endswith("WandbLogger"):
                    artifact = self._choose_wandb_run(logger, run_dir, config)
                    files["wandb_id"] = logger.init_args.id
        model, data, trainer = self.make()
        return train(model, data, replace(trainer, artifact=artifact), run_dir, config, files)

    def prepare(self) -> None:
        """Read, index, retrieve and tokenize what the run reads."""
        model, data, trainer = self.make()
        data.seed = trainer.seed
        check_fit(model, data)
        data.prepare_data()

    def _choose_wandb_run(self, logger: Namespace, run_dir: Path, config: PlainDict) -> str | None:
        """Continue the run of a resumed run in W&B; return the name of the artifact that the model becomes there."""
        options, file = logger.init_args, run_dir / "wandb_id"
        before = file.read_text() if self.values.ckpt_path is not None and file.exists() else None
        # The agent of a sweep sets WANDB_RUN_ID.
        options.id = before or options.id or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8]
        if options.group is None and not os.environ.get("WANDB_RUN_GROUP"):
            # Seeds of one setting share a group.
            name = str(self.values.model.class_path).rpartition(".")[2]
            options.group = f"{name}-{setting_of(config)[:8]}"
        options.resume = "allow"
        options.save_dir = str(run_dir.resolve())  # W&B writes from a process of its own
        if options.log_model is not True:
            return None
        if self.values.trainer.enable_checkpointing is False:
            raise InputError(
                "--trainer.logger.log_model: no model to log without checkpoints; omit --trainer.enable_checkpointing"
            )
        # Lightning would upload a checkpoint, without its memory.
        options.log_model = False
        return options.checkpoint_name or f"model-{options.id}"


def _parser(command: str) -> Parser:
    parser = Parser(prog=f"zoo {command}", description=_SUMMARIES[command])
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="a YAML file, or one of `zoo config`")
    parser.add_argument("--seed_everything", type=int, default=0, help="seed of all random numbers")
    parser.add_class_arguments(pl.Trainer, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
    parser.add_subclass_arguments(Task, "model", fail_untyped=False, required=False)
    parser.add_subclass_arguments(DataModule, "data", fail_untyped=False, required=False)
    text = str | None
    parser.add_argument("--run_dir", type=text, help="folder of the run; default: runs/MODEL/DATE-TIME-XXXX")
    parser.add_argument("--output", type=text, help="JSON file for the scores of validate and test")
    parser.add_argument("--ckpt_path", type=text, help="checkpoint to resume; validate, test: trained model")
    seconds = "seconds of fit: the rest of the epochs and dear members are skipped"
    parser.add_argument("--time_limit", type=float | None, help=seconds)
    # Our own sampler distributes batches, exactly.
    parser.set_defaults({"trainer.use_distributed_sampler": False, "trainer.max_epochs": 15})
    return parser


def _import_classes(names: set[str]) -> None:
    """Import callbacks, and the models and data modules that are named: options name them without their modules."""
    load_all_retrievers()
    for name in callbacks.__all__:
        getattr(callbacks, name)
    names = {name.rpartition(".")[2] for name in names}
    for name in names & MODELS.keys() or MODELS:
        model_class(name)
    for name in names & datamodules.MODULES.keys() or datamodules.MODULES:
        datamodules.find(name)
