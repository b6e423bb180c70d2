"""A memory that grows after its metric was learned from few labels, against training again on all rows.

    python -m tests.benchmarks.few_labels_growth DATA/packages --encoder FOLDER --new_classes 5

The default is trained on 8 rows of each class, except for some classes. Its memory then grows to 190 rows of each class
(`zoo memory add`), its weights are fitted to 10 others (`zoo memory tune`, also with `--refit true`), and it classifies
the test rows. The peer is trained on all of these rows. CPU seconds are of one core: of training, or of growing and
tuning.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from datamodules.corpora.table import read_table
from tests.benchmarks.few_labels import call, cpu_seconds, fit_options, sample


class Score(NamedTuple):
    """Of one way to the same rows."""

    accuracy: float
    #: of the classes that were not trained at first.
    recall: float
    seconds: float


def pairs_of(table: Path) -> list[tuple[str, str]]:
    """Texts and labels of a table."""
    rows = read_table(table)
    return list(zip(rows.texts[:], rows.labels or [], strict=True))


def write(table: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write texts and labels."""
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *pairs])
    return table


def run(folder: Path, commands: list[list[str]]) -> float:
    """Call commands of `zoo` in one process; its CPU seconds."""
    before = cpu_seconds()
    loop = f"for each in {commands}:\n    assert main(each) == 0"
    call([sys.executable, "-c", f"from zoo.cli.main import main\n{loop}"], folder)
    return cpu_seconds() - before


def score(folder: Path, model: Path, test: Path, new: set[str], seconds: float) -> Score:
    """Classify the test rows."""
    output = folder / "predictions.jsonl"
    run(folder, [["predict", f"--ckpt_path={model}", f"--input={test}", f"--output={output}"]])
    predicted = [json.loads(line)["label"] for line in output.read_text(encoding="utf-8").splitlines()]
    labels = [label for _, label in pairs_of(test)]
    right = [own == label for own, label in zip(predicted, labels, strict=True)]
    of_new = [each for each, label in zip(right, labels, strict=True) if label in new]
    return Score(sum(right) / len(right), sum(of_new) / max(1, len(of_new)), seconds)


def race(source: Path, given: argparse.Namespace, seed: int, folder: Path) -> dict[str, Score]:
    """Grow and train again with the rows of one seed."""
    first, grown, dev, test = (folder / f"{name}.csv" for name in ("first", "grown", "dev", "test"))
    sample(source / "train.csv", grown, given.grown_rows, seed)
    sample(source / "test.csv", test, given.test_rows, None)
    grown_pairs = pairs_of(grown)
    new = set(sorted({label for _, label in grown_pairs})[::4][: given.new_classes])
    write(grown, [pair for pair in grown_pairs if pair[1] not in new])
    sample(grown, first, given.rows, seed)
    taken = set(pairs_of(first))
    write(grown, [pair for pair in grown_pairs if pair not in taken])
    sample(grown, dev, given.dev_rows, seed)
    taken |= set(pairs_of(dev))
    write(grown, [pair for pair in grown_pairs if pair not in taken])
    model, refitted, again = folder / "model", folder / "refitted", folder / "again"
    everything = folder / "all.csv"
    write(everything, grown_pairs)
    run(folder, [fit_options(model, first, given.encoder)])
    scores = {"first": score(folder, model, test, new, 0.0)}
    shutil.copytree(model, refitted)
    for name, grows, options in (("grown", model, []), ("refitted", refitted, ["--refit=true"])):
        commands = [
            ["memory", "add", str(grows), str(grown), "--new_labels=true"],
            ["memory", "tune", str(grows), str(dev), *options],
        ]
        scores[name] = score(folder, grows, test, new, run(folder, commands))
    seconds = run(folder, [fit_options(again, everything, given.encoder)])
    return {**scores, "trained again": score(folder, again, test, new, seconds)}


def main() -> None:
    """Print a line for each table, seed and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="folders with train.csv and test.csv")
    parser.add_argument("--encoder", required=True, help="folder of a sentence encoder")
    parser.add_argument("--rows", type=int, default=8, help="per class, of the first training")
    parser.add_argument("--grown_rows", type=int, default=200, help="per class, in all")
    parser.add_argument("--dev_rows", type=int, default=10, help="per class, for `memory tune`")
    parser.add_argument("--test_rows", type=int, default=1000)
    parser.add_argument(
        "--new_classes", type=int, default=0, help="classes without rows in the first training"
    )
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    for source in given.data:
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                for name, result in race(source, given, seed, Path(folder)).items():
                    print(
                        f"{source.name:16} seed {seed}: {name:14} accuracy {result.accuracy:.3f}, new classes"
                        f" {result.recall:.3f}, {result.seconds:6.1f} CPU s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
