"""A table that every Debian machine has: the section of a package by its one-line description.

    python -m tests.benchmarks.package_descriptions FOLDER     # writes train.csv and test.csv

It reads the package lists of the system (`apt-get update` loads them) by `apt-cache dumpavail`.
"""

import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.zoo.conftest import write_table

NUM_SECTIONS = 20
TEST_ROWS = 100
MAX_ROWS = 2000


def descriptions() -> Iterator[tuple[str, str]]:
    """Description and section of each package."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True)
    for package in listed.stdout.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line and line[0] != " ")
        text = fields.get("Description") or fields.get("Description-en")
        if text and "Section" in fields:
            yield text.strip(), fields["Section"]


def main() -> None:
    """Write the most frequent sections; a description occurs once."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    by_section: dict[str, list[str]] = defaultdict(list)
    for text, section in dict(descriptions()).items():
        by_section[section].append(text)
    largest = sorted(by_section, key=lambda section: -len(by_section[section]))[:NUM_SECTIONS]
    tables: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    chosen = random.Random(0)
    for section in largest:
        texts = chosen.sample(by_section[section], min(MAX_ROWS, len(by_section[section])))
        tables["test"] += [(text, section) for text in texts[:TEST_ROWS]]
        tables["train"] += [(text, section) for text in texts[TEST_ROWS:]]
    for name, rows in tables.items():
        chosen.shuffle(rows)
        print(f"{write_table(folder / f'{name}.csv', rows)}: {len(rows)} rows")


if __name__ == "__main__":
    main()
