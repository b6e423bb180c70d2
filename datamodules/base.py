"""What the data modules are alike in: the vocabulary in use, and loaders of what is prepared."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from datamodules.errors import InputError
from datamodules.text.gather import WordTable
from datamodules.text.vocabulary import Vocabulary

SplitT = TypeVar("SplitT")
DatasetT = TypeVar("DatasetT", bound="Dataset[Any]")


class TextDataModule(pl.LightningDataModule, Generic[SplitT, DatasetT]):
    """Base of the data modules: prepared tables (`SplitT`) of which it makes data sets (`DatasetT`)."""

    #: the NamedTuple that describes the data to a model, see `datamodules.batch`.
    spec_type: ClassVar[type[Any]]
    #: the arguments, as plain values.
    options: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._spec: Any = None
        self._vocabulary: Vocabulary | None = None
        self._words: WordTable | None = None
        self._vectors_file: Path | None = None
        self._splits: dict[str, SplitT] = {}

    @abstractmethod
    def dataset(self, split: SplitT) -> DatasetT:
        """A split under the vocabulary in use."""

    @abstractmethod
    def _loader(self, name: str, training: bool) -> DataLoader[Any]:
        """Batches of a split."""

    # --- what a model asks ---

    def _known_spec(self) -> Any:
        if self._spec is None:
            raise InputError("the data has no vocabulary yet: train a model on it, or give a checkpoint")
        return self._spec

    @property
    def vocabulary(self) -> Vocabulary:
        """The words; after `setup` or `use_state`."""
        assert self._known_spec() is not None
        assert self._vocabulary is not None
        return self._vocabulary

    def word_vectors(self) -> Tensor | None:
        """Pre-trained word vectors [num_words, d], or None; one copy for all processes of a machine."""
        if self._vectors_file is None:
            return None
        return torch.from_numpy(np.load(self._vectors_file, mmap_mode="c"))

    # --- what is prepared ---

    def _read_plan(self, file: Path) -> dict[str, Any]:
        """What rank 0 says in `prepare_data` that it prepared."""
        if not file.exists():
            raise InputError(f"{file}: the data is not prepared; call prepare_data() first")
        plan: dict[str, Any] = json.loads(file.read_text())
        return plan

    def split(self, name: str) -> SplitT:
        """A prepared table: `train`, `validation` or `test`."""
        return self._splits[name]

    @contextmanager
    def dataset_for_now(self, split: SplitT) -> Iterator[DatasetT]:
        """A split's dataset whose new words are forgotten afterwards, so that prediction may go on for ever."""
        assert self._words is not None
        known = len(self._words)
        try:
            yield self.dataset(split)
        finally:
            self._words.truncate(known)

    # --- loaders ---

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches to train on."""
        return self._loader("train", training=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """All of the validation table."""
        return self._loader("validation", training=False)

    def test_dataloader(self) -> DataLoader[Any]:
        """All of the test table."""
        return self._loader("test", training=False)

    def _seed(self) -> int:
        """Of the training order: the option's, or the run's."""
        seed: int | None = self.options["seed"]
        return int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed

    def _place(self) -> dict[str, int]:
        """This process among those of the run, as arguments of a sampler."""
        trainer = self.trainer
        return {
            "process": trainer.global_rank if trainer else 0,
            "num_processes": trainer.world_size if trainer else 1,
        }

    def _load(self, dataset: DatasetT, sampler: Sampler[list[int]]) -> DataLoader[Any]:
        """Batches that the data set puts together by itself."""
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=_as_given,
            num_workers=self.options["num_workers"],
            pin_memory=torch.cuda.is_available(),
            persistent_workers=self.options["num_workers"] > 0,
        )


def _as_given(batch: Any) -> Any:
    return batch
