"""A text classification task that needs no download: predict the package of a docstring.

The first line of a docstring is the text, the package is the label. The source files of installed packages are read;
no package is imported.

    python examples/demo/docstrings.py FOLDER     # writes FOLDER/train.csv and FOLDER/test.csv
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory

PACKAGES = [
    "torch",
    "numpy",
    "pandas",
    "transformers",
    "sympy",
    "scipy",
    "sklearn",
    "networkx",
    "nltk",
    "numba",
    "wandb",
    "torchmetrics",
    "datasets",
    "pytorch_lightning",
    "elasticsearch",
    "huggingface_hub",
    "pydantic",
    "setuptools",
    "pip",
    "aiohttp",
    "jsonargparse",
    "fsspec",
]
NUM_PACKAGES = 20
PER_PACKAGE = 600
TEST_SHARE = 0.2
#: Texts that share this part of their distinct words are near-duplicates.
NEAR_DUPLICATE = 0.8


def summaries(package: str, enough: int) -> list[str]:
    """Distinct summary lines of a package's docstrings, at least four words long."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    lines: dict[str, str] = {}
    for file in sorted(Path(spec.origin).parent.rglob("*.py")):
        for line in _summaries_of(file):
            lines.setdefault(" ".join(_words(line)), line)
        if len(lines) > enough:
            break
    return list(lines.values())


def _summaries_of(file: Path) -> Iterator[str]:
    if "test" in file.name:
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (ast.get_docstring(node) or "").strip().splitlines()
            if lines and len(_words(lines[0])) >= 4:
                yield lines[0].strip()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def write_tables(folder: Path, seed: int = 0) -> tuple[Path, Path, int]:
    """Write train.csv and test.csv (columns text, label).

    Test texts that are near-duplicates of a training text are moved to the training table.

    Returns:
        The two files, and the number of texts that were moved.
    """
    rng = random.Random(seed)
    rows: dict[str, tuple[str, str] | None] = {}
    packages = 0
    for package in PACKAGES:
        # More than needed, so that the sample is not limited to the first folders of the alphabet.
        texts = summaries(package, 4 * PER_PACKAGE)
        if len(texts) < PER_PACKAGE or packages == NUM_PACKAGES:
            continue
        packages += 1
        for text in rng.sample(texts, PER_PACKAGE):
            key = " ".join(_words(text))
            # A line of two packages has no single label.
            rows[key] = None if key in rows else (text, package)
    kept = [row for row in rows.values() if row is not None]
    rng.shuffle(kept)
    cut = int(len(kept) * TEST_SHARE)
    test, train = kept[:cut], kept[cut:]
    is_near = _near_duplicates([text for text, _ in test], [text for text, _ in train], folder)
    train += [row for row, near in zip(test, is_near, strict=True) if near]
    test = [row for row, near in zip(test, is_near, strict=True) if not near]
    paths = folder / "train.csv", folder / "test.csv"
    for path, part in zip(paths, (train, test), strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    return *paths, sum(is_near)


def _near_duplicates(texts: list[str], others: list[str], folder: Path) -> list[bool]:
    """True for texts that share most of their words with one of the others, among the best hits of each text."""
    memory = FolderMemory.build(Rows.from_lists(others), EmbeddedRetriever(), folder / "near-duplicates")
    neighbors = memory.search(texts, k=5)
    is_near = []
    for text, rows in zip(texts, neighbors.rows, strict=True):
        words = set(_words(text))
        candidates = [set(_words(neighbors.memories.texts[int(row)])) for row in rows if row >= 0]
        is_near.append(any(len(words & other) >= NEAR_DUPLICATE * len(words | other) for other in candidates))
    return is_near


if __name__ == "__main__":
    chosen = Path(sys.argv[1])
    chosen.mkdir(parents=True, exist_ok=True)
    write_tables(chosen)
