"""All steps in three minutes, offline: train on a table, measure what the memory adds, and let it grow.

Run it with `make demo`, or `python examples/demo/demo.py`.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from docstrings import write_tables

import zoo
from datamodules.corpora.table import read_table
from zoo.cli import main as zoo_command

RUNS = Path("runs/demo")
#: A class that the training lacks, and the number of its rows that are added later.
NEW_CLASS, NEW_ROWS = "networkx", 20
#: Share of the rows that the second model is trained on, and share that its weights are fitted on again.
FIRST, DEV = 0.3, 0.1
YOUR_OWN = """ The same on your own table (columns text, label):

  zoo fit --config your_own_data/classification --data.train_file train.csv --run_dir runs/mine
  zoo test --ckpt_path runs/mine --data.test_file test.csv --output scores.json
  zoo predict --ckpt_path runs/mine --input texts.txt --output predictions.jsonl
"""

Row = tuple[str, str]


def run(*command: str) -> None:
    """Run a `zoo` command and show it."""
    print(f"\n$ zoo {' '.join(command)}", flush=True)
    if zoo_command(command) != 0:
        raise SystemExit(f"zoo {command[0]} failed")


def train(name: str, table: Path) -> Path:
    """Train by the command that a user types; the run folder."""
    run(
        "fit",
        "--config=your_own_data/classification",
        "--config=examples/demo/demo.yaml",
        f"--data.train_file={table}",
        f"--data.cache_dir={RUNS / 'cache'}",
        f"--run_dir={RUNS / name}",
    )
    return RUNS / name


def test(checkpoint: Path, table: Path) -> dict[str, Any]:
    """Test scores of a checkpoint."""
    scores = RUNS / "test.json"
    run(
        "test",
        f"--ckpt_path={checkpoint}",
        f"--data.test_file={table}",
        f"--output={scores}",
        "--trainer.enable_progress_bar=false",
    )
    values: dict[str, Any] = json.loads(scores.read_text())
    return values


def write(name: str, rows: Sequence[Row]) -> Path:
    """A table of the demo."""
    path = RUNS / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def rows_of(table: Path) -> list[Row]:
    """Texts and labels of a table, in a fixed random order."""
    read = read_table(table)
    rows = [(read.texts[row], str(read.label(row))) for row in range(len(read))]
    random.Random(0).shuffle(rows)
    return rows


def grow_a_memory(train_rows: list[Row], test_rows: list[Row]) -> dict[str, float]:
    """Train on a part of the rows, then add others to the memory: scores without any further training."""
    known = [row for row in train_rows if row[1] != NEW_CLASS]
    new = [row for row in train_rows if row[1] == NEW_CLASS][:NEW_ROWS]
    cut, dev = int(FIRST * len(known)), len(known) - int(DEV * len(known))
    old_test = write("test_of_known_classes", [row for row in test_rows if row[1] != NEW_CLASS])
    checkpoint = train("growing", write("first", known[:cut]))
    scores = {f"trained on {cut:,} texts": test(checkpoint, old_test)["accuracy"]}
    run("memory", "add", str(checkpoint), str(write("later", known[cut:dev])))
    scores[f"  {dev - cut:,} more texts in its memory"] = test(checkpoint, old_test)["accuracy"]
    run("memory", "tune", str(checkpoint), str(write("dev", known[dev:])))
    scores["  and its weights fitted again"] = test(checkpoint, old_test)["accuracy"]
    run("memory", "add", str(checkpoint), str(write("new", new)), "--new_labels=true")
    after = test(checkpoint, write("test_of_all_classes", test_rows))
    scores["  and a class that the training lacked:"] = after["accuracy"]
    scores[f"    recall of {NEW_CLASS}, {len(new)} texts in the memory"] = after[f"recall/{NEW_CLASS}"]
    scores[f"    precision of {NEW_CLASS}"] = after[f"precision/{NEW_CLASS}"]
    show(checkpoint, [text for text, label in test_rows if label == NEW_CLASS][:1])
    return scores


def show(checkpoint: Path, texts: list[str]) -> None:
    """Predictions with the evidence for each label."""
    for prediction in zoo.load(checkpoint).predict(texts):
        by_memory = " (a class known by memory alone)" if prediction.known_by_memory_alone else ""
        print(f"\n  {prediction.text}")
        print(f"  -> {prediction.label}, probability {prediction.probability:.2f}{by_memory}")
        added = ", ".join(f"{name} {value:+.2f}" for name, value in prediction.contributions.items())
        print(f"     contributions to its score: {added}")
        for memory in sorted(prediction.memories, key=lambda memory: -memory.weight)[:3]:
            print(
                f"     weight {memory.weight:.2f}  by {memory.found_by or 'words'}  [{memory.label}] {memory.text}"
            )


def main() -> None:
    """Run the demo."""
    start = time.monotonic()
    # Steps are small: a second thread would mostly wait for the first.
    torch.set_num_threads(1)
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    print("Collecting the first lines of docstrings of the installed packages; the label is the package.")
    train_file, test_file, moved = write_tables(RUNS)
    train_rows, test_rows = rows_of(train_file), rows_of(test_file)
    classes = len({label for _, label in train_rows})
    print(f"{len(train_rows)} training and {len(test_rows)} test texts, {classes} classes;")
    print(f"{moved} test texts were near-duplicates of training texts and were moved to the training table.")

    checkpoint = train("mine", train_file)
    test(checkpoint, test_file)
    print("\nThree test texts, with the evidence for each label:")
    show(checkpoint, [text for text, _ in test_rows[:3]])
    growing = grow_a_memory(train_rows, test_rows)
    print("\nTest scores of a memory that grows after the training")
    for name, score in growing.items():
        print(f"  {name:48s} {score:.3f}")
    print(f"\nDone in {time.monotonic() - start:.0f} seconds.{YOUR_OWN}")


if __name__ == "__main__":
    main()
