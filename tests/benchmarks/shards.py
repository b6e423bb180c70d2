"""`zoo encode --shard`: CPU seconds and memory of several processes that encode one table, against one process.

Writes tables of N/10 and N texts of 10 words (drawn from 50,000 words with Zipf's distribution), and trains a small
KNNBiLSTM on some of them. `zoo encode` then encodes the smaller table in one process, and both in several at a time,
one thread each. Printed: CPU seconds per million texts, efficiency (CPU seconds of one process / CPU seconds of
several, for the same number of texts), and the largest peak memory of a process. The time includes starting Python,
loading the model, reading the table and merging the parts. Tables, model and vectors stay in the folder: about 0.9 GB
per million texts while N texts are encoded.

    python -m tests.benchmarks.shards --folder SCRATCH --texts 1000000 --processes 4
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

WORDS, VOCABULARY, TRAINING = 10, 50_000, 3000


class Cost(NamedTuple):
    """The cost of encoding one table."""

    cpu_seconds: float
    seconds: float
    #: of the process with the largest peak.
    peak_mb: float


def write_table(file: Path, texts: int) -> None:
    """A CSV of texts and labels."""
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, VOCABULARY + 1)
    ends = np.cumsum(share / share.sum())
    with file.open("w") as out:
        out.write("text,label\n")
        for start in range(0, texts, 50_000):
            drawn = np.searchsorted(ends, random.random((min(50_000, texts - start), WORDS)))
            out.writelines(
                " ".join(f"w{word}" for word in row) + f",c{row[0] % 5}\n" for row in drawn.tolist()
            )


def zoo(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "zoo", *map(str, arguments)]


def train(folder: Path) -> Path:
    """A small model, unless it is there."""
    run, table = folder / "run", folder / "train.csv"
    if not (run / "checkpoints" / "best.ckpt").exists():
        shutil.rmtree(run, ignore_errors=True)
        write_table(table, TRAINING)
        subprocess.run(
            zoo(
                "fit", "--model=KNNBiLSTM", "--model.features=M1", "--model.hidden_size=32", "--model.word_size=50",
                "--model.characters=false", "--data.characters=false", "--data.num_memories=0",
                f"--data.train_file={table}", "--data.validation_split=0.1", "--trainer.accelerator=cpu",
                "--trainer.max_epochs=1", f"--run_dir={run}",
            ),
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return run


def encode(run: Path, table: Path, output: Path, shards: Sequence[str | None]) -> Cost:
    """Encode a table in one process for each shard, all at a time; None is a process without shards."""
    shutil.rmtree(output, ignore_errors=True)
    cache = output.with_name("cache")
    shutil.rmtree(cache, ignore_errors=True)  # with it, another run's vectors would be looked up
    environment = {**os.environ, "ZOO_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    started, processes = time.perf_counter(), []
    for shard in shards:
        options = [] if shard is None else [f"--shard={shard}"]
        command = zoo(
            "encode", "--ckpt_path", run, "--input", table, "--output", output, "--threads=1", *options
        )
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    cpu, peak = 0.0, 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise SystemExit(f"zoo encode ended with status {os.waitstatus_to_exitcode(status)}")
        cpu += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss / 1024)
    return Cost(cpu, time.perf_counter() - started, peak)


def main() -> None:
    """One process on a tenth, then several on a tenth and on all texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=4)
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    run = train(folder)
    shards = [f"{number}/{options.processes}" for number in range(1, options.processes + 1)]
    baseline = 0.0
    print("texts       processes  CPU s/million  efficiency  seconds  peak MB a process")
    for texts, parts in (
        (options.texts // 10, [None]),
        (options.texts // 10, shards),
        (options.texts, shards),
    ):
        table = folder / f"texts-{texts}.csv"
        if not table.exists():
            write_table(table, texts)
        output = folder / ("one" if parts == [None] else f"shards-{texts}")
        cost = encode(run, table, output, parts)
        per_million = cost.cpu_seconds / texts * 1e6
        baseline = baseline or per_million
        print(
            f"{texts:<11,} {len(parts):<10} {per_million:<14.1f} {baseline / per_million:<11.2f} {cost.seconds:<8.0f}"
            f" {cost.peak_mb:.0f}",
            flush=True,
        )
    smaller = folder / f"shards-{options.texts // 10}"
    if not filecmp.cmp(smaller / "vectors.npy", folder / "one" / "vectors.npy", shallow=False):
        raise SystemExit("the vectors of shards are not those of one process")
    for name in ("one", smaller.name, f"shards-{options.texts}", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)


if __name__ == "__main__":
    main()
