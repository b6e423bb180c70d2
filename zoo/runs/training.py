"""`train`: from a model, data and options of the trainer to a run folder."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, ProgressBar, Timer
from pytorch_lightning.loggers import Logger, WandbLogger
from pytorch_lightning.plugins import CheckpointIO, TorchCheckpointIO
from typing_extensions import override

from callbacks import PredictionTable, RunFolder, Throughput
from callbacks.observers import CSVMetrics
from datamodules.base import DataModule
from datamodules.core.errors import InputError
from datamodules.core.storage import write_text
from datamodules.core.types import PlainDict, Size, check_value
from datamodules.state import check_split
from datamodules.text_rows import TextRowsDataModule
from zoo.ensemble.answer import Answer
from zoo.model_folder.export import log_run
from zoo.model_folder.folder import IN_RUN, ModelFolder
from zoo.runs.finishing import fit, restore
from zoo.runs.process import running
from zoo.runs.run_dir import locked_run_dir
from zoo.tasks.base import Task
from zoo.training.checkpoints import Start, meta_of, read_contents, write_contents

log = logging.getLogger("zoo")


@dataclass(frozen=True)
class TrainerOptions:
    """Settings of a training or an evaluation: made by `zoo.runs.options` or by hand, and read by `train`."""

    #: arguments of Lightning's Trainer; loggers, callbacks and plugins are objects.
    arguments: PlainDict = field(default_factory=dict)
    #: of all random numbers.
    seed: int = 0
    #: the checkpoint from which the training is resumed.
    resume: Path | None = None
    #: seconds in which it ends, as far as it can: the epoch of that time is the last one, and stages of a
    #: `MemoryEnsemble` that take longer are skipped.
    time_limit: float | None = None
    #: the name of the artifact that the model becomes in W&B.
    artifact: str | None = None


@dataclass(frozen=True)
class Trained:
    """The results of a training."""

    run_dir: Path
    #: name and value of the best epoch's score; None where no score chooses an epoch.
    best: tuple[str, float] | None
    #: the table in which a model compares itself with others.
    answer: Answer | None
    #: False without checkpoints.
    has_model: bool

    def as_text(self) -> str:
        """Return the answer, the score of the best epoch and the run folder, as a command prints them."""
        parts = [] if self.answer is None else [f"\n{self.answer.as_markdown()}"]
        if self.best is not None:
            parts.append(f"best {self.best[0]} {self.best[1]:.4f}")
        if self.has_model:
            parts.append(f"run folder: {self.run_dir}")
        return "\n".join(parts)


def train(
    model: Task,
    data: DataModule,
    trainer: TrainerOptions,
    run_dir: Path,
    config: PlainDict,
    files: Mapping[str, str] | None = None,
) -> Trained | None:
    """Train a model and write its run folder; nothing is printed, and the state of the process stays as it was.

    The result is None in all processes of a run but the first.

    Args:
        model: without a network yet; it has one afterwards.
        data: of the model's kind.
        trainer: how it is trained.
        run_dir: folder of the run; an earlier run there is moved aside, unless it is resumed.
        config: the options with which `zoo fit` repeats the run, for `config.yaml`.
        files: texts of files for the run folder, by name.

    Raises:
        InputError: an option, a file or a row cannot be used.
    """
    is_first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    _limit_time(model, trainer)
    with running(trainer.seed):
        model.run_seed = data.seed = trainer.seed
        resume = trainer.resume
        is_trained = resume is not None and _is_trained(model, resume, trainer.arguments, run_dir)
        check_fit(model, data, resume)
        lightning = _make_trainer(model, data, trainer, run_dir, config)
        with locked_run_dir(run_dir, resume is not None) if is_first else nullcontext():
            for name, text in (files or {}).items() if is_first else ():
                write_text(run_dir / name, text, "--run_dir")
            if not is_trained:
                _fit(lightning, model, data, resume)
            return _finish(lightning, model, data, trainer, run_dir)


def _limit_time(model: Task, trainer: TrainerOptions) -> None:
    if (seconds := trainer.time_limit) is None:
        return
    if not 0 < seconds <= timedelta.max.total_seconds() / 2:
        raise InputError(f"--time_limit {seconds:g}: use a positive number of seconds")
    if not model.has_epochs and not model.fits_weights:
        raise InputError(f"--time_limit: a {type(model).__name__} is fitted in one step; omit it")
    model.deadline = time.monotonic() + seconds


def _is_trained(model: Task, checkpoint: Path, arguments: PlainDict, run_dir: Path) -> bool:
    """Return True for a resumed run that only lacks its model folder; refuse one that is finished or was edited."""
    contents = read_contents(checkpoint)
    meta_of(contents, checkpoint)
    epochs, most = contents["epoch"] + 1, arguments.get("max_epochs") or -1  # -1 = without a limit
    is_last = 0 <= most <= epochs or contents["global_step"] == arguments.get("max_steps")
    is_trained = (run_dir / "summary.json").exists() and (is_last or not model.has_epochs)
    if not (run_dir / IN_RUN).exists():
        # What `finish` fits is in the best checkpoint alone.
        return is_trained and not (model.finishes and not (run_dir / "checkpoints" / "best.ckpt").is_file())
    new = f"zoo fit --config {run_dir / 'config.yaml'} --run_dir FOLDER"
    if is_trained:
        more = f"zoo fit --ckpt_path {checkpoint} --trainer.max_epochs {epochs + 1}"
        advice = f"add epochs to its {epochs} with {more}" if model.has_epochs else f"start a run with {new}"
        raise InputError(f"--ckpt_path {checkpoint}: the run is finished; {advice}")
    if ModelFolder.open(run_dir).is_edited:
        raise InputError(
            f"{run_dir / IN_RUN}: was edited since the training, and would be replaced; start a new run from its"
            f" weights with {new} --model.init_from {run_dir}"
        )
    return False


def check_fit(model: Task, data: DataModule, resume: Path | None = None) -> None:
    """Refuse data that the model cannot read, and take the model into account from which it starts."""
    model.check_data(data)
    skip_unread_memory(model, data)
    if model.init_from is None:
        return
    # The rows that the other model was trained on count as seen, and its words are kept: a checkpoint has them, too.
    state = Start.open(model.init_from if resume is None else str(resume)).meta.data
    check_split(data.options, data.file_contents, state, "validation", f"model.init_from={model.init_from}")
    data.remember(state.seen)
    data.words.keep(state.vocabulary)


def skip_unread_memory(model: Task, data: DataModule) -> None:
    """Let the data retrieve nothing for a model that reads no memories."""
    if isinstance(data, TextRowsDataModule) and data.has_memory and not model.uses_memory:
        log.info("this model reads no memories: none are retrieved")
        data.disable_memory()


def _make_trainer(
    model: Task, data: DataModule, trainer: TrainerOptions, run_dir: Path, config: PlainDict
) -> pl.Trainer:
    """Make Lightning's Trainer, with the loggers and callbacks of a run folder besides the user's."""
    arguments = without_output(trainer.arguments)
    for name in ("check_val_every_n_epoch", "accumulate_grad_batches"):
        check_value(f"--trainer.{name}", arguments.get(name), Size)
    loggers = [each for each in as_list(arguments.get("logger")) if isinstance(each, Logger)]
    callbacks: list[Callback] = as_list(arguments.get("callbacks"))
    has_table = any(isinstance(each, PredictionTable) for each in callbacks)
    if any(isinstance(each, WandbLogger) for each in loggers) and not has_table:
        callbacks.append(PredictionTable())
    callbacks += [RunFolder(run_dir, config), Throughput()]
    if trainer.time_limit is not None:
        callbacks.append(_TimeLimit(timedelta(seconds=trainer.time_limit), interval="epoch"))
    if arguments.get("enable_checkpointing") is not False:
        # The last one is of a whole epoch: a run that is resumed within one would read its first batches again. Both
        # stand before the user's: the first checkpoint with a monitor is the one that the run is judged by.
        folder = run_dir / "checkpoints"
        callbacks = [
            _OwnCheckpoint(folder, "best", monitor=data.monitor, mode="max", enable_version_counter=False),
            _OwnCheckpoint(folder, "last", save_on_train_epoch_end=True, enable_version_counter=False),
            *callbacks,
        ]
    plugins = as_list(arguments.get("plugins"))
    if not any(isinstance(each, CheckpointIO) for each in plugins):
        plugins.append(_WholeCheckpoints())
    if arguments.get("logger") is not False and not arguments.get("fast_dev_run"):
        arguments["logger"] = [CSVMetrics(run_dir), *loggers]
    arguments |= {"callbacks": callbacks, "plugins": plugins, "default_root_dir": run_dir}
    return pl.Trainer(**arguments)


def without_output(arguments: PlainDict) -> PlainDict:
    """Return arguments of Lightning's Trainer that print nothing, unless a progress bar or a summary is among them."""
    has_bar = any(isinstance(each, ProgressBar) for each in as_list(arguments.get("callbacks")))
    silent = {"enable_model_summary": False, **({} if has_bar else {"enable_progress_bar": False})}
    return {**silent, **{name: value for name, value in arguments.items() if value is not None}}


def as_list(value: Any) -> list[Any]:
    """Return an argument of Lightning's that may be a list, one value, or None."""
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


class _OwnCheckpoint(ModelCheckpoint):
    """A type of its own: Lightning refuses two of one type and the same arguments, and users have theirs."""


def _fit(lightning: pl.Trainer, model: Task, data: DataModule, resume: Path | None) -> None:
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        fit(lightning, model, data, resume)
    finally:  # Lightning ignores further interrupts after the first
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)


def _write_model(model: Task, data: DataModule, run_dir: Path) -> None:
    """Write the model folder from the best checkpoint or, if that is missing, from the last one."""
    best, last = (run_dir / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    if not best.is_file():
        if not last.is_file() or (run_dir / IN_RUN).exists():
            return
        log.warning("no validation rows chose an epoch (%s is missing): the model is of the last one", best)
        best = last
    lacks_memory = data.memory is not None and data.has_memory and data.memory.location is None
    if lacks_memory or not data.words.are_known:
        data.prepare_data()  # the processes of the training were forks of this one
        data.setup("fit")
    restore(model, best)
    model.save(run_dir / IN_RUN, data)


def _finish(
    lightning: pl.Trainer, model: Task, data: DataModule, trainer: TrainerOptions, run_dir: Path
) -> Trained | None:
    """Write what is made of a whole training, and return its results."""
    if not lightning.is_global_zero:
        return None
    has_model = lightning.checkpoint_callback is not None
    _write_model(model, data, run_dir)
    if has_model and not (run_dir / IN_RUN).exists():
        log.warning("no epoch was trained, or none is kept: the run has no model")
    # The processes of the training may have been forks of this one.
    file = run_dir / "summary.json"
    summary = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    best = (summary["monitor"], summary["best_score"]) if "best_score" in summary else None
    for logger in lightning.loggers:
        if isinstance(logger, WandbLogger):
            if best is not None:  # W&B would rank runs, and a sweep its trials, by their last epochs
                logger.experiment.summary[best[0]] = best[1]
            if trainer.artifact is not None:
                log_run(logger.experiment, run_dir, trainer.artifact)
            logger.experiment.finish()  # the next run of this process is another one
    answer = run_dir / "answer.json"
    return Trained(run_dir, best, Answer.read(answer) if answer.exists() else None, has_model)


class _TimeLimit(Timer):
    """Counts the time of this process alone: a resumed run has all of its limit."""

    @override
    def load_state_dict(self, state_dict: PlainDict) -> None:
        pass


class _WholeCheckpoints(TorchCheckpointIO):
    """Leaves no half of a file in place of a good one where the system's temporary folder is on another disk."""

    @override
    def save_checkpoint(
        self, checkpoint: PlainDict, path: str | Path, storage_options: object | None = None
    ) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_contents(checkpoint, Path(path))
