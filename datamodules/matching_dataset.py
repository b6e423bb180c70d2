"""Prepared pairs, which of them stand together in a list, and batches of lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.corpora.pairs import Pairs
from datamodules.negatives import Negatives
from datamodules.storage import check_folder
from datamodules.text.gather import TextGroup, WordTable, distinct_rows, gather
from datamodules.text.tokens import TokenStore
from datamodules.token_vectors import TokenVectors


@dataclass(frozen=True)
class MatchingSplit:
    """One table of pairs, ready for batches."""

    pairs: Pairs
    first_tokens: TokenStore
    second_tokens: TokenStore
    #: retrieved texts that do not match, by question: rows of the second texts, and where a question's start.
    pool: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    #: cache folder, and folder name and fingerprint of each part; None for pairs that came just now.
    origin: tuple[Path, Mapping[str, Any]] | None = None

    @classmethod
    def open(cls, cache: Path, parts: Mapping[str, Any]) -> MatchingSplit:
        """Map the parts that `prepare_data` made.

        Raises:
            InputError: a part is missing or damaged.
        """
        folder, fingerprint = parts["pairs"]
        check_folder(cache / folder, fingerprint)
        return cls(
            Pairs.load(cache / folder, parts["source"]),
            TokenStore.open(cache / parts["first_tokens"][0], parts["first_tokens"][1]),
            TokenStore.open(cache / parts["second_tokens"][0], parts["second_tokens"][1]),
            parts["pool"] and _open_pool(cache / parts["pool"][0], parts["pool"][1]),
            (cache, parts),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker that is spawned (not forked) gets its data set pickled: let it map the same files.
        if self.origin is not None:
            return MatchingSplit.open, self.origin
        return MatchingSplit, (self.pairs, self.first_tokens, self.second_tokens, self.pool)

    @property
    def empty_questions(self) -> NDArray[np.bool_]:
        """bool [questions]: True where no candidate has a word."""
        has_words = np.zeros(self.pairs.num_questions, dtype=bool)
        words = np.diff(self.second_tokens.offsets)[self.pairs.second_row]
        has_words[self.pairs.question[words > 0]] = True
        return ~has_words


@dataclass(frozen=True)
class Lists:
    """The pairs that stand together: n lists.

    Attributes:
        rows: int64, rows of the table of pairs, one list after the other.
        offsets: int64 [n + 1]; list i has `rows[offsets[i]:offsets[i + 1]]`, at least one.
        negatives: draws more for each list, or None.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    negatives: Negatives | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @staticmethod
    def single(rows: NDArray[np.int64], negatives: Negatives | None = None) -> Lists:
        """Each row a list of its own."""
        return Lists(rows, np.arange(len(rows) + 1), negatives)

    @staticmethod
    def of_questions(
        pairs: Pairs, questions: NDArray[np.int64] | None = None, negatives: Negatives | None = None
    ) -> Lists:
        """All candidates of each question, in the order of the table; None = of all questions."""
        rows, offsets = pairs.lists
        if questions is None:
            return Lists(rows, offsets, negatives)
        places, ends = _stretches(offsets[questions], np.diff(offsets)[questions])
        return Lists(rows[places], ends, negatives)


class _Members(NamedTuple):
    """The P pairs of some lists: all arrays are [P]."""

    #: rows of the first texts, rows of the second texts.
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    #: number of the list within the batch, and place in it.
    list: NDArray[np.int64]
    place: NDArray[np.int64]
    target: NDArray[np.float32]
    #: rows of the table, -1 for drawn pairs that are in no table.
    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index, which nothing here needs


def _stretches(
    start: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of stretches `start[i], start[i] + 1, ...`, one after the other, and offsets [n + 1]."""
    offsets = np.concatenate([[0], np.cumsum(size)])
    return np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], size), offsets


class MatchingDataset(Dataset[MatchingBatch]):
    """Numbers of lists in, a finished batch out."""

    def __init__(
        self,
        split: MatchingSplit,
        words: WordTable,
        idf: NDArray[np.float32],
        spec: MatchingSpec,
        lists: Lists,
        vectors: tuple[TokenVectors, TokenVectors] | None = None,
    ) -> None:
        """Bind lists of a split to a model's vocabulary.

        Args:
            split: the pairs.
            words: the table of the model's vocabulary; the split's words are added to it.
            idf: float32 [num_words], inverse document frequency of each word.
            spec: the model's goal and lengths.
            lists: which pairs stand together.
            vectors: token vectors of the first and of the second texts, which batches then carry.
        """
        self.split, self.idf, self.spec, self.lists = split, idf, spec, lists
        self.vectors = vectors
        self.first = words.add(split.first_tokens)
        self.second = words.add(split.second_tokens)

    def __len__(self) -> int:
        return len(self.lists)

    def lengths(self, epoch: int) -> NDArray[np.int64]:
        """Words of each list [n]: of its longest first and its longest second text together, as kept."""
        members = self._members(epoch, np.arange(len(self)))
        longest = np.zeros(len(self), np.int64)
        for tokens, rows, length in (
            (self.split.first_tokens, members.first, self.spec.first_length),
            (self.split.second_tokens, members.second, self.spec.second_length),
        ):
            words = np.minimum(np.diff(tokens.offsets), length)[rows]
            longest += np.maximum.reduceat(words, np.flatnonzero(members.place == 0))
        return longest

    def __getitems__(self, indices: Sequence[int]) -> MatchingBatch:
        """Put a batch together.

        Args:
            indices: i is list i; i + e n is list i as drawn in epoch e (see `ListSampler`); ~i (negative) is
                list i as padding, with weight 0. All of one epoch.
        """
        given = np.asarray(indices, dtype=np.int64)
        epoch, numbers = np.divmod(np.where(given < 0, ~given, given), len(self))
        members = self._members(int(epoch[0]), numbers)
        firsts, first = distinct_rows(members.first)
        seconds, second = distinct_rows(members.second)
        gathered = gather(
            [
                TextGroup(self.first, firsts, self.spec.first_length),
                TextGroup(self.second, seconds, self.spec.second_length),
            ]
        )
        batch = MatchingBatch(
            word=torch.from_numpy(gathered.word),
            char=torch.from_numpy(gathered.char),
            idf=torch.from_numpy(self.idf[gathered.word]),
            first_text=torch.from_numpy(gathered.texts[0]),
            second_text=torch.from_numpy(gathered.texts[1]),
            first=torch.from_numpy(first),
            second=torch.from_numpy(second),
            list=torch.from_numpy(members.list),
            place=torch.from_numpy(members.place),
            target=torch.from_numpy(members.target),
            weight=torch.from_numpy((given >= 0).astype(np.float32)[members.list]),
            index=torch.from_numpy(members.index),
        )
        if self.vectors is None:
            return batch
        first_vectors, second_vectors = self.vectors
        return batch._replace(
            first_vector=first_vectors.padded(firsts, batch.first_text.shape[1]),
            second_vector=second_vectors.padded(seconds, batch.second_text.shape[1]),
        )

    def _members(self, epoch: int, numbers: NDArray[np.int64]) -> _Members:
        pairs, lists = self.split.pairs, self.lists
        size = np.diff(lists.offsets)[numbers]
        places, starts = _stretches(lists.offsets[numbers], size)
        index = lists.rows[places]
        in_list = np.repeat(np.arange(len(numbers)), size)
        first, second = pairs.first_row[index].astype(np.int64), pairs.second_row[index].astype(np.int64)
        target = pairs.target[index]
        if lists.negatives is not None:
            drawn = lists.negatives.draw(epoch, numbers)
            found = drawn.second >= 0
            # A list's drawn pairs have its first text, and stand behind its own pairs.
            there = np.nonzero(found)[0]
            in_list = np.concatenate([in_list, there])
            order = np.argsort(in_list, kind="stable")
            in_list = in_list[order]
            first = np.concatenate([first, first[starts[:-1]][there]])[order]
            second = np.concatenate([second, drawn.second[found]])[order]
            target = np.concatenate([target, drawn.target[found]])[order]
            index = np.concatenate([index, drawn.index[found]])[order]
            starts = np.concatenate([[0], np.cumsum(np.bincount(in_list, minlength=len(numbers)))])
        return _Members(first, second, in_list, np.arange(len(in_list)) - starts[in_list], target, index)


def _open_pool(folder: Path, fingerprint: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    check_folder(folder, fingerprint)
    return np.load(folder / "rows.npy", mmap_mode="r"), np.load(folder / "offsets.npy", mmap_mode="r")
