"""Labels of a large table by Ray and Spark, against one process of `zoo predict` and two shards at once.

    .venv-scale/bin/python -m tests.benchmarks.scale MODEL TABLE.csv

MODEL is a run folder or a model folder, TABLE has the columns `id` and `text`; `make scale` installs Ray and Spark.
Each contender starts and ends with its processes and writes all labels, Ray and Spark by the code of examples/sharding.
Printed are wall-clock seconds, rows per second and CPU seconds, also relative to one process, and the peak memory of
all processes together, in which a page that several share counts once. All have one thread in each process.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from datamodules.corpora.table import read_table
from tests.benchmarks.timing import parser
from tests.zoo.examples import EXAMPLES, framework_code

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(EXAMPLES.parent),
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def measure(commands: list[list[str]], folder: Path) -> tuple[float, float, float]:
    """Run commands at once; wall-clock seconds, CPU seconds and peak gigabytes of them and all their descendants."""
    # The last half second of each process is missing.
    began, peak, cpu_seconds = time.perf_counter(), 0, dict[int, float]()
    with (folder / "log").open("wb") as log:
        given = {"cwd": folder, "env": ENVIRONMENT, "stdout": log, "stderr": log}
        started = [psutil.Popen(command, **given) for command in commands]
        while any(process.poll() is None for process in started):
            memory = 0
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    cpu_seconds[process.pid] = sum(process.cpu_times()[:2])
                    memory += process.memory_full_info().pss
            peak = max(peak, memory)
            time.sleep(0.5)
    if any(process.returncode for process in started):
        raise SystemExit((folder / "log").read_text(errors="replace"))
    return time.perf_counter() - began, sum(cpu_seconds.values()), peak / 1e9


def page_code(framework: str, model: str, table: str, folder: Path) -> str:
    return framework_code(framework, model, folder).replace('"texts.csv"', repr(table))


def contenders(model: str, table: str) -> dict[str, Callable[[Path], list[list[str]]]]:
    """Name of each contender -> commands that run at once, and write into a folder."""
    options = [f"--ckpt_path={model}", f"--input={table}", "--output=labels.csv"]
    predict = [sys.executable, "-m", "zoo", "predict", *options]

    def ray(folder: Path, actors: int) -> list[list[str]]:
        # A CPU more than actors, on a machine that may have fewer.
        start = f"import ray\nray.init(num_cpus={actors + 1}, include_dashboard=False)\n"
        code = page_code("ray", model, table, folder).replace("actors=2", f"actors={actors}")
        return [[sys.executable, "-c", start + code]]

    return {
        "one process": lambda folder: [predict],
        "two shards at once": lambda folder: [[*predict, f"--shard={each}/2"] for each in (1, 2)],
        "Ray, one actor": lambda folder: ray(folder, actors=1),
        "Ray, two actors": lambda folder: ray(folder, actors=2),
        "Spark, `local[2]`": lambda folder: [
            [sys.executable, "-c", page_code("pyspark", model, table, folder)]
        ],
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("model")
    arguments.add_argument("table")
    given = arguments.parse_args()
    model, table = str(Path(given.model).resolve()), str(Path(given.table).resolve())
    rows, first = len(read_table(table, label_column=None)), (0.0, 0.0, 0.0)
    print("| | seconds | rows/s | CPU s | rows/s and CPU s, relative | GB |\n|---|---|---|---|---|---|")
    for name, commands in contenders(model, table).items():
        with tempfile.TemporaryDirectory() as folder:
            seconds, cpu_seconds, memory = measure(commands(Path(folder)), Path(folder))
        first = first if first[0] else (seconds, cpu_seconds, memory)
        relative = f"{first[0] / seconds:.2f}, {cpu_seconds / first[1]:.2f}"
        figures = f"{seconds:.0f} | {rows / seconds:.0f} | {cpu_seconds:.0f} | {relative} | {memory:.1f}"
        print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
