"""The default for a table of one's own: members that read the text and its memories, and a few weights."""

from __future__ import annotations

import logging
from typing import ClassVar

import numpy as np
from typing_extensions import override

from datamodules.batch import BatchContents
from datamodules.classification import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.ensemble.answer import Answer, left_out_of, lines_of
from zoo.ensemble.base import EnsembleModel
from zoo.ensemble.fit import EnsembleFit
from zoo.ensemble.refit import refit
from zoo.tasks.classification.held_out import HeldOutRows
from zoo.training.checkpoints import CHECKPOINT_KEY

log = logging.getLogger("zoo")


class MemoryEnsemble(EnsembleModel):
    """A log-linear pool (Genest and Zidek 1986) of independent members that read texts and neighbors.

    Example:
        >>> model = MemoryEnsemble(members=["lexical", "lexical_vote"])
    """

    fits_weights: ClassVar[bool] = True
    takes_new_labels: ClassVar[bool] = True
    takes_sets: ClassVar[bool] = True

    # --- the fit ---

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        data = self.training_data
        if stage == "fit" and not data.split("validation").independent_rows.size:
            rows = data.split("train").rows
            if len(np.unique(data.duplicate_keys(rows))) < 2:
                raise InputError(f"{rows.source}: a single text leaves none to fit weights on; add rows")

    @override
    def finish(self, data: ClassificationDataModule) -> None:
        for reason, names in self.unusable.items():
            log.info("not used, since %s: %s", reason, ", ".join(names))
        self.held_out = None
        self.answer = EnsembleFit(self, data).run()
        data.retriever.close()

    # --- evaluation ---

    @override
    def attach(self, split: str) -> None:
        super().attach(split)
        if self.is_evaluated(split) and self.network.pool is not None:
            data = self.training_data
            self.network.measures_table = split == "test"
            self.network.excludes_duplicates = data.excludes_duplicates(split)
            self.read_memory(data, data.open_memory())
            self.metrics = self.new_scores()  # for the labels that only the memory has
            self.to(self.device)

    @override
    def batch_contents(self, split: str) -> BatchContents:
        return super().batch_contents(split)._replace(memory_texts=False, new_labels=self.new_labels)

    @override
    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        if self.metrics.table:
            data, rows = self.training_data, self.metrics.measured_rows
            split = data.split("test")
            counted = np.isin(rows, split.independent_rows)
            keys = data.duplicate_keys(split.rows)[rows[counted]]
            scores = {name: each[counted] for name, each in self.metrics.table.items()}
            lines = lines_of(scores, keys, self.network.pool.weights["all"])
            left_out = left_out_of(split.duplicates)
            self.evaluation.table = Answer("test", lines, [], left_out, self.network.sizes.measure).as_json()
        self.network.measures_table = False

    # --- what is fitted again for a memory that has grown ---

    refit = refit

    @override
    def describe_held_out(self) -> PlainDict | None:
        return None if self.held_out is None else self.held_out.describe()

    @staticmethod
    def replace_fitted(weights: PlainDict, pool: PlainDict | None, members: PlainDict | None) -> None:
        """Put a description of weights, and of members, in the place of those among the weights of a model folder."""
        state = weights["network._extra_state"]
        if pool is not None:
            state["pool"] = pool
        if members is not None:
            state["version"] = members["version"]
            weights |= {f"network.{name}": value for name, value in members.items() if name != "version"}

    # --- checkpoints ---

    @override
    def on_save_checkpoint(self, checkpoint: PlainDict) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[CHECKPOINT_KEY]["held_out"] = self.describe_held_out()

    @override
    def on_load_checkpoint(self, checkpoint: PlainDict) -> None:
        super().on_load_checkpoint(checkpoint)
        held_out = checkpoint[CHECKPOINT_KEY]["held_out"]
        self.held_out = None if held_out is None else HeldOutRows.of(held_out)
