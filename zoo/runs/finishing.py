"""The end of a fit: what needs no gradients is fitted after the last epoch, validated and saved.

`finish` reads nothing of the epochs but their checkpoints: a run that was killed in it resumes there, and so do the
processes that were started for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from typing_extensions import override

from callbacks import RunFolder
from datamodules.base import DataModule
from zoo.tasks.base import Task
from zoo.training.checkpoints import read_contents


def fit(trainer: pl.Trainer, model: Task, data: DataModule, resumed: str | Path | None = None) -> None:
    """Train a model by gradients, if it has such weights, and finish it.

    The model has no network, unless it was trained before. `resumed` is the checkpoint of a run that is resumed.
    """
    if model.has_epochs:
        trainer.fit(model, datamodule=data, ckpt_path=resumed, weights_only=True)
    if model.finishes:
        finish(trainer, model, data)


def finish(trainer: pl.Trainer, model: Task, data: DataModule) -> None:
    """Fit what needs no gradients to the model of the best epoch; validate and save it, and write the summary.

    Lightning's validation starts the processes and moves the model to its device.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    model.is_finishing = data.is_finishing = True
    trainer.callbacks = [*callbacks, _Finishing(callbacks)]  # type: ignore[attr-defined]
    try:
        trainer.validate(model, datamodule=data, verbose=False)
    finally:
        model.is_finishing = data.is_finishing = False
        trainer.callbacks = callbacks  # type: ignore[attr-defined]
    if model.network is None and (files := _files(trainer, data)):
        restore(model, files[0])  # the processes were forks of this one


class _Finishing(Callback):
    """Finishes a model in each process before its validation, and saves it afterwards."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        model: Any = pl_module
        if model.network is None:
            model.setup("fit")
        if model.has_epochs:
            _restore_epochs(trainer, model)
        model.to(trainer.strategy.root_device)
        if not model.has_epochs:
            for callback in self.callbacks:
                callback.on_fit_start(trainer, model)
            model.on_fit_start()
        model.finish(model.data)

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        checkpoints = _checkpoints(trainer, trainer.datamodule)  # type: ignore[attr-defined]
        # The checkpoint of the last epoch, from which a run is resumed, stays as it is.
        model: Any = pl_module
        for checkpoint in checkpoints[:1] if model.has_epochs else checkpoints:
            file = _file_of(checkpoint)
            trainer.save_checkpoint(file)
            checkpoint.best_model_path = str(file)
            checkpoint.best_model_score = trainer.callback_metrics.get(checkpoint.monitor or "")
        for callback in self.callbacks:
            if isinstance(callback, RunFolder):
                callback.write(trainer, model)


def _restore_epochs(trainer: pl.Trainer, model: Task) -> None:
    """Give a model the weights of its best epoch; and a trainer whose epochs ran in forks, their number and figures."""
    files = _files(trainer, trainer.datamodule)  # type: ignore[attr-defined]
    if not files:
        return  # without checkpoints, the last epoch counts
    restore(model, files[0])
    if trainer.current_epoch == 0:
        last = max(files, key=lambda file: file.stat().st_mtime)
        contents = read_contents(last)
        trainer.fit_loop.load_state_dict(contents["loops"]["fit_loop"])
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunFolder):
                callback.best = contents["callbacks"][callback.state_key]["best"]


def _checkpoints(trainer: pl.Trainer, data: DataModule) -> list[ModelCheckpoint]:
    """The callbacks that keep checkpoints, first the one that keeps the best epoch's."""
    checkpoints = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    return sorted(checkpoints, key=lambda each: each.monitor != data.monitor)


def _files(trainer: pl.Trainer, data: DataModule) -> list[Path]:
    return [file for each in _checkpoints(trainer, data) if (file := _file_of(each)).is_file()]


def _file_of(checkpoint: ModelCheckpoint) -> Path:
    """The file that a callback wrote last, or the one that it would write."""
    if checkpoint.best_model_path:
        return Path(checkpoint.best_model_path)
    return Path(checkpoint.dirpath or ".") / f"{checkpoint.filename or 'model'}.ckpt"


def restore(model: Task, file: Path) -> None:
    """Give a model the weights of a checkpoint."""
    contents = read_contents(file)
    model.on_load_checkpoint(contents)
    model.load_state_dict(contents["state_dict"])
