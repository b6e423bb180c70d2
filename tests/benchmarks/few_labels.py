"""The default beside SetFit, six pipelines of scikit-learn and others, on the same rows of few or many labels.

Each contender runs in a process of its own on one core; training and test together are its CPU seconds, its memory is
the peak of the largest process. The default runs by labels alone (written as numbers, which have no words), by labels
with their names, with the texts of unlabelled.csv as well, and (`nothing`) by names and these texts alone.

    python examples/demo/docstrings.py DATA/docstrings
    python -m tests.benchmarks.package_descriptions DATA/packages
    python -m tests.benchmarks.few_labels DATA/docstrings DATA/packages --encoder FOLDER

Each folder has train.csv and test.csv with the columns text and label, and unlabelled.csv with the column text. SetFit
needs packages that do not fit ours: install it in another virtual environment and name its interpreter with
--peer_python (`pip install setfit "transformers<5"`).
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

from datamodules.corpora.table import read_table
from tests.benchmarks.timing import parser
from tests.zoo.conftest import write_table
from zoo.tasks.classification.guides import words_of

CONFIG = "your_own_data/classification"
OWN, PEERS = ("nothing", "labels", "names", "texts"), ("six", "regression", "setfit")
#: Peers that run in the interpreter of --peer_python.
FOREIGN = ("regression", "setfit")


class Result(NamedTuple):
    """Of one contender on one sample."""

    accuracy: float
    seconds: float
    #: megabytes.
    memory: float


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
    write_table(target, pairs)


def number_labels(source: Path, target: Path) -> None:
    """Write a table with a number in place of each label."""
    table = read_table(source)
    numbers = {label: number for number, label in enumerate(sorted(set(table.labels or [])))}
    labels = [str(numbers[label]) for label in table.labels or []]
    write_table(target, list(zip(table.texts[:], labels, strict=True)))


def call(command: list[str], folder: Path) -> tuple[str, float, float]:
    """Run a process on one core; its output, CPU seconds and peak memory in megabytes."""
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
    one_core = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **offline, **one_core, "ZOO_CACHE_DIR": str(folder / "cache")}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors, text=True)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        text = output.read()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}\n{text[-2000:]}\n{errors.read()[-4000:]}")
    return text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def run_own(name: str, folder: Path, source: Path, encoder: str, options: list[str]) -> Result:
    """Train the default on a folder of tables and test it."""
    output, run_dir = folder / "scores.json", folder / "run"
    train, test = source / "train.csv", source / "test.csv"
    if name == "labels":
        for file in (train, test):
            number_labels(file, folder / file.name)
        train, test = folder / train.name, folder / test.name
    option = "train_file"
    if name == "nothing":
        labels = sorted({*(read_table(train).labels or [])})
        train = write_table(folder / "labels.csv", [(words_of(label) or label, label) for label in labels])
        option = "label_texts"
    if name in ("nothing", "texts"):
        options = [*options, f"--data.unlabelled_file={source / 'unlabelled.csv'}"]
    if encoder:
        options = [f"--model.transformer={encoder}", *options]
    fit = ["fit", f"--config={CONFIG}", f"--data.{option}={train}", f"--run_dir={run_dir}", *options]
    test_command = ["test", f"--ckpt_path={run_dir}", f"--data.test_file={test}", f"--output={output}"]
    # One process, like the peers.
    code = f"from zoo.cli.main import main; main({fit}); main({test_command})"
    _, seconds, memory = call([sys.executable, "-c", code], folder)
    return Result(float(json.loads(output.read_text())["accuracy"]), seconds, memory)


def run(name: str, source: Path, given: argparse.Namespace, options: list[str]) -> Result:
    """Train and test one contender on a folder of tables."""
    with tempfile.TemporaryDirectory() as folder:
        if name in OWN:
            return run_own(name, Path(folder), source, given.encoder, options)
        script = str(Path(__file__).with_name("few_labels_peers.py"))
        python = given.peer_python if name in FOREIGN else sys.executable
        tables = [str(source / "train.csv"), str(source / "test.csv")]
        output, seconds, memory = call([python, script, name, *tables, given.encoder], Path(folder))
        return Result(float(json.loads(output.splitlines()[-1])["accuracy"]), seconds, memory)


def main() -> None:
    """Race on all tables, print a line for each sample, and the means."""
    arguments = parser(__doc__)
    arguments.add_argument("data", nargs="+", type=Path, help="folders with train.csv and test.csv")
    arguments.add_argument("--encoder", default="", help="folder of a sentence encoder; none without it")
    arguments.add_argument("--rows", type=int, nargs="+", default=[8, 16, 50], help="rows per class")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--test_rows", type=int, default=1000)
    arguments.add_argument("--contenders", nargs="+", default=[*OWN[1:], *PEERS], choices=[*OWN, *PEERS])
    arguments.add_argument("--peer_python", default=sys.executable)
    given, options = arguments.parse_known_args()  # other options are those of `zoo fit`
    means: dict[tuple[int, str], list[Result]] = defaultdict(list)
    for source, rows, seed in product(given.data, given.rows, range(given.seeds)):
        with tempfile.TemporaryDirectory() as name_of_folder:
            folder = Path(name_of_folder)
            sample(source / "train.csv", folder / "train.csv", rows, seed)
            sample(source / "test.csv", folder / "test.csv", given.test_rows, None)
            if {"nothing", "texts"} & {*given.contenders}:
                shutil.copy(source / "unlabelled.csv", folder)
            for name in given.contenders:
                result = run(name, folder, given, options)
                means[rows, name].append(result)
                place = f"{source.name:16} {rows:3} rows a class, seed {seed}"
                print(f"{place}: {name:10} {_show(result)}", flush=True)
    print("\nmean over tables and seeds")
    for (rows, name), results in sorted(means.items()):
        mean = Result(*(sum(column) / len(results) for column in zip(*results, strict=True)))
        print(f"{rows:3} rows a class: {name:10} {_show(mean)}")


def _show(result: Result) -> str:
    return f"accuracy {result.accuracy:.3f}, {result.seconds:.0f} CPU s, {result.memory:.0f} MB"


if __name__ == "__main__":
    main()
