"""The whole path in three minutes, offline: texts, memory, training, scores beside baselines, evidence.

Run it with `make demo`, or `python examples/demo/demo.py`.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import time
from itertools import pairwise
from pathlib import Path

import torch
from docstrings import write_tables

import zoo
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from zoo.cli import main as zoo_command

RUNS = Path("runs/demo")
#: What a network must beat: models of the zoo like the others, fitted by the same command.
REFERENCES = {
    "majority class": "Majority",
    "BM25 vote of 5 neighbours": "NeighborVote",
    "TF-IDF uni- and bigrams + linear SVM": "TfidfSVM",
}
#: A trained encoder as it is, and a head that learns to read 20 memories.
RECIPE = (
    "--model.features=M5",
    "--model.freeze_encoder=true",
    "--model.attention=softmax",
    "--model.text_dropout=0.5",
    "--data.num_memories=20",
    "--trainer.max_epochs=10",
)
NO_MEMORY = ("--model.features=M1", "--data.num_memories=0")
YOUR_OWN = """ The same on your own table (columns text, label):

  zoo fit --config examples/knn_bilstm/your_own_csv.yaml --data.train_file train.csv --run_dir runs/mine
  zoo test --ckpt_path runs/mine/checkpoints/best.ckpt --data.test_file test.csv --output scores.json
  zoo predict --ckpt_path runs/mine/checkpoints/best.ckpt --input texts.txt --output predictions.jsonl
"""


def run(*command: str) -> None:
    """Run a `zoo` command and show it."""
    print(f"\n$ zoo {' '.join(command)}", flush=True)
    if zoo_command(command) != 0:
        raise SystemExit(f"zoo {command[0]} failed")


def train(name: str, table: Path, *options: str) -> Path:
    """Train a model by the command that a user types; its checkpoint."""
    run(
        "fit",
        "--config=examples/demo/demo.yaml",
        f"--data.train_file={table}",
        f"--data.cache_dir={RUNS / 'cache'}",
        f"--run_dir={RUNS / name}",
        *options,
    )
    return RUNS / name / "checkpoints" / "best.ckpt"


def test(checkpoint: Path, table: Path) -> float:
    """Test accuracy of a checkpoint."""
    scores = RUNS / "test.json"
    run(
        "test",
        f"--ckpt_path={checkpoint}",
        f"--data.test_file={table}",
        f"--output={scores}",
        "--trainer.enable_progress_bar=false",
    )
    return float(json.loads(scores.read_text())["accuracy"])


def write_parts(rows: Rows) -> tuple[Path, Path, Path]:
    """Three tables: labelled texts to start with, those that are labelled later, and some to tune on."""
    order = random.Random(0).sample(range(len(rows)), len(rows))
    cuts = [0, int(0.3 * len(rows)), int(0.9 * len(rows)), len(rows)]
    paths = RUNS / "first.csv", RUNS / "later.csv", RUNS / "dev.csv"
    for path, (start, end) in zip(paths, pairwise(cuts), strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            part = [(rows.texts[row], rows.label(row)) for row in order[start:end]]
            csv.writer(file).writerows([("text", "label"), *part])
    return paths


def grow_a_memory(rows: Rows, test_file: Path) -> dict[str, float]:
    """Train on a part of the rows, then add the others to the memory: accuracies without any further training."""
    first, later, dev = write_parts(rows)
    dev_option = f"--data.validation_file={dev}"
    base = train("first_without_memory", first, dev_option, *NO_MEMORY)
    checkpoint = train("first_recipe", first, dev_option, f"--model.init_from={base}", *RECIPE)
    trained_on = len(read_table(first))
    scores = {f"recipe trained on {trained_on} texts": test(checkpoint, test_file)}
    run("memory", "add", str(checkpoint), str(later))
    scores[f"  {len(read_table(later))} more texts in its memory"] = test(checkpoint, test_file)
    run("memory", "tune", str(checkpoint), str(dev))
    scores["  and its trust in the memory tuned"] = test(checkpoint.with_name("tuned.ckpt"), test_file)
    return scores


def main() -> None:
    """Tell the story."""
    start = time.monotonic()
    # Steps are small: a second thread would mostly wait for the first.
    torch.set_num_threads(1)
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    print("Collecting the first lines of docstrings of the installed packages; the label is the package.")
    train_file, test_file, moved = write_tables(RUNS)
    train_rows, test_rows = read_table(train_file), read_table(test_file)
    classes = len(train_rows.distinct_labels())
    print(f"{len(train_rows)} training and {len(test_rows)} test texts, {classes} classes;")
    print(f"{moved} test texts were near copies of training texts and went to the training half.")

    scores = {
        name: test(train(model, train_file, f"--model={model}"), test_file)
        for name, model in REFERENCES.items()
    }
    without_memory = train("without_memory", train_file, *NO_MEMORY)
    scores["BiLSTM, no memory (M1)"] = test(without_memory, test_file)
    paper = train("paper", train_file)
    scores["BiLSTM + 5 memories, as in the paper (M7)"] = test(paper, test_file)
    # The encoder of the model without memory, and a head that learns to read the memories.
    recipe = train("recipe", train_file, f"--model.init_from={without_memory}", *RECIPE)
    scores["the first BiLSTM + 20 memories (recipe)"] = test(recipe, test_file)
    growing = grow_a_memory(train_rows, test_file)

    print("\nTest accuracy")
    for name, score in scores.items():
        print(f"  {name:42s} {score:.3f}")
    print("\nTest accuracy of a memory that grows after the training")
    for name, score in growing.items():
        print(f"  {name:42s} {score:.3f}")

    print("\nThree texts that no model has seen, with the evidence for each label:")
    predictor = zoo.load(recipe)
    for prediction in predictor.predict(test_rows.texts[:3]):
        print(f"\n  {prediction.text}\n  -> {prediction.label}, probability {prediction.probability:.2f}")
        for memory in sorted(prediction.memories, key=lambda m: -m.weight)[:4]:
            score = f"weight {memory.weight:+.2f}  score {memory.retrieval_score:6.2f}"
            print(f"     {score}  [{memory.label}] {memory.text}")

    print(f"\nDone in {time.monotonic() - start:.0f} seconds.{YOUR_OWN}")


if __name__ == "__main__":
    main()
