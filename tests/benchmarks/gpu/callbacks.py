"""Callbacks that measure a run of `zoo fit`: its precision, devices and loaders are those of users."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from numpy.typing import NDArray
from pytorch_lightning.callbacks import Callback
from typing_extensions import override

from datamodules.batch import BatchContents, ClassificationBatch
from datamodules.classification.dataset import label_numbers
from tests.benchmarks.gpu.stopwatch import Figures, Stopwatch, Window
from zoo import MemoryEnsemble
from zoo.layers.encoders import TransformerEncoder
from zoo.tasks.predictor import on_device
from zoo.training.metric import MetricPlan, learn_metric

#: Training and validation texts by which a metric is scored.
SCORED_TEXTS = 1_000


class StopwatchCallback(Callback):
    """Measures the training steps of a run, and writes the figures to a JSON file."""

    def __init__(self, file: str, window: list[int], pin_memory: bool = True) -> None:
        """Configure the measurement.

        Args:
            file: for the `Figures`, written by the first process.
            window: the numbers of a `Window`.
            pin_memory: leave the memory of batches pinned where the data module pins it.
        """
        self.file, self.window, self.pin_memory = Path(file), Window(*window), pin_memory
        self.stopwatch: Stopwatch | None = None

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.pin_memory:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        make_loader = data.train_dataloader

        def make_unpinned() -> object:
            loader = make_loader()
            loader.pin_memory = False
            return loader

        data.train_dataloader = make_unpinned

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.stopwatch = Stopwatch(self.window, pl_module.device)

    @override
    def on_train_batch_start(self, *_: object) -> None:
        assert self.stopwatch is not None
        self.stopwatch.start()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: Any, *_: object
    ) -> None:
        assert self.stopwatch is not None
        self.stopwatch.stop(len(batch.row))

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            assert self.stopwatch is not None
            write_figures(self.file, self.stopwatch.figures(trainer.world_size))

    @override
    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        if self.stopwatch is not None:
            self.stopwatch.abandon()


class MetricStopwatchCallback(Callback):
    """Measures the stage of a `MemoryEnsemble` that learns the metric of its transformer; see `zoo.training.metric`.

    The score is the accuracy of the nearest mean vector of a class.
    """

    def __init__(self, file: str, window: list[int]) -> None:
        """Configure the measurement; see `StopwatchCallback`."""
        self.file, self.window = Path(file), Window(*window)

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, MemoryEnsemble)
        model, data = pl_module, pl_module.text_data
        split, encoder = data.split("train"), pl_module.network.encoder
        assert isinstance(encoder, TransformerEncoder)
        target = label_numbers(split.rows, model.labels)
        dataset = data.dataset(split, BatchContents(memory_texts=False))
        stopwatch, counts = Stopwatch(self.window, model.device), list[int]()

        def read(rows: NDArray[np.int64]) -> ClassificationBatch:
            batch: ClassificationBatch = on_device(dataset.__getitems__(rows), model)
            counts.append(len(rows))
            stopwatch.start()
            return batch

        try:
            learn_metric(
                encoder,
                read,
                target,
                MetricPlan(self.window.steps),
                data.seed,
                progress=lambda _: stopwatch.stop(counts[-1]),
                precision=str(trainer.precision),
            )
        finally:
            stopwatch.abandon()
        figures = stopwatch.figures()
        figures.score = _accuracy_of_means(model, target)
        write_figures(self.file, figures)


def _accuracy_of_means(model: MemoryEnsemble, target: NDArray[np.int64]) -> float:
    """Accuracy on validation texts, each of the class whose mean vector is nearest."""
    data, random = model.text_data, np.random.default_rng(0)
    train, validation = data.split("train").rows, data.split("validation").rows
    seen = random.permutation(len(train))[:SCORED_TEXTS]
    unseen = random.permutation(len(validation))[:SCORED_TEXTS]
    vectors = model.encode(data, [train.texts[row] for row in seen.tolist()])
    means = np.stack([vectors[target[seen] == label].sum(axis=0) for label in range(len(model.labels))])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    others = model.encode(data, [validation.texts[row] for row in unseen.tolist()])
    predicted = (others @ means.T).argmax(axis=1)
    return float((predicted == label_numbers(validation, model.labels)[unseen]).mean())


def write_figures(file: Path, figures: Figures) -> None:
    """Write the figures to a JSON file."""
    file.write_text(json.dumps(asdict(figures)), encoding="utf-8")
