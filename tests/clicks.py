"""A made-up collection: notes on things, queries that name one of them, and graded judgements."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.dialogues import write_lines, write_records

THINGS = {
    "fruit": ["apple", "pear", "plum", "cherry", "peach", "grape"],
    "metal": ["iron", "copper", "zinc", "silver", "gold", "nickel"],
    "weather": ["rain", "snow", "wind", "storm", "cloud", "fog"],
}
COMMON = ["the", "a", "of", "with", "near", "old", "new", "some"]
WAYS = ["where is {}", "price of {}", "{}", "old {} near a {}"]


class Collection(NamedTuple):
    """The files of a collection."""

    corpus: Path
    queries: Path
    judgements: Path

    def options(self, **more: Any) -> dict[str, Any]:
        """Options of a `ClickthroughDataModule` that trains on it."""
        return {
            "corpus_file": str(self.corpus),
            "train_queries": str(self.queries),
            "train_judgements": str(self.judgements),
            **more,
        }


def write_collection(folder: Path, documents: int, queries: int, seed: int) -> Collection:
    """Documents that name the query's thing have grade 2 or 3; some that name a thing of the same kind, grade 1.

    A few others are judged to be irrelevant.
    """
    random = np.random.default_rng(seed)
    kinds = {thing: kind for kind, things in THINGS.items() for thing in things}
    about = [str(random.choice(list(kinds))) for _ in range(documents)]
    folder.mkdir(parents=True, exist_ok=True)
    corpus, asked, lines = [], [], ["query-id\tcorpus-id\tscore"]
    for number, thing in enumerate(about):
        words = [thing, *map(str, random.choice(COMMON, size=random.integers(1, 5)))]
        random.shuffle(words)
        title = f"{' '.join(words)} {number}"
        corpus.append({"_id": f"d{number}", "title": title, "text": f"nothing {number}"})
    for number in range(queries):
        thing = str(random.choice(about))
        asked.append({"_id": f"q{number}", "text": str(random.choice(WAYS)).format(thing, thing)})
        for document, other in enumerate(about):
            grade = int(random.integers(2, 4)) if other == thing else int(kinds[other] == kinds[thing])
            if grade > 1 or random.random() < 0.2:
                lines.append(f"q{number}\td{document}\t{grade}")
    return Collection(
        write_records(folder / "corpus.jsonl", *corpus),
        write_records(folder / "queries.jsonl", *asked),
        write_lines(folder / "qrels.tsv", *lines),
    )
