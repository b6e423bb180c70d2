"""Copies of rows: kept on one side of a split, and counted where a model is measured.

A row that a model was trained on, or that its memory holds with its label, is easily right: its score says how well a
row is found again. Such rows are counted for validation and test, and scores are told without them, too.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.core.storage import Part, check_folder, prepared_folder
from datamodules.corpora.split import stratified_split

log = logging.getLogger(__name__)

#: A line for the log, with its level.
Message: TypeAlias = tuple[int, str]


@dataclass(frozen=True)
class CopyMarks:
    """Which of a split's n rows have copies elsewhere; of pairs to rank, a question is a row.

    Attributes:
        in_memory: bool [n], a copy is in the memory and may be found there.
        in_training: bool [n], a copy is among the rows that the model was trained on.
        near: bool [n], none is, but a memory that was found differs in a few characters only.
        known: bool [3], which of these were looked for; of the others nothing is said.
    """

    in_memory: NDArray[np.bool_]
    in_training: NDArray[np.bool_]
    near: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @property
    def is_copy(self) -> NDArray[np.bool_]:
        """bool [n]: the rows that scores `..._without_copies` leave out."""
        return self.in_memory | self.in_training

    def counts(self) -> dict[str, int]:
        """The figures beside a score."""
        names = ("rows_in_memory", "rows_in_training", "near_copies")
        sums = map(int, (self.in_memory.sum(), self.in_training.sum(), self.near.sum()))
        return {name: count for name, count, known in zip(names, sums, self.known, strict=True) if known}

    def describe(self, name: str) -> Iterator[Message]:
        """One line on a split, if there is something to say."""
        found = self.counts()
        memory, training, near = (
            found.get(key, 0) for key in ("rows_in_memory", "rows_in_training", "near_copies")
        )
        rows = f"{name}: {int(self.is_copy.sum())} of {len(self.is_copy)} rows have a copy"
        more = f"{near} more differ from a memory in a few characters" if near else ""
        if memory or training:
            places = f"{memory} in the memory, {training} among the training rows"
            yield (
                logging.WARNING,
                f"{rows} ({places}): that they are right says little; scores named ..._without_copies leave them"
                f" out{'; ' + more if more else ''}",
            )
        elif near:
            yield logging.INFO, f"{rows}; {more}"

    def save(self, folder: Path) -> None:
        """Write what `open` maps."""
        np.save(folder / "marks.npy", np.stack([self.in_memory, self.in_training, self.near]))
        np.save(folder / "known.npy", self.known)

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> CopyMarks:
        """Read what `save` wrote.

        Raises:
            InputError: it is missing or damaged.
        """
        check_folder(folder, fingerprint)
        in_memory, in_training, near = np.load(folder / "marks.npy")
        return cls(in_memory, in_training, near, np.load(folder / "known.npy"))

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the contents."""
        marks = (self.in_memory, self.in_training, self.near, self.known)
        return sha256(b"".join(mark.tobytes() for mark in marks)).hexdigest()


class CopyPart:
    """Knows which rows were trained on, and marks copies of them."""

    options: Any
    cache: Path

    #: options that say which rows are split off: another run that says otherwise has seen these.
    split_options: ClassVar[tuple[str, ...]] = ("split_seed", "validation_split", "split_copies")
    #: options that name the table that they are split off.
    table_options: ClassVar[tuple[str, ...]] = ("train_file",)

    def __init__(self, split_copies: bool = False, **shared: Any) -> None:
        """Choose what a split does.

        Args:
            split_copies: let copies of a row fall on both sides of a split. Otherwise they stay together, or
                validation would tell how well rows are found again; without copies it is the same split.
            **shared: options of the other parts.
        """
        super().__init__(**shared)
        # Sorted keys of the rows that a model was trained on; None = not known.
        self._seen: NDArray[np.uint64] | None = None
        # The same, once the tables that are being prepared are trained on.
        self._to_see: NDArray[np.uint64] | None = None
        # The table that the memory was made of, where a trained model says so.
        self._memory_table: str | None = None

    # --- what a kind of data says ---

    def copy_keys(self, table: Any) -> NDArray[np.uint64] | None:
        """A number for each row of a table, equal for copies; None where rows are not compared."""
        return None

    def copies_of(self, split: Any) -> CopyMarks | None:
        """The marks of a prepared split, if it has any."""
        return None

    def is_split_off(self, name: str) -> bool:
        """Whether the rows of a split come from the training table."""
        return bool(name == "validation" and self.options.validation_file is None)

    # --- splits ---

    def copy_groups(self, keys: NDArray[np.integer[Any]] | None) -> NDArray[np.integer[Any]] | None:
        """What `stratified_split` must keep together; None = nothing. It is counted in the log.

        Args:
            keys: of the rows (see `copy_keys`).
        """
        if keys is None or self.options.split_copies:
            return None
        sizes = np.unique(keys, return_counts=True)[1]
        if (groups := int((sizes > 1).sum())) > 0:
            log.info(
                "%d of %d rows to split are copies of each other, in %d groups; each stays on one side of the split"
                " (--data.split_copies true lets them part)",
                int(sizes[sizes > 1].sum()),
                len(keys),
                groups,
            )
        return keys

    def split_off(
        self, labels: Sequence[str], table: Any, share: int | float | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of a table to train on, and those to validate or test; see `stratified_split`.

        Args:
            labels: of each row; each label is parted alike.
            table: what `copy_keys` knows.
            share: what is split off; None = what the options say for validation.
        """
        groups = self.copy_groups(self.copy_keys(table))
        share = self.options.validation_split if share is None else share
        return stratified_split(labels, share, self.options.split_seed, groups)

    def check_split(self, state: Mapping[str, Any], name: str, source: str) -> None:
        """Refuse rows that are split off otherwise than a trained model's were: it was trained on some of them.

        Args:
            state: of the model's data.
            name: the split that is to be measured.
            source: the option that names the model, with its value.

        Raises:
            InputError: names what differs.
        """
        theirs, ours = {"split_copies": True, **state["options"]}, self.options
        tables = self.table_options
        same_table = all(_place(ours.get(table)) == _place(theirs.get(table)) for table in tables)
        if not (self.is_split_off(name) and same_table):
            return
        names = [option for option in self.split_options if option in ours and option in theirs]
        other = [option for option in names if ours[option] != theirs[option]]
        if other and (name != "validation" or theirs["validation_file"] is None):
            told = " and ".join(f"data.{option}={ours[option]}" for option in other)
            kept = " and ".join(f"{option}={theirs[option]}" for option in other)
            raise InputError(
                f"{told}: {source} was trained with {kept}, so it has seen rows that would now be split off; use the"
                f" same, or other rows (--data.{name}_file)"
            )

    # --- what was trained on ---

    def remember(self, state: Mapping[str, Any]) -> None:
        """Take over what a trained model has seen, unless that is known. States of older checkpoints lack it."""
        if self._seen is None:
            self._seen = self.seen_by(state)
        if self.options.memory is not None and self.options.memory == state["memory"]:
            self._memory_table = state["options"]["memory"]

    @staticmethod
    def seen_by(state: Mapping[str, Any]) -> NDArray[np.uint64] | None:
        """Keys of the rows that a trained model has seen; None = they are not known."""
        seen = state.get("seen")
        return None if seen is None else np.frombuffer(b64decode(seen), "<u8").astype(np.uint64)

    def prepare_seen(self, train: Any | None, training: bool) -> Part | None:
        """Keep the keys of what a model will have seen in a folder of the cache; None = they are not known.

        Args:
            train: the training table, if it was read.
            training: whether it is trained on; otherwise it is what a model has seen only if nothing else is known.
        """
        keys = None if train is None else self.copy_keys(train)
        if keys is None or (self._seen is not None and not training):
            self._to_see = self._seen
        else:
            self._to_see = np.unique(keys if self._seen is None else np.concatenate([keys, self._seen]))
        if (seen := self._to_see) is None:
            return None
        return prepared_folder(
            self.cache, "seen", _digest(seen), lambda folder: np.save(folder / "keys.npy", seen)
        )

    def use_seen_of(self, plan: Mapping[str, Any]) -> None:
        """Read what `prepare_seen` wrote."""
        if (part := plan["seen"]) is not None:
            check_folder(self.cache / part[0], part[1])
            self._seen = np.load(self.cache / part[0] / "keys.npy")

    @property
    def seen(self) -> str | None:
        """What `remember` takes over: eleven characters a row."""
        return None if self._seen is None else b64encode(self._seen.astype("<u8").tobytes()).decode()

    def describe_past(self) -> dict[str, Any]:
        """What marks depend on besides tables and options."""
        return {
            "seen": None if self._seen is None else _digest(self._seen),
            "memory table": self._memory_table,
        }

    def is_memory_table(self, table: str | None) -> bool:
        """Whether the memory was made of this table: then equal ids are the same row."""
        memory = self._memory_table or self.options.memory
        return table is not None and memory is not None and _place(table) == _place(memory)

    def mark(
        self,
        keys: NDArray[np.uint64],
        in_memory: NDArray[np.bool_] | None = None,
        near: NDArray[np.bool_] | None = None,
    ) -> CopyMarks:
        """Mark rows.

        Args:
            keys: [n], of the rows.
            in_memory: [n], None = this was not looked for.
            near: [n], memories that were found are nearly copies; None = likewise.
        """
        nothing = np.zeros(len(keys), bool)
        seen = self._seen if self._to_see is None else self._to_see
        known = np.array([marks is not None for marks in (in_memory, seen, near)])
        in_memory = nothing if in_memory is None else in_memory
        in_training = nothing if seen is None else np.isin(keys, seen)
        near = nothing if near is None else near & ~(in_memory | in_training)
        return CopyMarks(in_memory, in_training, near, known)

    def prepare_marks(self, marks: CopyMarks) -> Part:
        """A folder of the cache with the marks of a split."""
        return prepared_folder(self.cache, "copies", marks.fingerprint, marks.save)


def _place(table: Any) -> Any:
    """Two names of one file are equal."""
    return str(Path(table).resolve()) if isinstance(table, str) and Path(table).exists() else table


def _digest(keys: NDArray[np.uint64]) -> str:
    return sha256(keys.astype("<u8").tobytes()).hexdigest()
