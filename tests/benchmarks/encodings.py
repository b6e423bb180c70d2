"""What encoding once saves: heads that train on cached encodings, and predictions with memories.

`heads`: an epoch of a head (K = 20 memories, sharp attention, text dropout) on the frozen encodings of a KNNBiLSTM,
against an epoch of the same model trained together with its encoder, of which a part of the batches stands for all.
`predictions`: testing and predicting with K = 20 memories by `MemoryEnsemble` and KNNBiLSTM, as ratios to encoding the
texts alone (their tokens included); and the CPU milliseconds of one text that comes alone. All are CPU seconds of one
thread. Rows are AG News's if --data_dir is given, else seeded draws with Zipf's distribution.

    python -m tests.benchmarks.encodings [heads predictions] [--data_dir DATA] [--transformer NAME]
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from datamodules import ClassificationDataModule
from tests.benchmarks.timing import alternate, cpu_seconds, parser, zipf_texts
from zoo import KNNBiLSTM, MemoryEnsemble, load

EPOCHS, PART = 5, 0.25


class EpochTimes(pl.Callback):
    """CPU seconds of each epoch, its validation included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds.append(-time.process_time())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds[-1] += time.process_time()


def write_table(file: Path, rows: int, seed: int) -> str:
    """A table of texts whose words are independent of their labels."""
    with file.open("w", newline="") as table:
        texts = zipf_texts(rows, 40, seed, 30_000)
        csv.writer(table).writerows([("text", "label"), *((text, row % 4) for row, text in enumerate(texts))])
    return str(file)


def data_options(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """3,000 training rows, and 2,000 rows each for validation and test."""
    shared = {"cache_dir": str(folder / "cache"), "num_memories": 20, "validation_split": 500}
    if given.data_dir is None:
        train = write_table(folder / "train.csv", 5000, 0)
        return {**shared, "train_file": train, "test_file": write_table(folder / "test.csv", 2000, 1)}
    return {
        **shared,
        "train_file": f"{given.data_dir}/ag_news/train_pool.csv.gz",
        "text_column": ["title", "text"],
        "label_column": "class",
        "rows_per_class": 750,
        "test_split": 500,
    }


def new_trainer(**options: Any) -> pl.Trainer:
    """A trainer that is quiet and keeps nothing."""
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    given = {**dict.fromkeys(quiet, False), **options}
    return pl.Trainer(accelerator="cpu", num_sanity_val_steps=0, **given)


def heads(given: argparse.Namespace, data: dict[str, Any], folder: Path) -> None:
    """An epoch of a head and of the joint model, for M5 and M7."""

    def fit(features: Any, part: float, epochs: int, start: Path | None = None) -> tuple[float, pl.Trainer]:
        pl.seed_everything(0, verbose=False)
        model = KNNBiLSTM(
            features=features, attention="softmax", text_dropout=0.5, dropout=0.3, word_size=100,
            init_from=None if start is None else str(start), freeze_encoder=start is not None,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        )  # fmt: skip
        times = EpochTimes()
        trainer = new_trainer(
            max_epochs=epochs, limit_train_batches=part, limit_val_batches=max(part, PART), callbacks=[times]
        )
        trainer.fit(model, ClassificationDataModule(**data))
        return statistics.median(times.seconds) / part, trainer

    _, trainer = fit("M1", 0.05, 1)  # retrieves, tokenizes, compiles
    start = folder / "start.ckpt"
    trainer.save_checkpoint(start)
    for features in ("M5", "M7"):
        head, joint = fit(features, 1.0, EPOCHS, start)[0], fit(features, PART, 1)[0]
        print(
            f"{features}: head {head:.2f}, joint {joint:.1f} CPU s an epoch: {joint / head:.0f} x", flush=True
        )


def predictions(given: argparse.Namespace, data: dict[str, Any], folder: Path) -> None:
    """Test and predict after a little training, by both models with each encoder."""
    tables = ClassificationDataModule(**data).read_tables(["test"])
    texts = list(tables["test"].texts)
    for transformer in [None, *([given.transformer] if given.transformer else [])]:
        encoder = {} if transformer is None else {"transformer": transformer}
        frozen = {} if transformer is None else {"freeze_encoder": True}
        models: list[Any] = [
            MemoryEnsemble(characters=False, few_rows=0, **encoder),
            KNNBiLSTM(features="M7", attention="softmax", characters=False, **encoder, **frozen),
        ]
        tokens = {} if transformer is None else {"tokenizer": transformer}
        for model in models:
            measure(
                model,
                ClassificationDataModule(**data, **tokens, characters=False, max_length=128),
                texts,
                folder,
            )


def measure(model: Any, data: ClassificationDataModule, texts: list[str], folder: Path) -> None:
    """Print the ratios of one model."""
    trainer = new_trainer(max_epochs=1, limit_train_batches=0.2, limit_val_batches=1)
    trainer.fit(model, data)
    trainer.save_checkpoint(folder / "model.ckpt")
    predictor = load(folder / "model.ckpt")
    predictor.predict(texts)  # encodes the memory, compiles
    seconds = alternate(
        {
            "encode": lambda: predictor.encode(texts),
            "predict": lambda: predictor.predict(texts),
            "test": lambda: new_trainer().test(model, data, verbose=False),
        },
        rounds=3,
        warm_up=1,
    )
    one = np.median([cpu_seconds(lambda text=text: predictor.predict(text)) for text in texts[:20]])
    each = {name: f"{1000 * taken / len(texts):.2f}" for name, taken in seconds.items()}
    print(
        f"{type(model).__name__:15} test / encode {seconds['test'] / seconds['encode']:.2f}, predict / encode"
        f" {seconds['predict'] / seconds['encode']:.2f}; CPU ms a text: {each}, {1000 * one:.1f} of a single one",
        flush=True,
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("parts", nargs="*", default=["heads", "predictions"])
    arguments.add_argument("--data_dir", help="holds ag_news")
    arguments.add_argument("--transformer", help="Hub name or folder")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as name:
        data = data_options(given, Path(name))
        for part in given.parts:
            {"heads": heads, "predictions": predictions}[part](given, data, Path(name))


if __name__ == "__main__":
    main()
