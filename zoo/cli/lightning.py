"""`zoo fit`, `validate`, `test` and `prepare`: LightningCLI, with a run folder.

They take a model and its data from YAML and from options; any value of the YAML can be overridden by its name.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import time
import uuid
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytorch_lightning as pl
import yaml
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.plugins import CheckpointIO
from typing_extensions import override

import datamodules
import zoo
from callbacks import PredictionTable, RunFolder, StageProgress, Throughput
from callbacks.csv_metrics import CSVMetrics
from datamodules.core.errors import InputError
from datamodules.core.storage import write_json
from datamodules.retrieval import load_all_retrievers, servers_of
from datamodules.words import DEFAULT_TOKENIZER
from zoo.cli.options import given
from zoo.cli.outputs import check_output
from zoo.cli.run_dir import check_run_dir, run_dir
from zoo.cli.scores import as_text
from zoo.saving.checkpoint import (
    CHECKPOINT_KEY,
    WholeCheckpoints,
    making_of,
    model_options,
    read_checkpoint,
    write_checkpoint,
)
from zoo.saving.loading import known_model
from zoo.saving.model_folder import local_model
from zoo.tasks.base import Task
from zoo.training.sharding import is_sharded

log = logging.getLogger("zoo")


class ZooCLI(LightningCLI):
    """LightningCLI with a run folder: configuration, metrics, checkpoints and summary in one place."""

    def __init__(
        self,
        command: str,
        trained: dict[str, Any] | None = None,
        trained_model: str | None = None,
        said: str = "",
        **settings: Any,
    ) -> None:
        """Parse, make and run.

        Args:
            command: fit, validate, test or prepare.
            trained: the data's state in the checkpoint that the command starts from.
            trained_model: the model that the checkpoint is of.
            said: all that the user himself said: his options and what his files of options hold.
            **settings: of LightningCLI.
        """
        self.command = command
        self.trained, self.trained_model = trained, trained_model
        self.said = said
        super().__init__(**settings)

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        # It raises what is wrong with the options; `zoo.cli.errors` says it in one line.
        return super().init_parser(exit_on_error=False, **kwargs)

    @override
    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        # A parser takes half a second to make: none for what was not asked for.
        return {name: skipped for name, skipped in super().subcommands().items() if name == self.command}

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="folder of the run; default: runs/MODEL/DATE-TIME-XXXX",
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
        if self.subcommand in ("fit", None):
            self._name_tokens()
        if self.subcommand != "fit":
            self.run_dir = Path(self._option("run_dir") or ".")
            self._choose_output()
            return
        model = str(self._option("model").class_path).rpartition(".")[2]
        # Processes that the launcher starts again for other devices inherit the name.
        # Runs that a sweep starts in the same second have folders of their own.
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        default = os.environ.setdefault("ZOO_RUN_DIR", f"runs/{model}/{name}")
        self.run_dir = Path(self._option("run_dir") or default)
        for name in ("check_val_every_n_epoch", "accumulate_grad_batches"):
            if (value := self._option("trainer")[name]) is not None and value < 1:
                raise InputError(f"--trainer.{name} {value}: must be 1 or more")
        resumed = self._option("ckpt_path")
        #: whether this run goes on in the folder of the run that it resumes.
        self.resumes = resumed is not None and self.run_dir.resolve() in Path(resumed).resolve().parents
        self.wandb_id: str | None = None
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            check_run_dir(self.run_dir, self.resumes)
            self._choose_wandb_run()

    def _name_tokens(self) -> None:
        """A transformer reads its own tokens: its name need not be given twice."""
        model, data = (getattr(self._option(name), "init_args", None) for name in ("model", "data"))
        transformer = getattr(model, "transformer", None)
        if transformer is not None and getattr(data, "tokenizer", None) == DEFAULT_TOKENIZER:
            data.tokenizer = transformer  # type: ignore[union-attr]

    def _choose_output(self) -> None:
        #: where the scores go; None = nowhere. Looked at before hours of evaluation, not after.
        self.output: Path | None = None
        if self.subcommand is not None and (output := self._option("output")) is not None:
            data = vars(self._option("data").init_args)
            files = [value for value in data.values() if isinstance(value, str)]
            self.output = check_output(output, [self._option("ckpt_path"), *files])

    def _choose_wandb_run(self) -> None:
        """A resumed run goes on in its W&B run: the id is kept in the run folder."""
        loggers = self._option("trainer").logger
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if not hasattr(logger, "class_path") or not logger.class_path.endswith("WandbLogger"):
                continue
            file = self.run_dir / "wandb_id"
            before = file.read_text() if self.resumes and file.exists() else None
            # A sweep's agent has chosen the run.
            given_id = logger.init_args.id or os.environ.get("WANDB_RUN_ID")
            self.wandb_id = before or given_id or uuid.uuid4().hex[:8]
            logger.init_args.id = self.wandb_id
            logger.init_args.resume = "allow"
            logger.init_args.save_dir = str(self.run_dir.resolve())  # W&B writes from a process of its own

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand != "fit":
            with tempfile.TemporaryDirectory() as folder:
                self.model.scores_file = Path(folder) / "scores.json"
                super()._run_subcommand(subcommand)
            return
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            super()._run_subcommand(subcommand)
            return
        with run_dir(self.run_dir, self.resumes):
            if self.wandb_id is not None:
                (self.run_dir / "wandb_id").write_text(self.wandb_id)
            super()._run_subcommand(subcommand)

    @override
    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        # Hours of preparation should not end in a refusal. None is `prepare`; otherwise a checkpoint brings both.
        if self.subcommand in ("fit", None) and isinstance(self.model, Task):
            if self.trained_model not in (None, type(self.model).__name__):
                raise InputError(
                    f"--ckpt_path {self._option('ckpt_path')}: of a {self.trained_model}, but the model is a"
                    f" {type(self.model).__name__}; a run is resumed with its own model (leave out --model), and"
                    " another one starts from its weights by --model.init_from"
                )
            self.model.check_data(self.datamodule)
            if self.subcommand == "fit":
                self.model.resumed_from = self._option("ckpt_path")
            self._remember_start(self.model.options.init_from, self.model.resumed_from is not None)
        if isinstance(self.model, Task) and not self.model.uses_memory and self.datamodule.has_memory:
            log.info("this model reads no memories: none are retrieved")
            self.datamodule.leave_out_memory()
        if self.trained is not None:
            for server in servers_of(self.datamodule.retriever):
                server.trust(
                    url for url in server.urls if _is_host_in(self.said, urlsplit(url).hostname or "")
                )
        if self.subcommand in ("validate", "test") and self.trained is not None:
            name = "validation" if self.subcommand == "validate" else "test"
            if self.datamodule.spec_type is not self.model.spec_type:
                raise InputError(
                    f"--data {type(self.datamodule).__name__}: --ckpt_path {self._option('ckpt_path')} is of a"
                    f" {self.trained_model}, which it is not for; leave the option out"
                )
            self.datamodule.check_split(self.trained, name, f"--ckpt_path {self._option('ckpt_path')}")
            self.datamodule.remember(self.trained)
            self.datamodule.use_memory_of(self.trained)

    def _remember_start(self, start: str | None, resumes: bool) -> None:
        """What the model that this one starts from was trained on, this one has seen, too; its words are kept."""
        if start is None:
            return
        if (place := local_model(start)).exists():
            state = read_checkpoint(place)[CHECKPOINT_KEY]["data"]
            self.datamodule.check_split(state, "validation", f"model.init_from={start}")
        elif resumes and self.trained is not None:  # it has gone, but the resumed run remembers
            state = self.trained
        else:
            raise InputError(f"model.init_from={start}: no such checkpoint")
        self.datamodule.remember(state)
        self.datamodule.keep_words(state)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        # The loggers and callbacks of a run folder beside what the user configured.
        configured = self._get(self.config_init, "trainer")
        logger = configured.get("logger")
        chosen = configured.get("callbacks") or []
        callbacks: list[Callback] = [chosen] if isinstance(chosen, Callback) else list(chosen)
        if self.subcommand != "fit":
            if logger is None:
                kwargs["logger"] = False
            return super().instantiate_trainer(**kwargs, enable_checkpointing=False)
        if logger is not False and not configured.get("fast_dev_run"):
            loggers = [] if logger in (None, True) else logger if isinstance(logger, list) else [logger]
            kwargs["logger"] = [CSVMetrics(self.run_dir), *loggers]
            has_table = any(isinstance(callback, PredictionTable) for callback in callbacks)
            # One process predicts for it, which holds a part of the weights only where these are cut.
            is_cut = is_sharded(configured.get("strategy"))
            if any(isinstance(item, WandbLogger) for item in loggers) and not has_table and not is_cut:
                callbacks.append(PredictionTable())
        plugins = configured.get("plugins") or []
        plugins = [*plugins] if isinstance(plugins, (list, tuple)) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            kwargs["plugins"] = [*plugins, WholeCheckpoints()]
        config = yaml.safe_load(
            self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)
        )
        callbacks += [RunFolder(self.run_dir, config), Throughput()]
        if configured.get("enable_progress_bar") is not False and hasattr(self.model, "stage"):
            callbacks.append(StageProgress())
        if configured.get("enable_checkpointing") is not False:
            folder = self.run_dir / "checkpoints"
            callbacks += [
                ModelCheckpoint(
                    folder,
                    filename="best",
                    monitor=None if getattr(self.model, "keeps_best", False) else self.datamodule.monitor,
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
        """Say where the run is, and what its best epoch has reached."""
        if not self.trainer.is_global_zero:
            return
        best: Any = self.trainer.checkpoint_callback
        score = getattr(best, "best_model_score", None)
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger):
                if score is not None:  # W&B would rank runs, and a sweep its trials, by their last epochs
                    logger.experiment.summary[best.monitor] = float(score)
                logger.experiment.finish()  # or the next run of this process would go on in it
        if score is not None:
            print(f"best {best.monitor} {float(score):.4f}")
        if best is not None:
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
        scores: dict[str, Any] = {
            name.removeprefix(f"{stage}/"): float(value)
            for name, value in self.trainer.callback_metrics.items()
        }
        answer, classes = None, {}
        if isinstance(self.model, Task):
            assert self.model.scores_file is not None
            single = json.loads(self.model.scores_file.read_text(encoding="utf-8"))
            classes = single["classes"]
            answer, scores = self.model.answer_of({**scores, **classes})
            if single["queries"]:
                scores["by_query"] = single["queries"]
        numbers = {name: value for name, value in scores.items() if isinstance(value, float)}
        print(as_text({name: numbers[name] for name in numbers if name not in classes}, classes))
        if answer is not None:
            print(f"\n{answer.as_text()}")
        if self.output is not None:
            write_json(self.output, scores if answer is None else {**scores, "answer": answer.as_json()})
            if answer is not None:
                answer.write(self.output.parent, f"{self.output.stem}_answer")


def run(command: str, options: list[str]) -> None:
    """Run `fit`, `validate`, `test` or `prepare`."""
    # Seeds, devices that were not found, and offers of the makers' services.
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # So that options can name them.
    load_all_retrievers()
    import_module("zoo.tasks.retrieval.refreshed_negatives")
    zoo.list_models()
    for name in datamodules.MODULES:
        datamodules.find(name)
    for option in given(options):
        if option.partition(".")[0] in ("--optimizer", "--lr_scheduler"):
            raise InputError(f"{option}: it is the model's; write --model.{option.removeprefix('--')}")
    checkpoint = given(options).get("--ckpt_path")
    if checkpoint is None and command in ("validate", "test") and "--help" not in options:
        raise InputError(f"zoo {command}: name a trained model with --ckpt_path")
    with tempfile.TemporaryDirectory() as folder:
        trained, trained_model, said = None, None, _said(options)
        if checkpoint is not None:
            contents = read_checkpoint(checkpoint)
            known_model(contents, checkpoint)
            if not Path(checkpoint).is_file():
                if command == "fit":
                    raise InputError(
                        f"--ckpt_path {checkpoint}: a run is resumed from a file, such as checkpoints/last.ckpt; to"
                        " start a new one from this model, write --model.init_from"
                    )
                # Lightning reads files.
                checkpoint = str(Path(folder) / "model.ckpt")
                write_checkpoint(contents, Path(checkpoint))
                options = [*options, "--ckpt_path", checkpoint]
            trained, trained_model = contents[CHECKPOINT_KEY]["data"], contents[CHECKPOINT_KEY]["model"]
            file = Path(folder) / "checkpoint.yaml"
            with making_of(checkpoint):
                config = _config_of(contents, command, options)
            file.write_text(yaml.safe_dump(config, sort_keys=False))
            options = ["--config", str(file), *options]
        settings: dict[str, Any] = {
            "command": command,
            "trained": trained,
            "trained_model": trained_model,
            "said": said,
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
                # What Lightning would print of scores, `_write_scores` does, shorter.
                quiet = [] if command == "fit" else ["--verbose", "false"]
                ZooCLI(args=[command, "--weights_only", "true", *quiet, *options], **settings)
            finally:
                os.environ.pop("ZOO_RUN_DIR", None)


def _is_host_in(said: str, host: str) -> bool:
    """Whether a URL in a text is of the host."""
    return re.search(rf"(//|@){re.escape(host)}(?![\w.-])", said) is not None


def _said(options: Sequence[str]) -> str:
    """The user's options, and what is in the files of options that they name."""
    values = [
        item.partition("=")[2] or after for item, after in pairwise([*options, ""]) if "--config" in item
    ]
    files = [Path(value) for value in values if value and "\0" not in value]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if os.path.isfile(file)]
    return "\n".join([*options, *texts])


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
