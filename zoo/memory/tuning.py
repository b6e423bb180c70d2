"""Fitting how much a model trusts its memory, on labelled rows, in seconds and without training.

A memory that has grown deserves more trust than the one that the model was trained with. A model with a vote
(`zoo.layers.vote`) mixes it into its predictions; here the vote's share and sharpness are chosen on rows that are in
neither the training set nor the memory.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import Memory
from zoo.layers.vote import Evidence, VotingNetwork
from zoo.tasks.predictor import BLOCK, Predictor, evaluating, on_device

MIXES = [i / 20 for i in range(21)]
TAUS = [0.0, 2.0, 5.0, 10.0, 20.0, 40.0]
#: Rows that go through the network together.
_ROWS = 256


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
    #: rows left out because a copy of them is in the memory, or among the training rows.
    in_memory: int
    in_training: int
    #: rows that were used although a memory differs from them in a few characters only.
    near: int


class Witnessed(NamedTuple):
    """What a model and its memories say of n labelled rows."""

    evidence: Evidence
    #: bool [n]: the memory has a copy of the row; training had; a memory is nearly one.
    in_memory: Tensor
    in_training: Tensor
    near: Tensor

    def select(self, rows: Tensor | NDArray[Any]) -> Witnessed:
        """That of some rows: numbers, or a mask."""
        evidence, *marks = self
        return Witnessed(Evidence(*(column[rows] for column in evidence)), *(mark[rows] for mark in marks))

    def usable(self) -> Witnessed:
        """Without copies: in the memory they would find themselves, and the classifier knows its training rows."""
        return self.select(~(self.in_memory | self.in_training))

    def accuracy(self, mix: Tensor | float, tau: Tensor | float) -> float:
        """Share of right labels."""
        predicted = self.evidence.log_probabilities(mix, tau).argmax(dim=1)
        return float((predicted == self.evidence.target).double().mean())

    def best(self) -> tuple[float, float]:
        """Mix and sharpness that give the labels the highest likelihood.

        That is a steadier guide than accuracy, of which many settings have the same.

        Raises:
            InputError: every row has a copy in the memory or among the training rows.
        """
        evidence = self.usable().evidence
        if len(evidence.target) == 0:
            raise InputError(
                "zoo memory tune: all rows are in the memory or were trained on; tune on rows that are not"
            )
        return min(
            product(MIXES, TAUS),
            key=lambda pair: float(functional.nll_loss(evidence.log_probabilities(*pair), evidence.target)),
        )


def tune(predictor: Predictor, rows: Rows) -> Tuned:
    """Choose mix and sharpness of the memories' vote, and set them in the predictor's model.

    Args:
        predictor: of a model with a vote, with its memory; changed in place.
        rows: labelled rows. Those that have a copy in the memory or among the training rows are left out.

    Raises:
        InputError: the model has no vote or no labelled memory, or no row is left.
    """
    witnessed = witness(predictor, rows)
    mix, tau = witnessed.best()
    network = predictor.model.network
    usable = witnessed.usable()
    before = usable.accuracy(network.mix.cpu(), network.mix_tau.cpu())
    network.set_vote(mix, tau)
    in_memory, in_training = int(witnessed.in_memory.sum()), int(witnessed.in_training.sum())
    scored = usable.accuracy(mix, tau), len(usable.near)
    return Tuned(mix, tau, before, *scored, in_memory, in_training, int(usable.near.sum()))


def witness(predictor: Predictor, rows: Rows) -> Witnessed:
    """What a model and its memories say of labelled rows.

    Raises:
        InputError: the model has no vote or no labelled memory, or does not know a label.
    """
    network, memory = voting(predictor)
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
    predictor.model.use_memory(predictor.data, memory, len(rows))
    blocks = [
        _witness_block(
            predictor, network, memory, rows.select(np.arange(start, min(start + BLOCK, len(rows))))
        )
        for start in range(0, len(rows), BLOCK)
    ]
    evidence = Evidence(
        *(torch.cat(column) for column in zip(*(block.evidence for block in blocks), strict=True))
    )
    marks = (torch.cat(column) for column in zip(*(block[1:] for block in blocks), strict=True))
    return Witnessed(evidence, *marks)


def voting(predictor: Predictor) -> tuple[VotingNetwork, Memory]:
    """The network that takes a vote, and the memory that votes.

    Raises:
        InputError: the model takes no vote.
    """
    network, memory = predictor.model.network, predictor.memory
    if not isinstance(network, VotingNetwork) or memory is None:
        raise InputError(
            f"zoo memory tune: this {type(predictor.model).__name__} takes no vote of its memories: what it makes of"
            " them was trained with its weights, so there is no share to fit; train a WitnessEnsemble, or a KNNBiLSTM"
            " with --model.mix or --model.features M2 to M7"
        )
    return network, memory


def _witness_block(predictor: Predictor, network: VotingNetwork, memory: Memory, rows: Rows) -> Witnessed:
    model, data = predictor.model, predictor.data
    split = data.split_of(rows, memory)
    marks = data.marks_of(rows, split.neighbors, memory)
    parts = []
    with data.dataset_for_now(split) as dataset, evaluating(model):
        for first in range(0, len(dataset), _ROWS):
            batch = dataset.__getitems__(range(first, min(first + _ROWS, len(dataset))))
            parts.append(network.evidence(on_device(batch, model)))
    evidence = Evidence(*(torch.cat(column).cpu() for column in zip(*parts, strict=True)))
    return Witnessed(evidence, *map(torch.from_numpy, (marks.in_memory, marks.in_training, marks.near)))
