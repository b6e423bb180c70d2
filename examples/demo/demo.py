"""The whole path in three minutes, offline: texts, memory, training, scores beside baselines, evidence.

Run it with `make demo`, or `python examples/demo/demo.py`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path

import torch
from docstrings import write_tables
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

import zoo
from datamodules.corpora.table import Rows, read_table
from zoo.cli import main as zoo_command

RUNS = Path("runs/demo")
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


def accuracy(predicted: list[str], rows: Rows) -> float:
    """Share of right labels."""
    labels = rows.labels or []
    return sum(a == b for a, b in zip(predicted, labels, strict=True)) / len(labels)


def train_and_test(name: str, train: Path, test: Path, *options: str) -> float:
    """Train a model by the commands that a user types; its test accuracy."""
    folder = RUNS / name
    run(
        "fit",
        "--config=examples/demo/demo.yaml",
        f"--data.train_file={train}",
        f"--data.cache_dir={RUNS / 'cache'}",
        f"--run_dir={folder}",
        *options,
    )
    run(
        "test",
        f"--ckpt_path={folder}/checkpoints/best.ckpt",
        f"--data.test_file={test}",
        f"--output={folder}/test.json",
        "--trainer.enable_progress_bar=false",
    )
    return float(json.loads((folder / "test.json").read_text())["accuracy"])


def main() -> None:
    """Tell the story."""
    start = time.monotonic()
    # Steps are small: a second thread would mostly wait for the first.
    torch.set_num_threads(1)
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    print("Collecting the first lines of docstrings of the installed packages; the label is the package.")
    train_file, test_file, moved = write_tables(RUNS)
    train, test = read_table(train_file), read_table(test_file)
    print(f"{len(train)} training and {len(test)} test texts, {len(train.distinct_labels())} classes;")
    print(f"{moved} test texts were near copies of training texts and went to the training half.")

    scores: dict[str, float] = {}
    majority = Counter(train.labels or []).most_common(1)[0][0]
    scores["majority class"] = accuracy([majority] * len(test), test)
    svm = make_pipeline(TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), LinearSVC())
    svm.fit(list(train.texts), train.labels)
    scores["TF-IDF uni- and bigrams + linear SVM"] = accuracy(list(svm.predict(list(test.texts))), test)
    scores["BiLSTM, no memory (M1)"] = train_and_test(
        "without_memory", train_file, test_file, "--model.features=M1", "--data.num_memories=0"
    )
    scores["BiLSTM + 5 memories, as in the paper (M7)"] = train_and_test("paper", train_file, test_file)
    # The encoder of the model without memory, and a head that learns to read the memories.
    scores["the first BiLSTM + 20 memories (recipe)"] = train_and_test(
        "recipe",
        train_file,
        test_file,
        "--model.features=M5",
        f"--model.init_from={RUNS}/without_memory/checkpoints/best.ckpt",
        "--model.freeze_encoder=true",
        "--model.attention=softmax",
        "--model.text_dropout=0.5",
        "--data.num_memories=20",
        "--trainer.max_epochs=10",
    )

    print("\nTest accuracy")
    for name, score in scores.items():
        print(f"  {name:40s} {score:.3f}")

    checkpoint = RUNS / "recipe" / "checkpoints" / "best.ckpt"
    print("\nThree texts that no model has seen, with the evidence for each label:")
    predictor = zoo.load(checkpoint)
    for prediction in predictor.predict(test.texts[:3]):
        print(f"\n  {prediction.text}\n  -> {prediction.label}, probability {prediction.probability:.2f}")
        for memory in sorted(prediction.memories, key=lambda m: -m.weight)[:4]:
            score = f"weight {memory.weight:+.2f}  score {memory.retrieval_score:6.2f}"
            print(f"     {score}  [{memory.label}] {memory.text}")

    print(f"\nDone in {time.monotonic() - start:.0f} seconds.{YOUR_OWN}")


if __name__ == "__main__":
    main()
