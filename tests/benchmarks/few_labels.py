"""The default beside SetFit, six pipelines of scikit-learn and others, on the same rows of few or many labels.

Each contender runs in a process of its own on one core; training and test together are its CPU seconds.

    python examples/demo/docstrings.py DATA/docstrings
    python -m tests.benchmarks.package_descriptions DATA/packages
    python -m tests.benchmarks.few_labels DATA/docstrings DATA/packages --encoder FOLDER

Each folder has train.csv and test.csv with the columns text and label. SetFit needs packages that do not
fit ours: install it in another virtual environment and name its interpreter with --peer_python (`pip install setfit
"transformers<5"`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from datamodules.corpora.table import read_table

CONFIG = "your_own_data/classification"
OWN, PEERS = "default", ("six", "regression", "setfit")
#: Peers that run in the interpreter of --peer_python.
FOREIGN = ("regression", "setfit")


class Result(NamedTuple):
    """Of one contender on one sample."""

    accuracy: float
    seconds: float


def sample(source: Path, target: Path, rows: int, seed: int | None) -> None:
    """Write a table with this number of rows of each class; with a seed of None, of `rows` rows in all."""
    table = read_table(source)
    pairs = list(zip(table.texts[:], table.labels or [], strict=True))
    chosen = random.Random(seed or 0)
    if seed is None:
        pairs = chosen.sample(pairs, min(rows, len(pairs)))
    else:
        by_label: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for pair in pairs:
            by_label[pair[1]].append(pair)
        pairs = [
            pair
            for label in sorted(by_label)
            for pair in chosen.sample(by_label[label], min(rows, len(by_label[label])))
        ]
        chosen.shuffle(pairs)
    with target.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *pairs])


def cpu_seconds() -> float:
    """Of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def call(command: list[str], folder: Path) -> str:
    """Run a process on one core; its output."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment |= {
        "WANDB_MODE": "disabled",
        "ZOO_CACHE_DIR": str(folder / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    return ended.stdout


def fit_options(run_dir: Path, train: Path, encoder: str, options: Sequence[str] = ()) -> list[str]:
    """The command that trains the default on a table of few rows."""
    return [
        "fit",
        f"--config={CONFIG}",
        f"--data.train_file={train}",
        *([f"--model.transformer={encoder}"] if encoder else []),
        f"--run_dir={run_dir}",
        *options,
    ]


def run_own(folder: Path, train: Path, test: Path, encoder: str, options: list[str]) -> float:
    """Train the default and test it; its accuracy."""
    output, run_dir = folder / "scores.json", folder / "run"
    fit = fit_options(run_dir, train, encoder, options)
    test_command = ["test", f"--ckpt_path={run_dir}", f"--data.test_file={test}", f"--output={output}"]
    # One process, like the peers.
    code = f"from zoo.cli.main import main; main({fit}); main({test_command})"
    call([sys.executable, "-c", code], folder)
    return float(json.loads(output.read_text())["accuracy"])


def run(name: str, train: Path, test: Path, given: argparse.Namespace, options: list[str]) -> Result:
    """Train and test one contender."""
    with tempfile.TemporaryDirectory() as folder:
        before = cpu_seconds()
        if name == OWN:
            accuracy = run_own(Path(folder), train, test, given.encoder, options)
        else:
            script = str(Path(__file__).with_name("few_labels_peers.py"))
            python = given.peer_python if name in FOREIGN else sys.executable
            output = call([python, script, name, str(train), str(test), given.encoder], Path(folder))
            accuracy = float(json.loads(output.splitlines()[-1])["accuracy"])
        return Result(accuracy, cpu_seconds() - before)


def main() -> None:
    """Race on all tables, and print a line for each, and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="folders with train.csv and test.csv")
    parser.add_argument("--encoder", default="", help="folder of a sentence encoder; none without it")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 50], help="rows per class")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test_rows", type=int, default=1000)
    parser.add_argument("--contenders", nargs="+", default=[OWN, *PEERS], choices=[OWN, *PEERS])
    parser.add_argument("--peer_python", default=sys.executable)
    given, options = parser.parse_known_args()  # other options are those of `zoo fit`
    means: dict[tuple[int, str], list[Result]] = defaultdict(list)
    for source in given.data:
        for rows in given.rows:
            for seed in range(given.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    train, test = Path(folder) / "train.csv", Path(folder) / "test.csv"
                    sample(source / "train.csv", train, rows, seed)
                    sample(source / "test.csv", test, given.test_rows, None)
                    for name in given.contenders:
                        result = run(name, train.absolute(), test.absolute(), given, options)
                        means[rows, name].append(result)
                        print(
                            f"{source.name:16} {rows:3} rows a class, seed {seed}: {name:10} {_show(result)}",
                            flush=True,
                        )
    print("\nmean over tables and seeds")
    for (rows, name), results in sorted(means.items()):
        mean = Result(*(sum(column) / len(results) for column in zip(*results, strict=True)))
        print(f"{rows:3} rows a class: {name:10} {_show(mean)}")


def _show(result: Result) -> str:
    return f"accuracy {result.accuracy:.3f}, {result.seconds:.0f} CPU s"


if __name__ == "__main__":
    main()
