"""Small labelled corpora, and processes that may be killed."""

import multiprocessing
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Retriever
from tests.dialogues import write_lines

T = TypeVar("T", bound=Retriever)

LABELS = ("beasts", "boats", "bread")
_OWN = {
    "beasts": ["lion", "tiger", "heron", "otter", "badger", "wolf", "stoat", "hare"],
    "boats": ["mast", "sail", "keel", "rudder", "anchor", "hull", "oar", "deck"],
    "bread": ["rye", "crust", "yeast", "dough", "oven", "flour", "crumb", "loaf"],
}
_SHARED = ["the", "a", "of", "and", "old", "new", "big", "small", "near", "far", "red", "warm"]
#: Every word of the texts.
WORDS = (*_SHARED, *(word for own in _OWN.values() for word in own))


def labelled_texts(n: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts of 2 to 9 words, two thirds of them words of their label alone; most texts are distinct."""
    rng = random.Random(seed)
    labels = [LABELS[i % len(LABELS)] for i in range(n)]
    texts = [
        " ".join(
            rng.choice(_OWN[label] if rng.random() < 2 / 3 else _SHARED) for _ in range(rng.randint(2, 9))
        )
        for label in labels
    ]
    return texts, labels


def indexed(retriever: T, texts: Sequence[str], folder: Path, fingerprint: str = "fingerprint") -> T:
    """A retriever with an open index of the texts."""
    retriever.index(Rows.from_lists(texts), fingerprint, folder)
    return retriever


def rows(n: int, seed: int = 0, prefix: str = "r") -> Rows:
    """Labelled rows with ids `r0`, `r1`, ..."""
    texts, labels = labelled_texts(n, seed)
    return Rows.from_lists(texts, labels, [f"{prefix}{i}" for i in range(n)], "corpus")


def write_csv(path: Path, texts: list[str], labels: list[str] | None = None) -> str:
    """A table with columns `text` and `label`; the texts hold no commas, quotes or line ends."""
    lines = ["text" if labels is None else "text,label"]
    lines += texts if labels is None else [f"{a},{b}" for a, b in zip(texts, labels, strict=True)]
    return str(write_lines(path, *lines))


def in_processes(n: int, function: Callable[..., Any], *arguments: Any) -> list[int | None]:
    """Call `function(*arguments)` in n forked processes at once; returns their exit codes, None after two minutes."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(n)

    def call() -> None:
        barrier.wait()
        function(*arguments)

    processes = [context.Process(target=call, daemon=True) for _ in range(n)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]
