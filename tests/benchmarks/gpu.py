"""Training steps of the papers' models by Lightning's profiler, in several variants.

    python -m tests.benchmarks.gpu [--models HMN] [--variants bf16 fp32] [--steps 200] [--transformer MINILM_FOLDER]

On a GPU machine, or on the CPU. All texts are made up, and nothing is downloaded: without --transformer, the
transformer has MiniLM's shape and random weights. The table has examples per second, the share of the time in which a
step waits for its batch, and the peak memory of tensors. The profiler does not wait for the GPU after each step, so
that the figures are those of many steps.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.profilers import SimpleProfiler

from datamodules import (
    ClassificationDataModule,
    ClickthroughDataModule,
    DialogueDataModule,
    MatchingDataModule,
)
from tests.benchmarks.timing import parser
from tests.clicks import write_collection
from tests.dialogues import made_up, write_published
from tests.sentence_folders import write_bert
from tests.zoo.conftest import COMMON_WORDS, TOPIC_WORDS, pair_rows, sentences, write_pairs, write_table
from zoo import AMVLSTM, HMN, LSTMRNN, ExpaNet, KNNBiLSTM
from zoo.markdown import markdown_table

#: Variant -> precision, and processes that make batches.
VARIANTS: dict[str, tuple[Any, int]] = {
    "bf16": ("bf16-mixed", 0),
    "fp32": ("32-true", 0),
    "workers": ("bf16-mixed", 4),
}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1_536}
BATCH = "run_training_batch"
WAITING = "[_TrainingEpochLoop].train_dataloader_next"

#: Makes a model, and its data, given the number of processes.
Workload = tuple[Callable[..., pl.LightningModule], Callable[..., pl.LightningDataModule]]


class CountExamples(Callback):
    """Counts the examples of each step."""

    def __init__(self) -> None:
        self.counts = list[int]()

    def on_train_batch_end(self, *args: Any) -> None:
        self.counts.append(len(args[3].row))


def workloads(folder: Path, rows: int, transformer: str | None) -> dict[str, Workload]:
    """Write the made-up tables, and return name -> model and data."""
    table = write_table(folder / "texts.csv", sentences(rows, seed=1))
    pairs = write_pairs(folder / "pairs.tsv", pair_rows(rows, seed=1))
    dialogues = write_published(folder / "dialogues.txt", made_up(rows // 4, seed=1))
    clicks = write_collection(folder / "clicks", rows, queries=rows // 2, seed=1)
    if transformer is None:
        words = [*COMMON_WORDS, *(word for topic in TOPIC_WORDS.values() for word in topic)]
        words += [f"##{number}" for number in range(30_000)]
        transformer = str(write_bert(folder / "transformer", words, **MINILM))

    texts = partial(ClassificationDataModule, train_file=str(table), validation_split=0.2)
    tokenized = partial(texts, tokenizer=transformer, lowercase=None, characters=False)
    columns = {"first_column": "first", "second_column": "second", "label_column": "label"}
    matching = partial(MatchingDataModule, layout="table", **columns)
    files = {"train_file": str(dialogues), "validation_file": str(dialogues)}
    clicked = clicks.options(document_column="title", validation_split=0.2)
    return {
        "KNNBiLSTM with MiniLM": (partial(KNNBiLSTM, transformer=transformer), tokenized),
        "KNNBiLSTM": (KNNBiLSTM, texts),
        "ExpaNet": (ExpaNet, texts),
        "HMN": (HMN, partial(DialogueDataModule, layout="hmn4qa", **files)),
        "AMVLSTM": (AMVLSTM, partial(matching, train_file=str(pairs), validation_split=0.2)),
        "LSTMRNN": (LSTMRNN, partial(ClickthroughDataModule, **clicked)),
    }


def measure(workload: Workload, variant: str, steps: int, folder: Path) -> list[str]:
    """Train for a number of steps after a tenth as many; return the cells of the table."""
    precision, workers = VARIANTS[variant]
    make_model, make_data = workload
    warm_up = 1 + steps // 10
    profiler, counter = SimpleProfiler(), CountExamples()
    trainer = pl.Trainer(
        max_steps=warm_up + steps, max_epochs=-1, precision=precision, devices=1, limit_val_batches=0,
        profiler=profiler, callbacks=[counter], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    data = make_data(num_workers=workers, cache_dir=str(folder / "cache"))
    trainer.fit(make_model(), datamodule=data)
    batch, waiting = (sum(profiler.recorded_durations[name][warm_up:]) for name in (BATCH, WAITING))
    total = batch + waiting
    peak = f"{torch.cuda.max_memory_allocated() / 1e6:,.0f}" if torch.cuda.is_available() else ""
    return [f"{sum(counter.counts[warm_up:]) / total:,.0f}", f"{100 * waiting / total:.1f}", peak]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print the table."""
    options = parser(__doc__)
    options.add_argument("--models", nargs="+", help="names in the table's first column; default: all")
    options.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    options.add_argument("--rows", type=int, default=4_000, help="made-up texts; default: %(default)s")
    options.add_argument("--transformer", help="folder of MiniLM")
    given = options.parse_args(arguments)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [["model", "variant", "examples a second", "waiting, %", "peak, MB"]]
    with tempfile.TemporaryDirectory() as name:
        made = workloads(Path(name), given.rows, given.transformer)
        for model in given.models or made:
            for variant in given.variants:
                lines.append([model, variant, *measure(made[model], variant, given.steps, Path(name))])
                print(*lines[-1], flush=True)
    print(f"\n{device}, PyTorch {torch.__version__}\n\n{markdown_table(lines)}", end="")


if __name__ == "__main__":
    main()
