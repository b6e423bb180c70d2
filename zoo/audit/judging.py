"""Probable labels of a memory's rows by members that have not learned from the row they judge.

Members that are fitted are cross-fitted, with duplicates in one fold. In a vote, a row retrieves neither itself nor its
duplicates. Members are pooled as in a `MemoryEnsemble`, with calibrations and weights that are fitted on all rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.classification.dataset import label_numbers
from datamodules.duplicates import duplicate_codes
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.fit import cross_fit
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.model import MemoryEnsemble
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.outputs import Outputs, Votes
from zoo.ensemble.pool import fit_pool, folds_of
from zoo.ensemble.tables import classify_table, read_table
from zoo.tasks.predictor import Predictor

FOLDS = 5
#: Memories that vote for a row.
NEIGHBORS = 50
#: Of the lexical member and of the kernel machines: labels that may be wrong are followed less than in a training.
_COST, _RIDGE = 0.3, 1.0


class Inputs(NamedTuple):
    """The rows of a memory as members read them."""

    #: int64 [n], classes.
    target: NDArray[np.int64]
    #: int64 [n], equal for duplicates.
    groups: NDArray[np.int64]
    #: inputs of the members that are fitted.
    readings: Readings
    #: names of these members.
    names: list[str]
    #: sizes of these members.
    sizes: Sizes
    #: votes of each row's neighbors, with their rows in the memory.
    votes: dict[str, Votes]


def read_inputs(memory: FolderMemory, labels: list[str], predictor: Predictor[Any, Any] | None) -> Inputs:
    """Read a memory whose rows have these labels; the vectors are those of the predictor's model, if it is an ensemble.

    An encoder that was trained by gradients has memorized the labels, and is not read.
    """
    inputs = read_texts(memory, labels)
    model = None if predictor is None else predictor.model
    if predictor is None or not isinstance(model, MemoryEnsemble):
        return inputs
    network: EnsembleNetwork = model.network
    options = network.sizes._replace(num_classes=len(labels), trains_encoder=False, c=_COST, ridge=_RIDGE)
    inputs = inputs._replace(sizes=options)
    if network.encoder is not None and not network.learns_by_gradients:
        encoded = EncodedMemory.open(memory, model.encoder_fingerprint(predictor.data), predictor.encode)
        inputs = add_vectors(inputs, encoded)
    if "bag" in network.members:
        model.read_memory(predictor.data, memory)
        split = predictor.data.split_of(memory.rows, None)
        readings = inputs.readings._replace(bags=read_table(model, split, {"bags"}).bags)
        inputs = inputs._replace(readings=readings, names=[*inputs.names, "bag"])
    return inputs


def read_texts(memory: FolderMemory, labels: list[str]) -> Inputs:
    """Read the texts of a memory whose rows have these labels, and search each text among the others."""
    texts, target = memory.rows.texts[:], label_numbers(memory.rows, labels)
    neighbors = memory.search(texts, NEIGHBORS, exclude_duplicates=True)
    row_of = np.append(memory.opened.rows_with_ids(neighbors.memories.ids), -1)
    votes = _votes(row_of[neighbors.rows], neighbors.scores, target, len(labels))
    sizes = Sizes(len(labels), NEIGHBORS, 0, 0, False, max_ngram=2, max_letters=5, c=_COST, ridge=_RIDGE)
    groups = duplicate_codes(texts)
    return Inputs(target, groups, Readings(texts), ["lexical"], sizes, {"lexical_vote": votes})


def add_vectors(inputs: Inputs, memory: EncodedMemory) -> Inputs:
    """Add the vectors of a memory's rows, which also vote by their similarity."""
    hits = memory.search(memory.vectors, NEIGHBORS, memory.memory.opened.excluded_rows(inputs.readings.texts))
    votes = _votes(hits.rows, hits.scores, inputs.target, inputs.sizes.num_classes)
    sizes = inputs.sizes._replace(vector_size=memory.vectors.shape[1])
    return inputs._replace(
        readings=inputs.readings._replace(vectors=torch.from_numpy(memory.vectors.copy())),
        names=[*inputs.names, "encoder"],
        sizes=sizes,
        votes={**inputs.votes, "dense_vote": votes},
    )


def _votes(
    rows: NDArray[np.integer], scores: NDArray[np.float32], target: NDArray[np.int64], num_classes: int
) -> Votes:
    numbers = rows.astype(np.int64)
    exists = torch.from_numpy(numbers >= 0)
    return Votes(torch.from_numpy(scores), exists, torch.from_numpy(target[numbers]), num_classes, numbers)


def judge(inputs: Inputs) -> Tensor:
    """Return the log probabilities of all classes for each row, float32 [n, C]."""

    def classify(_: int, rows: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, Outputs]:
        fold = EnsembleNetwork(inputs.names, inputs.sizes)
        fold.fit(inputs.names, inputs.readings.select(others), inputs.target[others])
        return classify_table(fold, inputs.readings.select(rows), inputs.names, torch.device("cpu"))

    folds = folds_of(inputs.target, FOLDS, inputs.groups)
    held_out = cross_fit(inputs.target, inputs.groups, folds, classify)
    held_out = held_out._replace(outputs={**held_out.outputs, **inputs.votes})
    pool = fit_pool(held_out)
    return pool.combine(pool.calibrate(held_out.outputs)).log_softmax(dim=1)
