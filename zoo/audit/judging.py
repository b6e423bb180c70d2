"""Probable labels of a memory's rows by members that have not learned from the row they judge.

Members are cross-fitted, with duplicates in one fold. In a vote, a row retrieves neither itself nor its duplicates.
Members are pooled as in a `MemoryEnsemble`, with calibrations and weights that are fitted on all rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.classification import label_numbers
from datamodules.duplicates import duplicate_codes
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.base import read_table
from zoo.ensemble.cross_fitting import ReadWithout, cross_fit
from zoo.ensemble.member import Readings, SearchedMemory, Sizes
from zoo.ensemble.members import MEMBERS
from zoo.ensemble.metric import EncoderMetric
from zoo.ensemble.model import MemoryEnsemble
from zoo.ensemble.new_labels import votes_of
from zoo.ensemble.outputs import Votes
from zoo.ensemble.pool import fit_pool, folds_of
from zoo.layers.tfidf import NGrams
from zoo.tasks.predictor import Predictor

FOLDS = 5
#: Memories that vote for a row.
NEIGHBORS = 50
#: Of the lexical member and of the kernel machines: labels that may be wrong are followed less than in a training.
_COST, _RIDGE = 0.3, 1.0


class _Rows(NamedTuple):
    """The rows of a memory as members read them."""

    #: int64 [n], classes.
    target: NDArray[np.int64]
    #: int64 [n], equal for duplicates.
    groups: NDArray[np.int64]
    readings: Readings
    sizes: Sizes

    def with_vectors(self, memory: EncodedMemory) -> _Rows:
        """Add the vectors of the memory's rows, which also vote by their similarity."""
        searched = SearchedMemory(memory, torch.from_numpy(self.target))
        vectors = torch.from_numpy(memory.vectors.copy())
        readings = self.readings._replace(vectors=vectors, memory=searched).without_duplicates()
        return self._replace(readings=readings, sizes=self.sizes._replace(vector_size=vectors.shape[1]))


class Judgement(NamedTuple):
    """The labels of n rows by members that were fitted without them."""

    #: float64 [n, C], log probabilities.
    logs: NDArray[np.float64]
    #: the neighbors of each row, by member.
    votes: dict[str, Votes]


def judge(memory: FolderMemory, labels: list[str], predictor: Predictor[Any, Any] | None) -> Judgement:
    """Judge the rows of a memory with these labels; the vectors are those of the predictor's model, if it has some.

    An encoder whose metric was learned is tuned again for each fold, on the rows of the others, from the weights that
    it had before.
    """
    rows = read_texts(memory, labels)
    model = None if predictor is None else predictor.model
    if predictor is None or not isinstance(model, MemoryEnsemble):
        return cross_judge(rows)
    network, data = model.network, predictor.data
    split = data.split_of(memory.rows, None)
    sizes = network.sizes._replace(num_classes=len(labels), num_memories=NEIGHBORS, c=_COST, ridge=_RIDGE)
    rows = rows._replace(sizes=sizes)
    if "bag" in network.members:
        bags = read_table(model, data, split, {"bags"}).bags
        rows = rows._replace(readings=rows.readings._replace(bags=bags))
    if network.encoder is None:
        return cross_judge(rows)
    encode = partial(model.encode, data)
    rows = rows.with_vectors(EncodedMemory.open(memory, model.encoder_fingerprint(data), encode))
    before, plan = network.encoder_before, network.metric_plan
    if before is None or plan is None:
        return cross_judge(rows)
    metric = EncoderMetric(model, data, split, rows.target, rows.groups, [plan], rows.sizes, before)
    with model.in_use, metric.using(metric.original):
        metric.tune_folds()
        return cross_judge(rows, metric.fold_of_row, metric.read_without)


def read_texts(memory: FolderMemory, labels: list[str]) -> _Rows:
    """Read the texts of a memory whose rows have these labels, and search each text among the others."""
    texts, target = memory.rows.texts[:], label_numbers(memory.rows, labels)
    neighbors = memory.search(texts, NEIGHBORS, exclude_duplicates=True)
    row_of = np.append(memory.opened.rows_with_ids(neighbors.memories.ids), -1)
    numbers = torch.from_numpy(row_of[neighbors.rows].astype(np.int64))
    classes = torch.from_numpy(target)[numbers]
    votes = Votes(torch.from_numpy(neighbors.scores), numbers >= 0, classes, len(labels), numbers)
    sizes = Sizes(len(labels), NEIGHBORS, 0, 0, c=_COST, ridge=_RIDGE)
    ngrams = NGrams().fit(texts)
    return _Rows(target, duplicate_codes(texts), Readings(texts, ngrams, votes), sizes)


def cross_judge(
    rows: _Rows, folds: NDArray[np.int64] | None = None, read_without: ReadWithout | None = None
) -> Judgement:
    """Judge each row by members that were fitted without its fold; see `cross_fit`."""
    readings, target, groups = rows.readings, rows.target, rows.groups
    names = [
        name
        for name, member in MEMBERS.items()
        if all(getattr(readings, each) is not None for each in member.reads | member.learns_from)
    ]
    folds = folds_of(target, FOLDS, groups) if folds is None else folds
    held_out = cross_fit(readings, names, rows.sizes, target, groups, folds, read_without)
    pool = fit_pool(held_out)
    logs = pool.combine(pool.calibrate(held_out.outputs)).log_softmax(dim=1)
    return Judgement(logs.double().numpy(), votes_of(held_out.outputs))
