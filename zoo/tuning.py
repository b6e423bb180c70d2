"""Fitting how much a model trusts its memory, on labelled rows, in seconds and without training.

A memory that has grown deserves more trust than the one that the model was trained with. `KNNBiLSTM` mixes a
plain vote of the memories into its predictions; here the vote's share and sharpness are chosen on rows that
are in neither the training set nor the memory.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from torch import Tensor
from torch.nn import functional

from datamodules.corpora.table import Rows
from datamodules.errors import InputError
from datamodules.retrieval import FolderMemory
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


def tune(predictor: Predictor, rows: Rows) -> Tuned:
    """Choose mix and sharpness of the memories' vote, and set them in the predictor's model.

    Chosen is what gives the rows' labels the highest likelihood: a steadier guide than accuracy, of which many
    settings have the same.

    Args:
        predictor: a `KNNBiLSTM` with its memory; changed in place.
        rows: labelled rows that the model was not trained on. Rows of which the memory has a copy are left
            out: they would find themselves and make the memory look better than it is.

    Raises:
        InputError: the model has no vote or no labelled memory, or no row is left.
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
    in_memory = 0
    if isinstance(memory, FolderMemory):
        copied = np.array([len(copies) > 0 for copies in memory.copies(rows.texts[:])])
        in_memory = int(copied.sum())
        rows = rows.select(np.flatnonzero(~copied))
    if len(rows) == 0:
        raise InputError(f"{rows.source}: all rows are in the memory; tune on rows that are in neither")

    logits, similarity, score, mask, memory_target, target = _evidence(predictor, network, rows)

    def log_probabilities(mix: float, tau: float) -> Tensor:
        votes = count_votes(vote(similarity, score, mask, tau), memory_target, len(labels))
        return mix_in(logits, votes, mix)

    def accuracy(mix: float, tau: float) -> float:
        return float((log_probabilities(mix, tau).argmax(dim=1) == target).double().mean())

    before = accuracy(float(network.mix), float(network.mix_tau))
    mix, tau = min(
        product(MIXES, TAUS),
        key=lambda pair: float(functional.nll_loss(log_probabilities(*pair), target)),
    )
    network.mix.fill_(mix)
    network.mix_tau.fill_(tau)
    return Tuned(mix, tau, before, accuracy(mix, tau), len(rows), in_memory)


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
