"""Duplicates of rows: kept on one side of a split; their scores, which measure memorization, are excluded as well."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datamodules.core.types import Message
from datamodules.corpora.rows import StoredTable
from datamodules.retrieval.folding import fold_hashes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DuplicateMarks(StoredTable):
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
        marks = zip(names, (self.in_memory, self.in_training, self.near), self.known, strict=True)
        return {name: int(rows.sum()) for name, rows, is_known in marks if is_known}

    def describe(self, name: str) -> Iterator[Message]:
        """A line about the split `name`, if it has duplicates."""
        memory, training, near = map(int, (self.in_memory.sum(), self.in_training.sum(), self.near.sum()))
        rows = f"{name}: {int(self.is_duplicate.sum())} of {len(self.is_duplicate)} rows have a duplicate"
        more = f"; {near} more differ from a memory in a few characters" if near else ""
        if memory or training:
            effect = "their scores measure memorization; scores named ..._without_duplicates skip them"
            places = f"{memory} in the memory, {training} among the training rows"
            yield logging.WARNING, f"{rows} ({places}): {effect}{more}"
        elif near:
            yield logging.INFO, rows + more


def groups_to_split(keys: NDArray[np.integer]) -> NDArray[np.integer]:
    """Log the number of duplicates among rows with these keys [n], which a split keeps together; return the keys."""
    sizes = np.unique(keys, return_counts=True)[1]
    if len(groups := sizes[sizes > 1]):
        rows = f"{groups.sum()} of {len(keys)} rows to split are duplicates of each other"
        log.info("%s, in %d groups; each group stays on one side of the split", rows, len(groups))
    return keys


def duplicate_codes(texts: Iterable[str]) -> NDArray[np.int64]:
    """Number texts, with equal numbers for duplicates [n]: 0, 1, ..."""
    return np.unique(fold_hashes(texts), return_inverse=True)[1].astype(np.int64)


def encode_keys(keys: NDArray[np.uint64] | None) -> str | None:
    """Keys of rows as text, eleven characters per row; None for None."""
    return None if keys is None else b64encode(keys.astype("<u8").tobytes()).decode()


def decode_keys(text: str | None) -> NDArray[np.uint64] | None:
    """The keys that `encode_keys` encoded; None for None."""
    return None if text is None else np.frombuffer(b64decode(text), "<u8").astype(np.uint64)
