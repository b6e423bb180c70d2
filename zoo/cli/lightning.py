"""LightningCLI with a run folder, for `zoo.cli.runs`."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.plugins import CheckpointIO
from typing_extensions import override

from callbacks import PredictionTable, RunFolder, Throughput
from callbacks.chart import write_table
from callbacks.csv_metrics import CSVMetrics
from callbacks.pictures import write_picture
from datamodules.base import AnyDataModule
from datamodules.core.errors import InputError
from datamodules.core.outputs import check_output
from datamodules.core.storage import write_json, write_text
from datamodules.core.types import PlainDict
from datamodules.options import DEFAULT_TOKENIZER
from datamodules.state import DataState, check_split
from zoo.cli.run_dir import check_run_dir, run_dir, setting_of
from zoo.cli.scores import as_text
from zoo.ensemble.answer import Answer
from zoo.runs.finishing import fit
from zoo.saving.checkpoint import explained_by
from zoo.saving.run_folder import draw_training, read_run
from zoo.saving.saved_model import SavedModel
from zoo.saving.sharing import log_run
from zoo.tasks.base import Task
from zoo.tasks.classification.calibration import Calibration
from zoo.training.checkpoint_io import WholeCheckpoints

log = logging.getLogger("zoo")


class ZooCLI(LightningCLI):
    """LightningCLI with a run folder: configuration, metrics, checkpoints and summary in one place."""

    def __init__(
        self,
        command: str,
        saved: SavedModel | None,
        options: list[str],
        files: Mapping[str, str],
    ) -> None:
        """Run a command from the model `saved`; `files` are texts of files for the run folder, by name."""
        self.command, self.saved, self.files = command, saved, files
        is_run = command != "prepare"
        if is_run:
            # `_write_scores` prints the scores, more briefly than Lightning.
            quiet = [] if command == "fit" else ["--verbose", "false"]
            options = [command, "--weights_only", "true", *quiet, *options]
        super().__init__(
            pl.LightningModule,
            pl.LightningDataModule,
            save_config_callback=None,
            seed_everything_default=0,
            subclass_mode_model=True,
            subclass_mode_data=True,
            args=options,
            run=is_run,
        )
        if not is_run:
            self.datamodule.prepare_data()

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        # It raises an error, which `zoo.cli.errors` explains in one line.
        return super().init_parser(exit_on_error=False, **kwargs)

    @override
    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        # Making a parser takes half a second: only for the command that runs.
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
        # Our own sampler distributes batches, exactly.
        parser.set_defaults({"trainer.use_distributed_sampler": False, "trainer.max_epochs": 15})

    @override
    def _parse_ckpt_path(self) -> None:
        # LightningCLI would put the checkpoint's arguments above those of the command line; `_config_of` is below them.
        pass

    def _option(self, name: str) -> Any:
        return self._get(self.config, name)

    @override
    def before_instantiate_classes(self) -> None:
        if self.subcommand in ("fit", None):
            self._name_tokens()
        if self.subcommand != "fit":
            self.run_dir = Path(self._option("run_dir") or ".")
            self._choose_output()
            return
        model = str(self._option("model").class_path).rpartition(".")[2]
        # Runs that a sweep starts in the same second have folders of their own.
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        # Processes that the launcher starts for other devices inherit the name.
        default = os.environ.setdefault("ZOO_RUN_DIR", f"runs/{model}/{name}")
        self.run_dir = Path(self._option("run_dir") or default)
        for name in ("check_val_every_n_epoch", "accumulate_grad_batches"):
            if (value := self._option("trainer")[name]) is not None and value < 1:
                raise InputError(f"--trainer.{name} {value}: must be 1 or more")
        self.resumes = self._option("ckpt_path") is not None
        #: as the user gave it: a run that repeats this one has an id of its own in W&B.
        self.recorded: PlainDict = yaml.safe_load(
            self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)
        )
        self.wandb_id: str | None = None
        #: name of the artifact that the model becomes in W&B; None = none.
        self.artifact: str | None = None
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            check_run_dir(self.run_dir, self.resumes)
            self._choose_wandb_run(model)

    def _name_tokens(self) -> None:
        """Set the tokenizer of a transformer, so that its name need not be given twice."""
        model, data = (getattr(self._option(name), "init_args", None) for name in ("model", "data"))
        transformer = getattr(model, "transformer", None)
        if transformer is not None and getattr(data, "tokenizer", None) == DEFAULT_TOKENIZER:
            data.tokenizer = transformer  # type: ignore[union-attr]

    def _choose_output(self) -> None:
        #: file of the scores; None = none. Checked before hours of evaluation, not after.
        self.output: Path | None = None
        if self.subcommand is not None and (output := self._option("output")) is not None:
            data = vars(self._option("data").init_args)
            files = [value for value in data.values() if isinstance(value, str)]
            self.output = check_output(output, [self._option("ckpt_path"), *files])

    def _choose_wandb_run(self, model: str) -> None:
        """Continue the W&B run of a resumed run, whose id is in the run folder; seeds of one setting share a group."""
        loggers = self._option("trainer").logger
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if not hasattr(logger, "class_path") or not logger.class_path.endswith("WandbLogger"):
                continue
            file = self.run_dir / "wandb_id"
            before = file.read_text() if self.resumes and file.exists() else None
            # The agent of a sweep sets WANDB_RUN_ID.
            self.wandb_id = (
                before or logger.init_args.id or os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8]
            )
            logger.init_args.id = self.wandb_id
            if logger.init_args.group is None and not os.environ.get("WANDB_RUN_GROUP"):
                logger.init_args.group = f"{model}-{setting_of(self.recorded)[:8]}"
            if logger.init_args.log_model is True:
                # Lightning would upload a checkpoint, without its memory.
                logger.init_args.log_model = False
                self.artifact = logger.init_args.checkpoint_name or f"model-{self.wandb_id}"
                if self._option("trainer").enable_checkpointing is False:
                    raise InputError(
                        "--trainer.logger.log_model: there is no model to log without checkpoints; omit"
                        " --trainer.enable_checkpointing"
                    )
            logger.init_args.resume = "allow"
            logger.init_args.save_dir = str(self.run_dir.resolve())  # W&B writes from a process of its own

    @override
    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        model, data = self.model, self.datamodule
        # Hours of preparation should not end in a refusal. None is `prepare`.
        if self.subcommand in ("fit", None) and isinstance(model, Task):
            self._check_fit(model)
        if isinstance(model, Task) and not model.uses_memory and data.has_memory:
            log.info("this model reads no memories: none are retrieved")
            data.disable_memory()
        if self.saved is None:
            return
        if self.subcommand in ("validate", "test"):
            self._restore(self.saved)

    def _check_fit(self, model: Task) -> None:
        """Refuse a model that does not fit the data, and take what it starts from into account."""
        model.check_data(self.datamodule)
        if model.init_from is None:
            return
        # The rows that the other model was trained on count as seen, and its words are kept.
        state = self._state_of_start(model.init_from)
        check_split(self.datamodule, state, "validation", f"model.init_from={model.init_from}")
        self.datamodule.duplicates.remember(state.seen)
        self.datamodule.words.keep(state.vocabulary)

    def _state_of_start(self, start: str) -> DataState:
        try:
            return SavedModel.open(start).checkpoint.data
        except InputError:
            if self.saved is None or Path(start).exists():
                raise
            # The checkpoint has this state, even if the other model has been deleted.
            return self.saved.checkpoint.data

    def _restore(self, saved: SavedModel) -> None:
        """Give the trained weights to the model, and its memory to the data."""
        model, data = self.model, self.datamodule
        trained = saved.state(names_memory=True)
        names_memory = data.memory is not None and data.options.memory != trained.options.get("memory")
        # An index that the user names is a memory, too.
        state = saved.state(names_memory or data.retriever.existing_index is not None)
        source = f"--ckpt_path {saved.source}"
        if data.spec_type is not model.spec_type:
            raise InputError(
                f"--data {type(data).__name__}: {source} is a {saved.checkpoint.model}, which takes other data; omit"
                " the option"
            )
        split = "validation" if self.subcommand == "validate" else "test"
        check_split(data, saved.checkpoint.data, split, source)
        with explained_by(source):
            model.restore(saved.checkpoint)
            data.duplicates.remember(state.seen)
        if data.memory is not None and not names_memory:
            data.memory.use(state.memory)
            if data.has_memory and saved.fitted_weights():
                saved.use_fitted_weights(model, data.memory.opened)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        # The loggers and callbacks of a run folder are added to those that the user configured.
        configured = self._get(self.config_init, "trainer")
        logger = configured.get("logger")
        chosen = configured.get("callbacks") or []
        callbacks: list[Callback] = [chosen] if isinstance(chosen, Callback) else list(chosen)
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if configured.get("enable_progress_bar") is None and not has_bar and not sys.stdout.isatty():
            kwargs["enable_progress_bar"] = False  # the log has a line for each epoch
        if configured.get("enable_model_summary") is None:
            kwargs["enable_model_summary"] = False  # `summary.json` has the number of parameters
        if self.subcommand != "fit":
            if logger is None:
                kwargs["logger"] = False
            return super().instantiate_trainer(**kwargs, enable_checkpointing=False)
        if logger is not False and not configured.get("fast_dev_run"):
            loggers = [] if logger in (None, True) else logger if isinstance(logger, list) else [logger]
            kwargs["logger"] = [CSVMetrics(self.run_dir), *loggers]
            has_table = any(isinstance(callback, PredictionTable) for callback in callbacks)
            if any(isinstance(each, WandbLogger) for each in loggers) and not has_table:
                callbacks.append(PredictionTable())
        plugins = configured.get("plugins") or []
        plugins = [*plugins] if isinstance(plugins, (list, tuple)) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            kwargs["plugins"] = [*plugins, WholeCheckpoints()]
        callbacks += [RunFolder(self.run_dir, self.recorded), Throughput()]
        if configured.get("enable_checkpointing") is not False:
            callbacks += self._checkpoint_callbacks()
        return super().instantiate_trainer(default_root_dir=self.run_dir, callbacks=callbacks, **kwargs)

    def _checkpoint_callbacks(self) -> list[Callback]:
        folder = self.run_dir / "checkpoints"
        monitor = getattr(self.model, "monitor", None) or self.datamodule.monitor
        return [
            ModelCheckpoint(folder, "best", monitor=monitor, mode="max", enable_version_counter=False),
            ModelCheckpoint(folder, "last", enable_version_counter=False),
        ]

    @override
    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        arguments = super()._prepare_subcommand_kwargs(subcommand)
        if self.saved is not None and subcommand != "fit":
            arguments["ckpt_path"] = None  # `_restore` has given the weights to the model
        return arguments

    def fit(self, model: Task, datamodule: AnyDataModule, ckpt_path: str | None, **_: Any) -> None:
        """Train and finish the model; LightningCLI calls it by its name."""
        fit(self.trainer, model, datamodule, ckpt_path)

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand != "fit":
            with tempfile.TemporaryDirectory() as folder:
                if isinstance(self.model, Task):
                    self.model.evaluation.file = Path(folder) / "scores.json"
                    self.model.evaluation.lists_errors = self.output is not None
                super()._run_subcommand(subcommand)
            return
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            super()._run_subcommand(subcommand)
            return
        with run_dir(self.run_dir, self.resumes):
            for name, text in self.files.items():
                write_text(self.run_dir / name, text, "--run_dir")
            if self.wandb_id is not None:
                (self.run_dir / "wandb_id").write_text(self.wandb_id)
            super()._run_subcommand(subcommand)

    def after_fit(self) -> None:  # LightningCLI calls it by its name
        """Print the run folder, and the score of the best epoch."""
        if not self.trainer.is_global_zero:
            return
        best: Any = self.trainer.checkpoint_callback
        score = getattr(best, "best_model_score", None)
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger):
                if score is not None:  # W&B would rank runs, and a sweep its trials, by their last epochs
                    logger.experiment.summary[best.monitor] = float(score)
                if self.artifact is not None:
                    log_run(logger.experiment, self.run_dir, self.artifact)
                logger.experiment.finish()  # the next run of this process is another one
        if score is not None:
            print(f"best {best.monitor} {float(score):.4f}")
        # One epoch is no curve, and a run without a logger has no figures.
        has_curves = self.trainer.current_epoch > 1 and (self.run_dir / "metrics.csv").exists()
        if has_curves and isinstance(self.model, Task):
            metrics = [f"val/{name}" for name in self.model.shown]
            write_picture(
                self.run_dir / "training.png", lambda: draw_training(read_run(self.run_dir), metrics)
            )
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
        metrics = self.trainer.callback_metrics.items()
        scores = {name.removeprefix(f"{stage}/"): float(value) for name, value in metrics}
        classes: dict[str, float] = {}
        queries: dict[str, float] = {}
        answer: Answer | None = None
        calibration: Calibration | None = None
        errors: PlainDict | None = None
        if isinstance(self.model, Task):
            assert self.model.evaluation.file is not None
            evaluation = json.loads(self.model.evaluation.file.read_text(encoding="utf-8"))
            classes, queries = evaluation["classes"], evaluation["queries"]
            if evaluation["table"]:
                answer = Answer.of(evaluation["table"])
            errors = evaluation["errors"] or None
            if evaluation["calibration"]:
                calibration = Calibration.from_dict(evaluation["calibration"])
        scores |= classes
        print(as_text({name: scores[name] for name in scores if name not in classes}, classes))
        output: PlainDict = {**scores, **({"by_query": queries} if queries else {})}
        if answer is not None:
            print(f"\n{answer.as_markdown()}")
            output["answer"] = answer.as_json()
        if calibration is not None:
            print(f"\n{calibration.as_markdown()}")
            output["calibration"] = calibration.as_json()
        if self.output is not None:
            write_json(self.output, output, "--output")
            if errors is not None:
                write_table(self.output.with_name(f"{self.output.stem}_errors.csv"), *errors.values())
            if answer is not None:
                answer.write(self.output.parent, f"{self.output.stem}_answer")
            if calibration is not None:
                chart = calibration.chart()
                chart._replace(name=f"{self.output.stem}_{chart.name}").write(self.output.parent)
