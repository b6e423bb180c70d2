"""Time that a refresh of mined negatives holds the training, compared with encoding the same collection alone.

    python -m tests.benchmarks.refresh [--documents 100000] [--queries 2500]

The collection is made up: titles of 4 to 16 words, drawn from 50,000 words with Zipf's distribution. A refresh encodes
documents and queries while the training waits, and searches while it continues; the hits are read when they are due.
Encoding alone is the first of these. Both run in turns; the search in the background has ended before the next turn.
Also printed: sentences a CPU second, with batches sorted by length and as they come.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from datamodules import ClickthroughDataModule
from zoo.lstm_rnn import LSTMRNN
from zoo.tasks.predictor import evaluating
from zoo.tasks.retrieval.mining import embed, find_hits
from zoo.tasks.retrieval.refreshed_negatives import RefreshedNegatives


def write_collection(folder: Path, documents: int, queries: int) -> dict[str, str]:
    """Made-up documents and queries, one document of each judged; returns the options that name them."""
    random = np.random.default_rng(0)
    words = np.array([_spelled(number) for number in range(50_000)])

    def text(least: int, most: int) -> str:
        ranks = random.zipf(1.2, size=int(random.integers(least, most + 1))) % len(words)
        return " ".join(words[ranks])

    for name, number, lengths in (("corpus", documents, (4, 16)), ("queries", queries, (1, 8))):
        lines = (json.dumps({"_id": str(row), "text": text(*lengths)}) for row in range(number))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    judged = (f"{row}\t{random.integers(documents)}\t1" for row in range(queries))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")
    return {
        "corpus_file": str(folder / "corpus.jsonl"),
        "train_queries": str(folder / "queries.jsonl"),
        "train_judgements": str(folder / "qrels.tsv"),
    }


def _spelled(number: int) -> str:
    """A word of 3 to 7 letters for a number."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    spelled = ""
    for _ in range(3 + number % 5):
        number, letter = divmod(number * 31 + 7, len(letters))
        spelled += letters[letter]
    return f"{spelled}{number}"


def ready(folder: Path, args: argparse.Namespace) -> tuple[Any, ClickthroughDataModule]:
    """An untrained model and its data."""
    data = ClickthroughDataModule(
        **write_collection(folder, args.documents, args.queries),
        negatives=["in_batch", "retrieved"],
        num_hits=5,
        validation_split=0.02,
        cache_dir=str(folder / "cache"),
    )
    data.prepare_data()
    data.setup("fit")
    torch.manual_seed(0)
    model = LSTMRNN(hidden_size=args.cells)
    model.network = model.build_network(data.spec, None, None)
    return model.eval(), data


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds that pass, and that the processor works for this thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - wall, time.thread_time() - cpu


def main() -> None:
    """Print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=2500)
    parser.add_argument("--cells", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        model, data = ready(Path(name), args)
        callback = RefreshedNegatives(search_steps=1)
        numbers = iter(range(100))

        def refresh() -> SimpleNamespace:
            # Of another run each time: nothing of the last refresh is there.
            trainer = SimpleNamespace(
                datamodule=data,
                is_global_zero=True,
                strategy=SimpleNamespace(broadcast=lambda value: value, barrier=lambda name: None),
                default_root_dir=f"{name}/run{next(numbers)}",
                precision_plugin=SimpleNamespace(forward_context=nullcontext),
                global_step=0,
                loggers=[],
            )
            callback.refresh(trainer, model)  # type: ignore[arg-type]
            return trainer

        def take(trainer: Any) -> None:
            callback._finish_search()  # the steps until it is due
            took.append(timed(lambda: callback._use_next(trainer)))

        split = data.split("train")
        dataset = data.ranking_dataset(split, model.batch_contents("train"))

        def encode(blocks: list[Any]) -> None:
            with evaluating(model):
                for columns in blocks:
                    model.embed(dataset.document_batch(columns), queries=False)

        by_length = dataset.document_blocks(512)
        rows = np.random.default_rng(0).permutation(len(dataset.documents))
        as_they_come = [rows[start : start + 512] for start in range(0, len(rows), 512)]
        embedded = embed(model, data, 512)  # kernels are compiled
        alone, held, took, searched, sorted_, unsorted = ([] for _ in range(6))
        for _ in range(args.rounds):
            alone.append(timed(lambda: embed(model, data, 512)))
            trainers: list[Any] = []
            held.append(timed(lambda trainers=trainers: trainers.append(refresh())))
            take(trainers[0])
            searched.append(timed(lambda: find_hits(embedded, split.judgements, 50)))
            sorted_.append(timed(lambda: encode(by_length)))
            unsorted.append(timed(lambda: encode(as_they_come)))
        for title, times in (
            ("held by a refresh", held),
            ("taking it when due", took),
            ("searching", searched),
        ):
            ratios = [
                median(one[i] / other[i] for one, other in zip(times, alone, strict=True)) for i in (0, 1)
            ]
            print(f"{title} / encoding alone: {ratios[0]:.2f} of time, {ratios[1]:.2f} of CPU time")
        for title, times in (("sorted by length", sorted_), ("as they come", unsorted)):
            rate = args.documents / median(cpu for _, cpu in times)
            print(f"encoding, batches {title}: {rate:,.0f} sentences a CPU second")


if __name__ == "__main__":
    main()
