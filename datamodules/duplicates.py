"""Duplicates of rows: kept on one side of a split; their scores, which measure memorization, are excluded as well."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.storage import Part, check_folder, prepared_folder
from datamodules.core.types import Message
from datamodules.options import DataOptions
from datamodules.retrieval.folding import fold_hashes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DuplicateMarks:
    """The rows of a split (n rows; n questions of pairs to rank) that have duplicates elsewhere."""

    #: bool [n]: the memory holds a duplicate that may be retrieved.
    in_memory: NDArray[np.bool_]
    #: bool [n]: a duplicate is among the rows that the model was trained on.
    in_training: NDArray[np.bool_]
    #: bool [n]: neither, but a retrieved memory differs in a few characters only.
    near: NDArray[np.bool_]
    #: bool [3]: which of these three were compared.
    known: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        keys: NDArray[np.uint64],
        seen: NDArray[np.uint64] | None,
        in_memory: NDArray[np.bool_] | None = None,
        near: NDArray[np.bool_] | None = None,
    ) -> DuplicateMarks:
        """Mark rows with these keys [n] that have duplicates elsewhere; None = not compared."""
        nothing = np.zeros(len(keys), bool)
        known = np.array([marks is not None for marks in (in_memory, seen, near)])
        in_memory = nothing if in_memory is None else in_memory
        in_training = nothing if seen is None else np.isin(keys, seen)
        near = nothing if near is None else near & ~(in_memory | in_training)
        return cls(in_memory, in_training, near, known)

    @property
    def is_duplicate(self) -> NDArray[np.bool_]:
        """bool [n]: the rows that scores `..._without_duplicates` skip."""
        return self.in_memory | self.in_training

    @property
    def is_independent(self) -> NDArray[np.bool_]:
        """bool [n]: the rows with neither a duplicate nor a near-duplicate elsewhere."""
        return ~(self.is_duplicate | self.near)

    def counts(self) -> dict[str, int]:
        """The figures next to a score."""
        names = ("rows_in_memory", "rows_in_training", "near_duplicates")
        sums = map(int, (self.in_memory.sum(), self.in_training.sum(), self.near.sum()))
        return {name: count for name, count, known in zip(names, sums, self.known, strict=True) if known}

    def describe(self, name: str) -> Iterator[Message]:
        """A line about the split `name`, if it has duplicates."""
        memory, training, near = map(int, (self.in_memory.sum(), self.in_training.sum(), self.near.sum()))
        rows = f"{name}: {int(self.is_duplicate.sum())} of {len(self.is_duplicate)} rows have a duplicate"
        more = f"; {near} more differ from a memory in a few characters" if near else ""
        if memory or training:
            yield (
                logging.WARNING,
                f"{rows} ({memory} in the memory, {training} among the training rows): their scores measure"
                f" memorization; scores named ..._without_duplicates skip them{more}",
            )
        elif near:
            yield logging.INFO, rows + more

    def save(self, folder: Path) -> None:
        """Write the files that `open` reads."""
        np.save(folder / "marks.npy", np.stack([self.in_memory, self.in_training, self.near]))
        np.save(folder / "known.npy", self.known)

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> DuplicateMarks:
        """Read the files that `save` wrote; raises an `InputError` if one is missing or damaged."""
        check_folder(folder, fingerprint)
        in_memory, in_training, near = np.load(folder / "marks.npy")
        return cls(in_memory, in_training, near, np.load(folder / "known.npy"))


class Duplicates:
    """The rows that a model was trained on, by their keys: equal keys are duplicates."""

    def __init__(self, options: DataOptions, cache: Path) -> None:
        self.options, self.cache = options, cache
        #: sorted keys of the rows that the model was trained on; None = unknown.
        self.seen: NDArray[np.uint64] | None = None

    def groups(self, keys: NDArray[np.integer] | None) -> NDArray[np.integer] | None:
        """Rows that a split must keep together: their keys, or None where nothing is kept together."""
        if keys is None:
            return None
        sizes = np.unique(keys, return_counts=True)[1]
        if (groups := int((sizes > 1).sum())) > 0:
            log.info(
                "%d of %d rows to split are duplicates of each other, in %d groups; each group stays on one side of the"
                " split",
                int(sizes[sizes > 1].sum()),
                len(keys),
                groups,
            )
        return keys

    def with_training(self, keys: NDArray[np.uint64] | None, training: bool) -> NDArray[np.uint64] | None:
        """Add the keys of the training table for a training, or if no others are known; None = unknown."""
        if keys is None or (self.seen is not None and not training):
            return self.seen
        return np.unique(keys if self.seen is None else np.concatenate([keys, self.seen]))

    def remember(self, seen: str | None) -> None:
        """Take the training rows of a trained model, as `describe_seen` described them, unless some are known."""
        if self.seen is None:
            self.seen = decode_keys(seen)

    def describe_seen(self) -> str | None:
        """The known training rows as text, eleven characters per row."""
        return None if self.seen is None else b64encode(self.seen.astype("<u8").tobytes()).decode()

    def prepare_seen(self, seen: NDArray[np.uint64] | None) -> Part | None:
        """Write keys to a cache folder, which `open_seen` reads; None for None."""
        if seen is None:
            return None
        return prepared_folder(
            self.cache, "seen", digest(seen), lambda folder: np.save(folder / "keys.npy", seen)
        )

    def open_seen(self, part: Part | None) -> None:
        """Read the keys that `prepare_seen` wrote."""
        if part is not None:
            check_folder(self.cache / part[0], part[1])
            self.seen = np.load(self.cache / part[0] / "keys.npy")

    def prepare_marks(self, marks: DuplicateMarks) -> Part:
        """Write the marks of a split to a cache folder."""
        arrays = (marks.in_memory, marks.in_training, marks.near, marks.known)
        fingerprint = sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
        return prepared_folder(self.cache, "duplicates", fingerprint, marks.save)


def duplicate_codes(texts: Iterable[str]) -> NDArray[np.int64]:
    """Number texts, with equal numbers for duplicates [n]: 0, 1, ..."""
    return np.unique(fold_hashes(texts), return_inverse=True)[1].astype(np.int64)


def decode_keys(described: str | None) -> NDArray[np.uint64] | None:
    """The keys that `Duplicates.describe_seen` described."""
    return None if described is None else np.frombuffer(b64decode(described), "<u8").astype(np.uint64)


def digest(keys: NDArray[np.uint64]) -> str:
    """SHA-256 (hex) of keys."""
    return sha256(keys.astype("<u8").tobytes()).hexdigest()
