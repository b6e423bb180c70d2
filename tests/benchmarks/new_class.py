"""A class that only the memory has, compared with the same model trained again with its rows.

One class is excluded from a table's training rows. The model that is trained on the others is given 20 rows of it
(`zoo memory add --new_labels true`); another one is trained on all of these rows. Both are tested on the test table
with all further rows of the class. Printed: recall and precision of the class, their ratios, and what the known classes
lose.

    python examples/demo/docstrings.py DATA
    python -m tests.benchmarks.new_class --data_dir DATA --label networkx [OPTION_OF_ZOO_FIT ...]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.few_labels_growth import pairs_of, write
from zoo.cli import main as zoo_command

CONFIG = "your_own_data/classification"


def run(*command: object) -> None:
    """Run a `zoo` command."""
    if zoo_command([str(part) for part in command]) != 0:
        raise SystemExit(f"zoo {command[0]} failed")


def fit(folder: Path, name: str, rows: list[tuple[str, str]], options: list[str]) -> Path:
    """Train by the command; return the run folder."""
    table = write(folder / f"{name}.csv", rows)
    run("fit", f"--config={CONFIG}", *options, f"--data.train_file={table}", f"--run_dir={folder / name}")
    return folder / name


def test(folder: Path, model: Path, table: Path) -> dict[str, Any]:
    """Test scores."""
    output = folder / "scores.json"
    run("test", f"--ckpt_path={model}", f"--data.test_file={table}", f"--output={output}")
    read: dict[str, Any] = json.loads(output.read_text())
    return read


def main() -> None:
    """Train both and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data_dir", required=True, type=Path, help="holds train.csv and test.csv")
    parser.add_argument("--label", default="networkx")
    parser.add_argument("--rows", type=int, default=20)
    given, options = parser.parse_known_args()  # other options are those of both fits
    rows = pairs_of(given.data_dir / "train.csv")
    known = [row for row in rows if row[1] != given.label]
    of_class = [row for row in rows if row[1] == given.label]
    new, others = of_class[: given.rows], of_class[given.rows :]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old_test = [row for row in pairs_of(given.data_dir / "test.csv") if row[1] != given.label]
        of_test = [row for row in pairs_of(given.data_dir / "test.csv") if row[1] == given.label]
        old = write(folder / "old.csv", old_test)
        whole = write(folder / "whole.csv", old_test + of_test + others)
        memory = fit(folder, "memory", known, options)
        before = test(folder, memory, old)["accuracy"]
        run("memory", "add", memory, write(folder / "added.csv", new), "--new_labels=true")
        trained = fit(folder, "trained", known + new, options)
        figures = {}
        for title, model in (("memory alone", memory), ("trained again", trained)):
            scores = test(folder, model, whole)
            recall, precision = (scores[f"{figure}/{given.label}"] for figure in ("recall", "precision"))
            after = test(folder, model, old)["accuracy"]
            figures[title] = recall
            print(
                f"{title:14} recall {100 * recall:.1f}, precision {100 * precision:.1f} of {given.label}"
                f" ({len(of_test + others)} texts); known classes {100 * before:.2f} -> {100 * after:.2f}"
                f" ({len(old_test)} texts)"
            )
        print(f"recall by memory / trained again: {figures['memory alone'] / figures['trained again']:.2f}")


if __name__ == "__main__":
    main()
