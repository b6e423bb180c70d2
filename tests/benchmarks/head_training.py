"""An epoch of a head on cached encodings, compared with an epoch of the same model trained together with its encoder.

Model and data are those of the recipe: K = 20 memories, sharp attention, text dropout. Printed: CPU seconds of an
epoch on one thread, its training and its validation apart, and the cost of encoding everything once. A part of the
joint epoch's training batches stands for all: they are in random order. Rows are AG News's if --data_dir is given, else
seeded draws with Zipf's distribution.

    python -m tests.benchmarks.head_training [--data_dir DATA] [--features M5 M7]
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
from zoo import KNNBiLSTM

VOCABULARY, WORDS, CLASSES = 30_000, 40, 4
HEAD_EPOCHS = 5


class Stopwatch(pl.Callback):
    """CPU seconds of preparing a fit, of each training epoch without its validation, and of each validation."""

    def __init__(self) -> None:
        self.encoding: float = 0
        self.training: list[float] = []
        self.validation: list[float] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """The encoder encodes everything after this."""
        self.encoding = -time.process_time()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Everything is encoded."""
        self.encoding += time.process_time()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """An epoch begins."""
        self.validation.append(0)
        self.training.append(-time.process_time())

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validation is a part of Lightning's training epoch."""
        self.validation[-1] -= time.process_time()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validation ends."""
        self.validation[-1] += time.process_time()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """An epoch ends."""
        self.training[-1] += time.process_time() - self.validation[-1]


def made_up(file: Path, rows: int) -> Path:
    """A table of texts whose words are independent of their labels."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, VOCABULARY)
    words = random.choice(np.arange(1, VOCABULARY), size=(rows, WORDS), p=weights / weights.sum())
    with file.open("w", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["text", "label"])
        writer.writerows((" ".join(f"w{word}" for word in text), i % CLASSES) for i, text in enumerate(words))
    return file


def data_options(data_dir: str | None, folder: Path) -> dict[str, Any]:
    """3,000 training rows with 2,000 validation rows."""
    if data_dir is None:
        file = made_up(folder / "train.csv", 5000)
        return {"train_file": str(file), "validation_split": 500}
    return {
        "train_file": f"{data_dir}/ag_news/train_pool.csv.gz",
        "text_column": ["title", "text"],
        "label_column": "class",
        "word_vectors": f"{data_dir}/glove/glove.6B.100d.subset.txt.xz",
        "validation_split": 500,
        "rows_per_class": 750,
    }


def fit(
    options: dict[str, Any], features: Any, start: Path | None, part: float, epochs: int
) -> tuple[Stopwatch, pl.Trainer]:
    """Train with the recipe's options, on `part` of an epoch's batches; with the frozen encoder of `start`."""
    pl.seed_everything(0, verbose=False)
    model = KNNBiLSTM(
        features=features,
        attention="softmax",
        text_dropout=0.5,
        dropout=0.3,
        word_size=100,
        init_from=None if start is None else str(start),
        freeze_encoder=start is not None,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    )
    watch = Stopwatch()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        limit_train_batches=part,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(model, ClassificationDataModule(**options, num_memories=20))
    return watch, trainer


def main() -> None:
    """Time heads and joint models in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data_dir", help="holds ag_news and glove")
    parser.add_argument("--features", nargs="+", default=["M5", "M7"])
    parser.add_argument("--part", type=float, default=0.25, help="of a joint epoch's training batches")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")

    with tempfile.TemporaryDirectory() as folder:
        options = data_options(given.data_dir, Path(folder)) | {"cache_dir": folder}
        _, trainer = fit(options, "M1", None, 0.05, 1)  # retrieves, tokenises, compiles
        start = Path(folder, "start.ckpt")
        trainer.save_checkpoint(start)
        for features in given.features:
            head, _ = fit(options, features, start, 1.0, HEAD_EPOCHS)
            joint, _ = fit(options, features, None, given.part, 1)
            cpu = {
                "head": [statistics.median(times) for times in (head.training, head.validation)],
                "joint": [joint.training[0] / given.part, joint.validation[0]],
            }
            for name, (training, validation) in cpu.items():
                print(
                    f"{features} {name:5}  training {training:7.2f}  validation {validation:7.2f} CPU s an epoch"
                )
            ratios = [a / b for a, b in zip(cpu["joint"], cpu["head"], strict=True)]
            both = sum(cpu["joint"]) / sum(cpu["head"])
            print(
                f"{features} joint / head: training {ratios[0]:.1f} x, validation {ratios[1]:.1f} x, both"
                f" {both:.1f} x; encoding once {head.encoding:.1f} CPU s",
                flush=True,
            )


if __name__ == "__main__":
    main()
