"""Probable labels of a memory's rows by members that have not learned from the row they judge.

Members are cross-fitted, with duplicates in one fold. In a vote, a row retrieves neither itself nor its duplicates.
Members are pooled as in a `MemoryEnsemble`, with calibrations and weights that are fitted on all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from zoo.ensemble.cross_fitting import Reader, ReadRows, cross_fit
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.members import MEMBERS, Members
from zoo.ensemble.metric import EncoderMetric, TunedReader
from zoo.ensemble.model import MemoryEnsemble
from zoo.ensemble.new_labels import votes_of
from zoo.ensemble.outputs import Votes
from zoo.ensemble.pool import fit_pool, folds_of
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
    #: names of the members.
    names: list[str]
    sizes: Sizes
    rows: ReadRows
    #: int64 [n].
    folds: NDArray[np.int64]


class Judgement(NamedTuple):
    """The labels of n rows by members that were fitted without them."""

    #: float64 [n, C], log probabilities.
    logs: NDArray[np.float64]
    #: the neighbors of each row, by member.
    votes: dict[str, Votes]


def judge(memory: FolderMemory, labels: list[str], predictor: Predictor[Any, Any] | None) -> Judgement:
    """Judge the rows of a memory with these labels; the vectors are those of the predictor's model, if it has some.

    An encoder that was trained by gradients has memorized the labels, and is not read. One whose metric was learned is
    tuned again for each fold, on the rows of the others, from the weights that it had before.
    """
    inputs = read_texts(memory, labels)
    model = None if predictor is None else predictor.model
    if predictor is None or not isinstance(model, MemoryEnsemble):
        return cross_judge(inputs, inputs.rows)
    sizes = model.network.sizes._replace(
        num_classes=len(labels), num_memories=NEIGHBORS, trains_encoder=False, c=_COST, ridge=_RIDGE
    )
    inputs = inputs._replace(sizes=sizes)
    if "bag" in model.network.members:
        inputs = _with_bags(inputs, memory, predictor, model)
    if model.network.encoder is None or model.network.learns_by_gradients:
        return cross_judge(inputs, inputs.rows)
    encode = partial(model.encode, predictor.data)
    inputs = add_vectors(
        inputs, EncodedMemory.open(memory, model.encoder_fingerprint(predictor.data), encode)
    )
    with _tuned(inputs, memory, predictor.data, model) as metric:
        if metric is None:
            return cross_judge(inputs, inputs.rows)
        inputs = inputs._replace(folds=metric.fold_of_row())
        return cross_judge(inputs, TunedReader(inputs.rows, metric))


def read_texts(memory: FolderMemory, labels: list[str]) -> Inputs:
    """Read the texts of a memory whose rows have these labels, and search each text among the others."""
    texts, target = memory.rows.texts[:], label_numbers(memory.rows, labels)
    neighbors = memory.search(texts, NEIGHBORS, exclude_duplicates=True)
    row_of = np.append(memory.opened.rows_with_ids(neighbors.memories.ids), -1)
    numbers = row_of[neighbors.rows].astype(np.int64)
    exists, classes = torch.from_numpy(numbers >= 0), torch.from_numpy(target[numbers])
    votes = Votes(torch.from_numpy(neighbors.scores), exists, classes, len(labels), numbers)
    sizes = Sizes(len(labels), NEIGHBORS, 0, 0, False, max_ngram=2, max_letters=5, c=_COST, ridge=_RIDGE)
    groups = duplicate_codes(texts)
    rows = ReadRows(Readings(texts, votes))
    return Inputs(target, groups, ["lexical", "lexical_vote"], sizes, rows, folds_of(target, FOLDS, groups))


def add_vectors(inputs: Inputs, memory: EncodedMemory) -> Inputs:
    """Add the vectors of a memory's rows, which also vote by their similarity."""
    readings = inputs.rows.readings
    readings = readings._replace(
        vectors=torch.from_numpy(memory.vectors.copy()),
        excluded=memory.memory.opened.excluded_rows(readings.texts),
    )
    return inputs._replace(
        names=[*inputs.names, "encoder", "dense_vote"],
        sizes=inputs.sizes._replace(vector_size=memory.vectors.shape[1]),
        rows=ReadRows(readings, (memory, torch.from_numpy(inputs.target))),
    )


def _with_bags(
    inputs: Inputs, memory: FolderMemory, predictor: Predictor[Any, Any], model: MemoryEnsemble
) -> Inputs:
    split = predictor.data.split_of(memory.rows, None)
    bags = read_table(model, predictor.data, split, {"bags"}).bags
    return inputs._replace(
        names=[*inputs.names, "bag"],
        rows=ReadRows(inputs.rows.readings._replace(bags=bags)),
    )


@contextmanager
def _tuned(
    inputs: Inputs, memory: FolderMemory, data: Any, model: MemoryEnsemble
) -> Iterator[EncoderMetric | None]:
    """Tune the model's encoder for each fold of the rows, and put its weights back; None if it has not been tuned."""
    network, plan = model.network, model.metric_plan(len(inputs.target))
    if network.encoder_before is None or plan is None:
        yield None
        return
    metric = EncoderMetric(
        network.encoder,
        partial(model.tune_encoder, data, data.split_of(memory.rows, None), inputs.target, plan),
        partial(model.encode, data),
        plan.layers,
        inputs.sizes,
        inputs.rows.readings.texts,
        inputs.target,
        inputs.groups,
        network.encoder_before,
    )
    with model.in_use, metric.restored():
        metric.tune_folds()
        yield metric


def cross_judge(inputs: Inputs, reader: Reader) -> Judgement:
    """Judge each row by members that were fitted without its fold."""
    names = [name for name in MEMBERS if name in inputs.names]
    members = partial(Members, names, inputs.sizes)
    held_out = cross_fit(reader, members, inputs.target, inputs.groups, inputs.folds)
    pool = fit_pool(held_out)
    logs = pool.combine(pool.calibrate(held_out.outputs)).log_softmax(dim=1)
    return Judgement(logs.double().numpy(), votes_of(held_out.outputs))
