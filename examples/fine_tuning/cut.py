"""Cut a table into tables for transfer: source, few target rows, and rows for validation and test.

    python cut.py train.csv cut --source "World,Sports,Business" --target "World,Sports,Business,Sci/Tech"
    python cut.py --questions WikiQA-train.tsv cut

No text is in two tables. Each class has the same number of few target rows. Questions without an answer are skipped.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from datamodules.corpora.table import read_table


def cut_labels(args: argparse.Namespace) -> dict[str, list[list[str]]]:
    """Rows (text, label) of `few`, `dev` and `test` with the target's classes, and of `source` with the source's."""
    columns = args.text_column.split(",")
    rows = read_table(
        args.table,
        text_column=columns if len(columns) > 1 else columns[0],
        label_column=args.label_column,
        class_names=args.class_names.split(",") if args.class_names else None,
    )
    distinct = {text.casefold().strip(): (text, rows.label(row)) for row, text in enumerate(rows.texts[:])}
    pairs = sorted(distinct.values(), key=lambda _: random.random())
    target, source = args.target.split(","), args.source.split(",")
    parts: dict[str, list[list[str]]] = {"few": [], "dev": [], "test": [], "source": []}
    sizes = {"few": args.rows, "dev": args.rows, "test": args.test_rows}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for text, label in pairs:
        part = next(
            (
                name
                for name, size in sizes.items()
                if label in target and counts[name, label] < size // len(target)
            ),
            "source" if label in source and len(parts["source"]) < args.source_rows else None,
        )
        if part is not None:
            counts[part, str(label)] += 1
            parts[part].append([text, str(label)])
    return parts


def cut_questions(args: argparse.Namespace) -> dict[str, list[list[str]]]:
    """Lines in WikiQA's layout: `few` and `dev` have the same number of questions, `test` has all others."""
    lines = [line.split("\t") for line in Path(args.table).read_text(encoding="utf-8").splitlines()]
    answered = sorted({line[0] for line in lines[1:] if line[6] == "1"})
    random.shuffle(answered)
    names = {
        question: "few" if n < args.rows else "dev" if n < 2 * args.rows else "test"
        for n, question in enumerate(answered)
    }
    parts: dict[str, list[list[str]]] = {"few": [lines[0]], "dev": [lines[0]], "test": [lines[0]]}
    for line in lines[1:]:
        if line[0] in names:
            parts[names[line[0]]].append(line)
    return parts


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", action="store_true", help="WikiQA's layout, no labels")
    parser.add_argument("--text_column", default="text")
    parser.add_argument("--label_column", default="label")
    parser.add_argument("--class_names", default="")
    parser.add_argument("--source", default="")
    parser.add_argument("--target", default="")
    parser.add_argument("--rows", type=int, default=200, help="few rows, or questions")
    parser.add_argument("--test_rows", type=int, default=2000)
    parser.add_argument("--source_rows", type=int, default=15_000)
    args = parser.parse_args(arguments)
    random.seed(0)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (cut_questions if args.questions else cut_labels)(args).items():
        write(args.folder / f"{name}.{'tsv' if args.questions else 'csv'}", rows, args.questions)
        print(f"{name}: {len(rows):,} rows")


def write(path: Path, rows: Iterable[list[str]], as_lines: bool) -> None:
    """Write a CSV with a header, or the lines as they were read."""
    with path.open("w", newline="", encoding="utf-8") as file:
        if as_lines:
            file.writelines("\t".join(row) + "\n" for row in rows)
        else:
            csv.writer(file).writerows([("text", "label"), *rows])


if __name__ == "__main__":
    main()
