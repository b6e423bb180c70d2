"""Error among answers with `max_error`, and coverage of label sets, over random splits of a model's results.

    python -m tests.benchmarks.abstention DATA/ag DATA/dblp DATA/docstrings DATA/packages

The default ensemble without a transformer is trained once for each table, and classifies further rows (without
duplicates, near ones included). These are then split again and again into held-out rows, by which a threshold is
chosen, and test rows. A test error above the level also has the noise of the test rows; in the second figure there is
none: held-out rows are drawn with replacement from all rows, and the error is that of all rows. A last line has the
model's own held-out rows, with weights fitted out of fold. Refused levels are counted as kept.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

import zoo
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from tests.benchmarks.few_labels_growth import run
from zoo.saving.held_out import HeldOutScores
from zoo.tasks.classification.abstention import certified_threshold, set_threshold

CONFIDENCE = 0.95


class Outcome(NamedTuple):
    """Of a threshold on some rows."""

    #: share of errors among the answers; 0 if there is none.
    error: float
    #: share of the rows that are answered.
    answered: float


def outcome(scores: HeldOutScores, threshold: float | None) -> Outcome:
    """Error and share of the answers; no answers without a threshold."""
    answers = scores.probability >= (np.inf if threshold is None else threshold)
    return Outcome(float((~scores.is_right[answers]).mean()) if answers.any() else 0.0, float(answers.mean()))


def select(scores: HeldOutScores, rows: np.ndarray) -> HeldOutScores:
    """The results for some rows."""
    return HeldOutScores(*(values[rows] for values in scores))


def scores_of(source: Path, given: argparse.Namespace, folder: Path) -> HeldOutScores:
    """Train on some rows of a table, print what the model's own held-out rows promise, and classify others."""
    tables = [read_table(source / f"{name}.csv") for name in ("train", "test")]
    pairs = [pair for rows in tables for pair in zip(rows.texts[:], rows.labels or [], strict=True)]
    order = np.random.default_rng(given.seed).permutation(len(pairs))[: given.train_rows + given.rows]
    table = folder / "train.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        chosen = [pairs[row] for row in order[: given.train_rows]]
        csv.writer(file).writerows([("text", "label"), *chosen])
    options = ["--model=MemoryEnsemble", "--data=ClassificationDataModule", f"--data.train_file={table}"]
    options += [f"--run_dir={folder / 'run'}", f"--trainer.max_epochs={given.epochs}"]
    run(folder, [["fit", *options, "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]])
    predictor = zoo.load(folder / "run")
    others = [pairs[row] for row in order[given.train_rows :]]
    rows = Rows.from_lists([text for text, _ in others], [label for _, label in others], source="others")
    neighbors = predictor.data.split_of(rows, predictor.memory).neighbors
    seen = predictor.data.duplicates.seen
    marks = predictor.data.marks_of(rows, neighbors, predictor.memory, seen)
    first = np.zeros(len(rows), bool)
    first[np.unique(predictor.data.duplicate_keys(rows), return_index=True)[1]] = True
    kept = np.flatnonzero(marks.is_independent & first)
    predictions = predictor.predict(rows.texts.take(kept))
    labels = [others[row][1] for row in kept]
    scores = HeldOutScores(
        np.array([each.probability for each in predictions]),
        np.array([each.label == label for each, label in zip(predictions, labels, strict=True)]),
        np.array([each.probabilities.get(label, 0) for each, label in zip(predictions, labels, strict=True)]),
    )
    own = predictor.held_out_scores()
    print(f"{source.name}: {len(kept)} rows, accuracy {scores.is_right.mean():.3f}", flush=True)
    for level in given.levels:
        threshold = certified_threshold(own, level, CONFIDENCE)
        result = outcome(scores, threshold)
        print(
            f"  own {len(own.is_right)} held-out rows, level {level:.2f}: error {result.error:.3f}, answered"
            f" {result.answered:.2f}" + (" (refused)" if threshold is None else "")
        )
    return scores


def measure(scores: HeldOutScores, given: argparse.Namespace) -> None:
    """Print the figures of a table."""
    random, size = np.random.default_rng(given.seed), len(scores.is_right)
    splits, draws = [], []
    for _ in range(given.splits):
        order = random.permutation(size)
        splits.append((select(scores, order[: given.held_out]), select(scores, order[given.held_out :])))
        draws.append((select(scores, random.integers(size, size=given.held_out)), scores))
    for level in given.levels:
        line = []
        for name, parts in (("splits", splits), ("draws", draws)):
            thresholds = [certified_threshold(held_out, level, CONFIDENCE) for held_out, _ in parts]
            pairs = zip(parts, thresholds, strict=True)
            results = [outcome(test, threshold) for (_, test), threshold in pairs]
            kept = np.mean([each.error <= level for each in results])
            certified = [
                each for each, threshold in zip(results, thresholds, strict=True) if threshold is not None
            ]
            mean = np.mean(certified or [(np.nan, np.nan)], axis=0)
            line.append(
                f"{name} kept {100 * kept:.1f} %, certified {100 * len(certified) / len(parts):.0f} %, error"
                f" {mean[0]:.4f}, answered {mean[1]:.2f}"
            )
        print(f"  level {level:.2f}: {'; '.join(line)}", flush=True)
    for miscoverage in (0.05, 0.1):
        covered = [
            (test.of_label >= set_threshold(held_out, miscoverage)).mean() for held_out, test in splits
        ]
        print(f"  label sets, {miscoverage:.2f}: coverage {np.mean(covered):.4f} (sd {np.std(covered):.4f})")


def main() -> None:
    """Print the figures of each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="folders with train.csv and test.csv")
    parser.add_argument("--train_rows", type=int, default=3000)
    parser.add_argument("--rows", type=int, default=5000, help="further rows that are classified")
    parser.add_argument("--held_out", type=int, default=1500, help="of them, to choose a threshold")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--levels", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for source in given.data:
        with tempfile.TemporaryDirectory() as folder:
            scores = scores_of(source, given, Path(folder))
        measure(scores, given)


if __name__ == "__main__":
    main()
