"""`zoo fit`, `validate`, `test` and `prepare`: LightningCLI, with a run folder.

They take a model and its data from YAML and from options; any value of the YAML can be overridden by its name.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

import datamodules
import zoo
from callbacks import PredictionTable, RunFolder, Throughput
from callbacks.csv_metrics import CSVMetrics
from datamodules.errors import InputError
from datamodules.retrieval import load_all_retrievers
from datamodules.storage import named_disk_errors, write_json
from zoo.cli.options import given
from zoo.loading import known_model
from zoo.tasks.base import Task
from zoo.tasks.checkpoint import CHECKPOINT_KEY, model_options, read_checkpoint

log = logging.getLogger("zoo")


class ZooCLI(LightningCLI):
    """LightningCLI with a run folder: configuration, metrics, checkpoints and summary in one place."""

    def __init__(self, trained: dict[str, Any] | None = None, **settings: Any) -> None:
        """Parse, make and run.

        Args:
            trained: the data's state in the checkpoint that the command starts from.
            **settings: of LightningCLI.
        """
        self.trained = trained
        super().__init__(**settings)

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        # It raises what is wrong with the options; `zoo.cli.errors` says it in one line.
        return super().init_parser(exit_on_error=False, **kwargs)

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="folder of the run; default: runs/MODEL/DATE-TIME",
        )
        parser.add_argument(
            "--output", type=str | None, default=None, help="JSON file for the metrics of validate and test"
        )
        # Batches are dealt out by our own sampler, exactly.
        parser.set_defaults({"trainer.use_distributed_sampler": False, "trainer.max_epochs": 15})

    def _option(self, name: str) -> Any:
        return self._get(self.config, name)

    @override
    def before_instantiate_classes(self) -> None:
        # Choose the run folder and the W&B run.
        if self.subcommand != "fit":
            self.run_dir = Path(self._option("run_dir") or ".")
            return
        model = str(self._option("model").class_path).rpartition(".")[2]
        # Processes that the launcher starts again for other devices inherit the name.
        default = os.environ.setdefault("ZOO_RUN_DIR", f"runs/{model}/{time.strftime('%Y%m%d-%H%M%S')}")
        self.run_dir = Path(self._option("run_dir") or default)
        if self.run_dir.exists() and not self.run_dir.is_dir():
            raise InputError(f"--run_dir {self.run_dir}: is a file; name a folder")
        resumed = self._option("ckpt_path")
        #: whether this run goes on in the folder of the run that it resumes.
        self.resumes = resumed is not None and self.run_dir.resolve() in Path(resumed).resolve().parents
        self.wandb_id: str | None = None
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            self._choose_wandb_run()

    def _choose_wandb_run(self) -> None:
        """A resumed run goes on in its W&B run: the id is kept in the run folder."""
        loggers = self._option("trainer").logger
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if not hasattr(logger, "class_path") or not logger.class_path.endswith("WandbLogger"):
                continue
            file = self.run_dir / "wandb_id"
            before = file.read_text() if self.resumes and file.exists() else None
            self.wandb_id = before or logger.init_args.id or uuid.uuid4().hex[:8]
            logger.init_args.id = self.wandb_id
            logger.init_args.resume = "allow"
            logger.init_args.save_dir = str(self.run_dir.resolve())  # W&B writes from a process of its own

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        # A fit that is refused before it starts leaves the run folder as it was.
        if subcommand != "fit" or rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            super()._run_subcommand(subcommand)
            return
        earlier = self._make_room()
        try:
            super()._run_subcommand(subcommand)
        finally:
            # The configuration is the first file that a run writes when it starts.
            if not self.resumes and not (self.run_dir / "config.yaml").exists():
                shutil.rmtree(self.run_dir, ignore_errors=True)
                if earlier is not None:
                    earlier.rename(self.run_dir)
            elif earlier is not None:
                print(f"{self.run_dir} held an earlier run; it is now {earlier}", file=sys.stderr)

    def _make_room(self) -> Path | None:
        """Move an earlier run out of the way, unless this one resumes it: no run is ever overwritten.

        Returns:
            Where the earlier run is now; None if there was none.
        """
        earlier = None
        with named_disk_errors(self.run_dir, "--run_dir"):
            if not self.resumes and self.run_dir.exists() and any(self.run_dir.iterdir()):
                number = 1
                while (kept := self.run_dir.with_name(f"{self.run_dir.name}.{number}")).exists():
                    number += 1
                earlier = self.run_dir.rename(kept)
            self.run_dir.mkdir(parents=True, exist_ok=True)
            if self.wandb_id is not None:
                (self.run_dir / "wandb_id").write_text(self.wandb_id)
        return earlier

    @override
    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        # Hours of preparation should not end in a refusal. None is `prepare`; otherwise a checkpoint brings both.
        if self.subcommand in ("fit", None) and isinstance(self.model, Task):
            self.model.check_data(self.datamodule)
            resumes = self.subcommand == "fit" and self._option("ckpt_path")
            self._remember_start(self.model.options.init_from, bool(resumes))
        if isinstance(self.model, Task) and not self.model.uses_memory and self.datamodule.has_memory:
            log.info("this model reads no memories: none are retrieved")
            self.datamodule.leave_out_memory()
        if self.subcommand in ("validate", "test") and self.trained is not None:
            name = "validation" if self.subcommand == "validate" else "test"
            self.datamodule.check_split(self.trained, name, f"--ckpt_path {self._option('ckpt_path')}")
            self.datamodule.remember(self.trained)
            self.datamodule.use_memory_of(self.trained)

    def _remember_start(self, start: str | None, resumes: bool) -> None:
        """What the model that this one starts from was trained on, this one has seen, too."""
        if start is None:
            return
        if Path(start).is_file():
            state = read_checkpoint(start)[CHECKPOINT_KEY]["data"]
            self.datamodule.check_split(state, "validation", f"model.init_from={start}")
        elif resumes and self.trained is not None:  # it has gone, but the resumed run remembers
            state = self.trained
        else:
            raise InputError(f"model.init_from={start}: no such checkpoint")
        self.datamodule.remember(state)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        # The loggers and callbacks of a run folder beside what the user configured.
        configured = self._get(self.config_init, "trainer")
        logger = configured.get("logger")
        callbacks: list[Callback] = list(configured.get("callbacks") or [])
        if self.subcommand != "fit":
            if logger is None:
                kwargs["logger"] = False
            return super().instantiate_trainer(**kwargs, enable_checkpointing=False)
        if logger is not False and not configured.get("fast_dev_run"):
            loggers = [] if logger in (None, True) else logger if isinstance(logger, list) else [logger]
            kwargs["logger"] = [CSVMetrics(self.run_dir), *loggers]
            if any(isinstance(item, WandbLogger) for item in loggers):
                callbacks.append(PredictionTable())
        config = yaml.safe_load(
            self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)
        )
        callbacks += [RunFolder(self.run_dir, config), Throughput()]
        if configured.get("enable_checkpointing") is not False:
            folder = self.run_dir / "checkpoints"
            callbacks += [
                ModelCheckpoint(
                    folder,
                    filename="best",
                    monitor=self.datamodule.monitor,
                    mode="max",
                    enable_version_counter=False,
                ),
                ModelCheckpoint(folder, filename="last", enable_version_counter=False),
            ]
        return super().instantiate_trainer(default_root_dir=self.run_dir, callbacks=callbacks, **kwargs)

    @override
    def _parse_ckpt_path(self) -> None:
        # LightningCLI would overlay the checkpoint's arguments on the command line's. `_with_checkpoint`
        # puts them below it instead, with the data's.
        pass

    def after_fit(self) -> None:  # LightningCLI calls it by its name
        """Say where the run is."""
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger) and self.trainer.is_global_zero:
                logger.experiment.finish()  # or the next run of this process would go on in it
        if self.trainer.is_global_zero and self.trainer.checkpoint_callback is not None:
            best = self.trainer.checkpoint_callback
            if isinstance(best, ModelCheckpoint) and best.best_model_score is not None:
                print(f"best {best.monitor} {float(best.best_model_score):.4f}")
            print(f"run folder: {self.run_dir}")

    def after_validate(self) -> None:
        """Write the scores."""
        self._write_scores("val")

    def after_test(self) -> None:
        """Write the scores."""
        self._write_scores("test")

    def _write_scores(self, stage: str) -> None:
        if not self.trainer.is_global_zero:
            return
        scores = {
            name.removeprefix(f"{stage}/"): float(value)
            for name, value in self.trainer.callback_metrics.items()
        }
        if (output := self._option("output")) is not None:
            path = Path(output)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, scores)


def run(command: str, options: list[str]) -> None:
    """Run `fit`, `validate`, `test` or `prepare`."""
    # Seeds, devices that were not found, and offers of the makers' services.
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # So that options can name them.
    load_all_retrievers()
    zoo.list_models()
    for name in datamodules.MODULES:
        datamodules.find(name)
    checkpoint = given(options).get("--ckpt_path")
    if checkpoint is None and command in ("validate", "test") and "--help" not in options:
        raise InputError(f"zoo {command}: name a trained model with --ckpt_path")
    with tempfile.TemporaryDirectory() as folder:
        trained = None
        if checkpoint is not None:
            contents = read_checkpoint(checkpoint)
            known_model(contents, checkpoint)
            trained = contents[CHECKPOINT_KEY]["data"]
            file = Path(folder) / "checkpoint.yaml"
            file.write_text(yaml.safe_dump(_config_of(contents, command, options), sort_keys=False))
            options = ["--config", str(file), *options]
        settings: dict[str, Any] = {
            "trained": trained,
            "model_class": pl.LightningModule,
            "datamodule_class": pl.LightningDataModule,
            "subclass_mode_model": True,
            "subclass_mode_data": True,
            "save_config_callback": None,
            "seed_everything_default": 0,
        }
        if command == "prepare":
            cli = ZooCLI(args=options, run=False, **settings)
            cli.datamodule.prepare_data()
        else:
            try:
                ZooCLI(args=[command, *options, "--weights_only", "true"], **settings)
            finally:
                os.environ.pop("ZOO_RUN_DIR", None)


def _config_of(contents: dict[str, Any], command: str, options: Sequence[str]) -> dict[str, Any]:
    """A configuration that sets model and data as a checkpoint says; the user's own options come after it."""
    ours = contents[CHECKPOINT_KEY]
    state = ours["data"]
    data = datamodules.find(state["class"])
    if command in ("validate", "test"):
        named = {name.removeprefix("--data."): value for name, value in given(options).items()}
        init_args = data.options_after_training(state, command, named)
    else:
        # Runs from before copies were kept together split without.
        init_args = {"split_copies": True, **state["options"], "retriever": state["retriever"]}
    return {
        "model": {"class_path": ours["model"], "init_args": model_options(contents)},
        "data": {"class_path": data.__name__, "init_args": init_args},
    }
