"""Datasets that build whole batches, and the loaders that order, size and distribute them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from datamodules.core.types import Message
from datamodules.options import DataOptions
from datamodules.sampling import LengthBucketSampler, ListSampler

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class BatchDataset(Dataset[BatchT_co], ABC, Generic[BatchT_co]):
    """Row numbers in, a finished batch out."""

    #: whether rows, and so their lengths, are drawn again in every epoch (see `ListSampler`).
    is_redrawn: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> BatchT_co:
        """Build a batch; index ~i (negative) is row i as padding, with weight 0."""

    @abstractmethod
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        """Number of words of each row [n], as kept."""

    def messages(self) -> Iterable[Message]:
        """Warnings about the rows, for the log of whoever loads them."""
        return ()

    def batches(
        self, batch_size: int, rows: int | None = None, order: NDArray[np.int64] | None = None
    ) -> Iterator[BatchT_co]:
        """All rows in batches of consecutive rows.

        Args:
            batch_size: rows per batch.
            rows: number of rows from the start; None = all.
            order: row numbers in place of the first `rows`.
        """
        if order is None:
            order = np.arange(len(self) if rows is None else min(rows, len(self)))
        for start in range(0, len(order), batch_size):
            yield self.__getitems__(order[start : start + batch_size])


def run_seed() -> int:
    """The run's seed (`--seed_everything`); 0 where it has none."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


def make_loader(
    dataset: BatchDataset[BatchT],
    options: DataOptions,
    batch_size: int,
    *,
    training: bool,
    process: int = 0,
    num_processes: int = 1,
    epoch: int = 0,
) -> DataLoader[BatchT]:
    """Batches of a dataset for one process.

    Args:
        dataset: the rows.
        options: of the data module.
        batch_size: rows per batch of one process.
        training: shuffle; otherwise longest rows first, padded exactly.
        process: this process, 0..num_processes - 1.
        num_processes: processes that share the rows.
        epoch: the first epoch.
    """
    seed = run_seed() if options.seed is None else options.seed
    make_sampler: Callable[..., LengthBucketSampler] = LengthBucketSampler
    lengths: object = dataset.lengths()
    if dataset.is_redrawn:
        make_sampler, lengths = ListSampler, dataset.lengths
    sampler = make_sampler(
        lengths,
        batch_size,
        training=training,
        bucket=options.bucket_by_length,
        seed=seed,
        process=process,
        num_processes=num_processes,
    )
    # In a resumed run, workers request the first batches before Lightning sets the epoch.
    sampler.set_epoch(epoch)
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=_unchanged,
        num_workers=options.num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=options.num_workers > 0,
    )


def _unchanged(batch: BatchT) -> BatchT:
    # A dataset returns whole batches.
    return batch
