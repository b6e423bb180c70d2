"""Growth of `zoo prepare` with the training table, and memory use while batches are read.

For each size a process of its own reads a CSV of 40-word texts (seeded draws with Zipf's distribution from 200,000
words), prepares it with K memories of the training rows, and then reads all batches several times. Printed:
CPU seconds and time of the preparation, peak memory, and the memory in use after each pass over the batches.

    python -m tests.benchmarks.prepare --rows 50000 100000 200000 --memories 5
    python -m tests.benchmarks.prepare --rows 250000 500000 1000000 --memories 0
"""

from __future__ import annotations

import csv
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.timing import parser, zipf_texts

WORDS = 40


def write_table(file: Path, rows: int) -> None:
    """A CSV of texts and labels."""
    with file.open("w", newline="") as out:
        texts = zipf_texts(rows, WORDS, 0)
        csv.writer(out).writerows(
            [("text", "label"), *((text, f"c{row % 10}") for row, text in enumerate(texts))]
        )


def resident_mb() -> float:
    """Memory in use now, mapped files not counted."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def measure(file: str, folder: str, memories: int, epochs: int) -> None:
    """Prepare and read in this process."""
    from datamodules import ClassificationDataModule

    data = ClassificationDataModule(train_file=file, num_memories=memories, cache_dir=folder)
    cpu, start = time.process_time(), time.perf_counter()
    data.prepare_data()
    data.setup("fit")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"prepare {time.process_time() - cpu:7.1f} CPU s {time.perf_counter() - start:7.1f} s  peak {peak:6.0f} MB",
        flush=True,
    )
    loader = data.train_dataloader()
    used = []
    for epoch in range(epochs):
        loader.batch_sampler.set_epoch(epoch)
        for _ in loader:
            pass
        used.append(f"{resident_mb():.0f}")
    print(f"memory after each pass over the batches: {', '.join(used)} MB", flush=True)


def main() -> None:
    """One process a size."""
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, nargs="+", default=[50_000, 100_000, 200_000])
    arguments.add_argument("--memories", type=int, default=5)
    arguments.add_argument("--epochs", type=int, default=3)
    options = arguments.parse_args()
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "train.csv"
            write_table(file, rows)
            print(f"{rows} rows, K = {options.memories}", flush=True)
            code = (
                "from tests.benchmarks.prepare import measure;"
                f"measure({str(file)!r}, {folder!r}, {options.memories}, {options.epochs})"
            )
            subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    main()
