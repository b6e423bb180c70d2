"""Testing and predicting with memories, compared with encoding the texts alone.

K = 20 memories of each text; texts of AG News if --data_dir is given, else seeded draws with Zipf's distribution; one
thread. A transformer is measured if one is named. Printed: CPU seconds as ratios to encoding the texts alone
(their tokens included), all measured in turns after the memory has been encoded once; and the CPU milliseconds of one
text that comes alone.

    python -m tests.benchmarks.encodings [--data_dir DATA] [--transformer NAME] [--rows 3000] [--texts 2000]
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from datamodules import ClassificationDataModule
from tests.benchmarks.head_training import made_up
from zoo import KNNBiLSTM, MemoryEnsemble, load

MODELS: dict[str, Callable[..., Any]] = {
    "MemoryEnsemble": lambda **options: MemoryEnsemble(characters=False, few_rows=0, **options),
    "KNNBiLSTM": lambda **options: KNNBiLSTM(
        features="M7", attention="softmax", characters=False, dropout=0.3, **options
    ),
}


def tables(given: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Options of the data, with a test; and the test's texts."""
    options: dict[str, Any] = {"validation_split": 50, "rows_per_class": given.rows // 4}
    if given.data_dir is None:
        options |= {"train_file": str(made_up(folder / "train.csv", given.rows + 200))}
        made_up(folder / "test.csv", given.texts)
    else:
        options |= {
            "train_file": f"{given.data_dir}/ag_news/train_pool.csv.gz",
            "text_column": ["title", "text"],
            "label_column": "class",
            "test_split": given.texts // 4,
        }
        rows = ClassificationDataModule(**options).read_tables(["test"])["test"]
        with (folder / "test.csv").open("w", newline="") as table:
            csv.writer(table).writerows([("text", "label"), *zip(rows.texts, rows.labels or [], strict=True)])
    with (folder / "test.csv").open(newline="") as table:
        texts = [row["text"] for row in csv.DictReader(table)]
    if given.data_dir is None:
        options["test_file"] = str(folder / "test.csv")
    return options, texts


def cpu(work: Callable[[], Any]) -> float:
    """CPU seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def new_trainer(**options: Any) -> pl.Trainer:
    """A trainer that is quiet and keeps nothing."""
    return pl.Trainer(
        accelerator="cpu",
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def measure(
    name: str, transformer: str | None, options: dict[str, Any], texts: list[str], given: Any
) -> None:
    """Train a little, then print the ratios of one model."""
    pl.seed_everything(0, verbose=False)
    read = {} if transformer is None else {"tokenizer": transformer}
    data = ClassificationDataModule(**options, **read, num_memories=20, characters=False, max_length=128)
    frozen = {"freeze_encoder": True} if name == "KNNBiLSTM" else {}
    model = MODELS[name](**({} if transformer is None else {"transformer": transformer, **frozen}))
    trainer = new_trainer(max_epochs=1, limit_train_batches=0.2, limit_val_batches=1)
    trainer.fit(model, data)
    checkpoint = Path(given.folder, f"{name}.ckpt")
    trainer.save_checkpoint(checkpoint)

    def test() -> None:
        new_trainer().test(model, data, verbose=False)

    predictor = load(checkpoint)
    predictor.predict(texts)  # encodes the memory, compiles
    test()
    times: dict[str, list[float]] = {"encode": [], "predict": [], "test": [], "one": []}
    for _ in range(given.rounds):
        times["encode"].append(cpu(lambda: predictor.encode(texts)))
        times["predict"].append(cpu(lambda: predictor.predict(texts)))
        times["test"].append(cpu(test))
        times["one"].append(cpu(lambda: [predictor.predict(text) for text in texts[:20]]) / 20)
    median = {key: statistics.median(values) for key, values in times.items()}
    encode = median["encode"]
    print(
        f"{name:15} {'BiLSTM' if transformer is None else 'transformer':11} test / encode"
        f" {median['test'] / encode:.2f}, predict / encode {median['predict'] / encode:.2f}; encode"
        f" {1000 * encode / len(texts):.2f}, predict {1000 * median['predict'] / len(texts):.2f} CPU ms a text of"
        f" {len(texts):,}, {1000 * median['one']:.1f} of a single one",
        flush=True,
    )


def main() -> None:
    """Measure each model with each encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data_dir", help="holds ag_news")
    parser.add_argument("--transformer", help="Hub name or folder")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rows", type=int, default=3000, help="in the memory")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        given.folder = folder
        options, texts = tables(given, Path(folder))
        options |= {"cache_dir": folder}
        for name in given.models:
            for transformer in [None, *([given.transformer] if given.transformer else [])]:
                measure(name, transformer, options, texts, given)


if __name__ == "__main__":
    main()
