"""Batches of rows with texts of similar length, the same on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

#: Rows are shuffled, then sorted by length within this number of batches.
BATCHES_PER_BUCKET = 50


class LengthBucketSampler(Sampler[list[int]]):
    """Batches of row numbers, each row once an epoch.

    The training order depends only on the seed and the epoch. Evaluation batches, and so the metrics, do not depend on
    the number of processes P: process r takes the batches r, r + P, r + 2P, ... If P does not divide their number,
    training repeats batches, and evaluation repeats one with its rows marked as padding: ~i is row i as padding.
    """

    def __init__(
        self,
        lengths: NDArray[np.integer] | Callable[[int], NDArray[np.integer]],
        batch_size: int,
        *,
        training: bool,
        seed: int = 0,
        process: int = 0,
        num_processes: int = 1,
    ) -> None:
        """Plan batches of `batch_size` rows for one of the processes.

        Training batches are shuffled, each of rows of similar length; others have the longest rows first. `lengths` has
        the number of words of each row [n]. Where rows are drawn in every epoch, it is a function of the epoch, and row
        i of epoch e then has the number i + e n, for datasets in worker processes.
        """
        self.lengths_in = lengths if callable(lengths) else None
        self.lengths = np.asarray(lengths(0) if callable(lengths) else lengths)
        self.batch_size, self.training, self.seed = batch_size, training, seed
        self.process, self.num_processes = process, num_processes
        self.epoch = 0
        # Lightning calls `batch_sampler.sampler.set_epoch`.
        self.sampler: LengthBucketSampler | None = self

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches = -(-len(self.lengths) // self.batch_size)
        return -(-batches // self.num_processes)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._training_batches() if self.training else longest_first(self.lengths, self.batch_size)
        own = batches[self.process :: self.num_processes]
        yield from (batch.tolist() for batch in own)
        if len(own) < len(self):
            # All processes must take the same number of steps.
            yield batches[0].tolist() if self.training else (~batches[0]).tolist()

    def _training_batches(self) -> list[NDArray[np.int64]]:
        first = 0
        if self.lengths_in is not None:
            self.lengths = np.asarray(self.lengths_in(self.epoch))
            first = self.epoch * len(self.lengths)
        random = np.random.default_rng([self.seed, self.epoch])
        order = random.permutation(len(self.lengths))
        buckets = _cut(order, self.batch_size * BATCHES_PER_BUCKET)
        order = np.concatenate([b[np.argsort(self.lengths[b], kind="stable")] for b in buckets])
        batches = _cut(first + order, self.batch_size)
        return [batches[i] for i in random.permutation(len(batches))]


def longest_first(lengths: NDArray[np.integer], size: int) -> list[NDArray[np.int64]]:
    """Batch rows of similar length: longest first, so that one that exceeds the device's memory fails at once."""
    return _cut(np.argsort(-lengths, kind="stable"), size)


def _cut(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [order[start : start + size] for start in range(0, len(order), size)]
