"""Batches: in which order, how large, put together by which processes."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from datamodules.options import check_least
from datamodules.sampling import LengthBucketSampler


def run_seed() -> int:
    """The run's seed (`--seed_everything`); 0 where it has none."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


class LoaderPart:
    """Makes the loaders of a data module."""

    options: Any
    trainer: Any

    #: rows of an evaluation batch over those of a training batch, unless `eval_batch_size` says how many.
    eval_batches: ClassVar[int] = 1
    #: which rows make a batch; see `LengthBucketSampler` for its arguments.
    sampler_type: ClassVar[type[LengthBucketSampler]] = LengthBucketSampler

    def __init__(
        self,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        bucket_by_length: bool = True,
        num_workers: int = 0,
        seed: int | None = None,
        **shared: Any,
    ) -> None:
        """Choose the batches.

        Args:
            batch_size: rows (texts, lists of pairs, ...) a training batch of one device.
            eval_batch_size: rows a batch otherwise; None = as many as in training, or a few times as many where
                they are small.
            bucket_by_length: put rows of like length into a batch.
            num_workers: processes that put batches together; 0 = the training process.
            seed: of the training order and of whatever else is drawn; None = the run's seed.
            **shared: options of the other parts.
        """
        super().__init__(**shared)
        check_least(self.options, {"batch_size": 1, "eval_batch_size": 1, "num_workers": 0, "seed": 0})

    @abstractmethod
    def split(self, name: str) -> Any:
        """A prepared table: `train`, `validation` or `test`."""

    @abstractmethod
    def dataset(self, split: Any) -> Any:
        """A split's data set to evaluate on."""

    def training_dataset(self, split: Any) -> Any:
        """A split's data set to train on; `lengths` tells the sampler how long its rows are."""
        return self.dataset(split)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches to train on."""
        return self._loader(self.training_dataset(self.split("train")), training=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """All of the validation table."""
        self._ask_model("validation")
        return self._loader(self.dataset(self.split("validation")), training=False)

    def test_dataloader(self) -> DataLoader[Any]:
        """All of the test table."""
        self._ask_model("test")
        return self._loader(self.dataset(self.split("test")), training=False)

    def _ask_model(self, split: str) -> None:
        # Its weights are there by now, and no batch yet: Lightning has no hook of the model between the two.
        model = getattr(self.trainer, "lightning_module", None)
        if (ask := getattr(model, "before_reading", None)) is not None:
            ask(split)

    @property
    def seed(self) -> int:
        """Of the training order: the option's, or the run's."""
        return run_seed() if self.options.seed is None else self.options.seed

    def new_sampler(self, dataset: Any, training: bool, **options: Any) -> LengthBucketSampler:
        """What says which rows of a data set make a batch; options as of `LengthBucketSampler`."""
        return self.sampler_type(dataset.lengths, training=training, **options)

    def _loader(self, dataset: Any, training: bool) -> DataLoader[Any]:
        options, trainer = self.options, self.trainer
        eval_batch_size = options.eval_batch_size or self.eval_batches * options.batch_size
        sampler = self.new_sampler(
            dataset,
            training,
            batch_size=options.batch_size if training else eval_batch_size,
            bucket=options.bucket_by_length,
            seed=self.seed,
            process=trainer.global_rank if trainer else 0,
            num_processes=trainer.world_size if trainer else 1,
        )
        if training and trainer:
            # A resumed run: workers ask for the first batches before Lightning says which epoch it is.
            sampler.set_epoch(trainer.fit_loop.epoch_progress.current.processed)
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=_as_given,
            num_workers=options.num_workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=options.num_workers > 0,
        )


def _as_given(batch: Any) -> Any:
    # A data set puts its batches together by itself.
    return batch
