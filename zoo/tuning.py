"""Fitting how much a model trusts its memory, on labelled rows, in seconds and without training.

A memory that has grown deserves more trust than the one that the model was trained with. `KNNBiLSTM` mixes a
plain vote of the memories into its predictions; here the vote's share and sharpness are chosen on rows that
are in neither the training set nor the memory.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from datamodules.corpora.table import Rows
from datamodules.errors import InputError
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.folding import fold
from zoo.inference import BLOCK, Predictor
from zoo.knn_bilstm import KNNNetwork, count_votes, mix_in, vote

MIXES = [i / 20 for i in range(21)]
TAUS = [0.0, 2.0, 5.0, 10.0, 20.0, 40.0]


class Tuned(NamedTuple):
    """What `tune` chose, and what it is worth on the rows that it was chosen on."""

    #: share of the vote in a prediction, 0..1.
    mix: float
    #: sharpness of the vote.
    tau: float
    #: accuracy with the values that the model had.
    accuracy_before: float
    #: accuracy with the chosen values.
    accuracy: float
    #: rows that were used.
    rows: int
    #: rows left out because a copy of them is in the memory.
    in_memory: int


class Evidence(NamedTuple):
    """What a model and its memories say of n labelled rows, before the two are mixed.

    It costs a pass through the network; what any mix and sharpness make of it then costs nothing.
    """

    #: the classifier's [n, C].
    logits: Tensor
    #: cosine, retrieval score, mask and class of the memories [n, K].
    similarity: Tensor
    score: Tensor
    mask: Tensor
    memory_target: Tensor
    #: classes [n].
    target: Tensor
    #: bool [n]: the memory has a copy of the row.
    in_memory: Tensor

    def select(self, rows: Tensor | NDArray[Any]) -> Evidence:
        """That of some rows: numbers, or a mask."""
        return Evidence(*(column[rows] for column in self))

    def log_probabilities(self, mix: Tensor | float, tau: Tensor | float) -> Tensor:
        """Log of what the model predicts [n, C]."""
        shares = vote(self.similarity, self.score, self.mask, tau)
        return mix_in(self.logits, count_votes(shares, self.memory_target, self.logits.shape[1]), mix)

    def accuracy(self, mix: Tensor | float, tau: Tensor | float) -> float:
        """Share of right labels."""
        return float((self.log_probabilities(mix, tau).argmax(dim=1) == self.target).double().mean())

    def best(self) -> tuple[float, float]:
        """Mix and sharpness that give the labels the highest likelihood.

        That is a steadier guide than accuracy, of which many settings have the same. Rows of which the memory
        has a copy are left out: they would find themselves and make the memory look better than it is.

        Raises:
            InputError: no row is left.
        """
        usable = self.select(~self.in_memory)
        if len(usable.target) == 0:
            raise InputError("zoo memory tune: all rows are in the memory; tune on rows that are not")
        return min(
            product(MIXES, TAUS),
            key=lambda pair: float(functional.nll_loss(usable.log_probabilities(*pair), usable.target)),
        )


def tune(predictor: Predictor, rows: Rows) -> Tuned:
    """Choose mix and sharpness of the memories' vote, and set them in the predictor's model.

    Args:
        predictor: a `KNNBiLSTM` with its memory; changed in place.
        rows: labelled rows that the model was not trained on. Rows of which the memory has a copy are left
            out: they would find themselves and make the memory look better than it is.

    Raises:
        InputError: the model has no vote or no labelled memory, or no row is left.
    """
    evidence = evidence_of(predictor, rows)
    mix, tau = evidence.best()
    network = predictor.model.network
    assert isinstance(network, KNNNetwork)
    usable = evidence.select(~evidence.in_memory)
    before = usable.accuracy(network.mix.cpu(), network.mix_tau.cpu())
    network.mix.fill_(mix)
    network.mix_tau.fill_(tau)
    return Tuned(
        mix, tau, before, usable.accuracy(mix, tau), len(usable.target), int(evidence.in_memory.sum())
    )


def evidence_of(predictor: Predictor, rows: Rows) -> Evidence:
    """What a model and its memories say of labelled rows.

    Raises:
        InputError: the model has no vote or no labelled memory, or does not know a label.
    """
    network, memory = predictor.model.network, predictor.memory
    if not isinstance(network, KNNNetwork) or memory is None:
        raise InputError(
            "zoo memory tune: this model does not read a memory; train one with --model.mix or M2 to M7"
        )
    labels = predictor.data.spec.labels
    if predictor.data.spec.memory_labels != labels:
        raise InputError("zoo memory tune: the memories have no labels or another task's, so they can't vote")
    if rows.labels is None:
        raise InputError(f"{rows.source}: tuning needs labelled rows")
    strange = sorted(set(rows.labels) - set(labels))
    if strange:
        raise InputError(
            f"{rows.source}: the model does not know the label {strange[0]!r}; leave such rows out"
        )
    return Evidence(*[*_evidence(predictor, network, rows), torch.tensor(_have_copies(memory, rows))])


def _have_copies(memory: Memory, rows: Rows) -> list[bool]:
    """Whether the memory has a copy of each row."""
    texts = rows.texts[:]
    if isinstance(memory, FolderMemory):
        return [len(copies) > 0 for copies in memory.copies(texts)]
    # An index of the user's: a copy shares all words, so it is among the best.
    found = memory.search(texts, k=10)
    folded = [fold(text) for text in found.memories.texts[:]]
    return [
        any(row >= 0 and folded[row] == fold(text) for row in found_rows)
        for text, found_rows in zip(texts, found.rows.tolist(), strict=True)
    ]


@torch.inference_mode()
def _evidence(predictor: Predictor, network: KNNNetwork, rows: Rows) -> tuple[Tensor, ...]:
    """The classifier's logits [N, C], and similarity, score, mask and class of each memory [N, K]; targets [N]."""
    model, data = predictor.model.eval(), predictor.data
    parts = []
    for start in range(0, len(rows), BLOCK):
        split = data.split_of(rows.select(np.arange(start, min(start + BLOCK, len(rows)))), predictor.memory)
        with data.dataset_for_now(split) as dataset:
            for first in range(0, len(dataset), 256):
                batch = dataset.__getitems__(range(first, min(first + 256, len(dataset))))
                batch = move_data_to_device(batch, model.device)
                text, memories = network.encode(batch)
                logits, _ = network.head(text, memories, batch)
                similarity = network.plain_cosine(text, memories, batch.memory).squeeze(2)
                parts.append(
                    [
                        logits,
                        similarity,
                        batch.memory_score,
                        batch.memory_mask,
                        batch.memory_target,
                        batch.target,
                    ]
                )
    return tuple(torch.cat(column).cpu() for column in zip(*parts, strict=True))
