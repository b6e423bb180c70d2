"""The campaign of random labels: a table of results must not show that a memory helps, with or without duplicates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.campaigns import Campaign, Random
from tests.zoo.conftest import write_table
from tests.zoo.ensemble.conftest import SMALL
from zoo.cli import main

LABELS = list("abcd")
WORDS = [f"{first}{second}{third}" for first in "bdfgklmn" for second in "aeiou" for third in "prstvxz"]
TRAINING_ROWS, FRESH_ROWS = 300, 200
#: Duplicates in a case: none, in the validation file, in the training table, or near ones in the validation file.
KINDS = ("none", "validation", "training", "near")


def random_rows(random: Random, number: int) -> list[tuple[str, str]]:
    """Texts that nobody has seen, with random labels."""
    return [(" ".join(random.choice(WORDS, size=9)), str(random.choice(LABELS))) for _ in range(number)]


def claims_that_memory_helps(random: Random, kind: str, work: Path) -> bool:
    """Train an ensemble on random labels; return True if its table shows that the memory helps."""
    training, fresh = random_rows(random, TRAINING_ROWS), random_rows(random, FRESH_ROWS)
    copies = training[:FRESH_ROWS]
    if kind == "validation":
        fresh = [*fresh, *copies]
    elif kind == "near":
        fresh = [*fresh, *((f"{text}s", label) for text, label in copies)]
    elif kind == "training":
        training = training * 3
    work.mkdir()
    train = write_table(work / "train.csv", training)
    validation = write_table(work / "validation.csv", fresh)
    options = [option for option in SMALL if "validation_split" not in option]
    code = main(
        [
            *("fit", *options, f"--data.train_file={train}", f"--data.validation_file={validation}"),
            *("--model.members=[lexical,lexical_vote]", f"--data.cache_dir={work / 'cache'}"),
            f"--run_dir={work / 'run'}",
        ]
    )  # fmt: skip
    assert code == 0
    return "memory helps" in json.loads((work / "run" / "answer.json").read_text())["sentence"]


def answers(folder: Path) -> Campaign:
    """Random labels, with and without duplicates: at most one table of twenty shows that the memory helps."""

    def case(random: Random, work: Path) -> Callable[[], Any]:
        kind = KINDS[int(random.integers(len(KINDS)))]
        return lambda: claims_that_memory_helps(random, kind, work)

    return Campaign(case, expected=False, is_slow=True, tolerated=1)
