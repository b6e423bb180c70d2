"""Cost of the checks of bounds, which prevent that wrong numbers in a memory crash native code, in opening a memory.

Texts as in `memory_growth`. A memory is opened alternately with all checks and without those of bounds (numbers,
starts, strings of Arrow); checksums are compared both times. Printed: medians of both, and their ratio, with the files
in the system's cache of pages, and read from the disk.

    python -m tests.benchmarks.opening --rows 200000
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pyarrow as pa

from datamodules.retrieval import EmbeddedRetriever, FolderMemory, open_memory
from tests.benchmarks.memory_growth import make_rows


def _unchecked_table(path: Path, schema: pa.Schema) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


@contextmanager
def without_bounds() -> Iterator[None]:
    """Open without the checks of bounds."""
    with ExitStack() as stack:
        index = "datamodules.retrieval.embedded.inverted_index.InvertedIndex._check"
        for name in ("datamodules.core.arrays.check_numbers", index):
            stack.enter_context(mock.patch(name, return_value=None))
        stack.enter_context(mock.patch("datamodules.corpora.rows.map_table", _unchecked_table))
        yield


def seconds_to_open(folder: Path, from_disk: bool) -> float:
    """Open a memory, and return the time."""
    for path in folder.rglob("*") if from_disk else ():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    open_memory(str(folder))
    return time.perf_counter() - start


def main() -> None:
    """Build a memory, and open it with and without the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--words", type=int, default=40, help="of a text")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "memory"
        rows = make_rows(options.rows, options.words)
        FolderMemory.build(rows, EmbeddedRetriever(), folder, progress=False)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{options.rows} rows, {size / 1e6:.0f} MB")
        for place in ("cache", "disk"):
            checked, unchecked = list[float](), list[float]()
            for _ in range(options.repeats):
                checked.append(seconds_to_open(folder, place == "disk"))
                with without_bounds():
                    unchecked.append(seconds_to_open(folder, place == "disk"))
            with_checks, without = statistics.median(checked), statistics.median(unchecked)
            print(
                f"from the {place:5} {with_checks * 1000:6.1f} ms, without the checks of bounds"
                f" {without * 1000:6.1f} ms: {with_checks / without - 1:+.1%}"
            )


if __name__ == "__main__":
    main()
