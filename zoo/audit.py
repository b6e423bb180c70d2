"""The rows of a memory in the order of suspicion, with the rows that contradict their labels.

The label of a row is judged by members that have not learned from the row. Members are cross-fitted, with duplicates in
one fold. In a vote, a row retrieves neither itself nor its duplicates. Members are pooled as in a `MemoryEnsemble`,
with calibrations and weights that are fitted on all rows.
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.classification import as_indicators, label_numbers
from datamodules.core.errors import InputError, visible
from datamodules.core.outputs import check_output, write_csv
from datamodules.corpora.multilabel import distinct_labels
from datamodules.duplicates import duplicate_codes
from datamodules.retrieval import FolderMemory, Memory, open_memory
from datamodules.retrieval.memories.changes import conflicting_rows
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.base import read_table
from zoo.ensemble.cross_fitting import cross_fit
from zoo.ensemble.member import Readings, SearchedMemory, Sizes
from zoo.ensemble.members import MEMBERS
from zoo.ensemble.metric import EncoderMetric
from zoo.ensemble.model import MemoryEnsemble
from zoo.ensemble.new_labels import votes_of
from zoo.ensemble.outputs import Votes
from zoo.ensemble.pool import HeldOut, fit_pool
from zoo.layers.lora import is_adapter
from zoo.layers.tfidf import NGramTfidf
from zoo.loading import load
from zoo.model_folder.folder import is_model
from zoo.tasks.classification.metric_learning import using
from zoo.tasks.predictor import Predictor

#: Columns of the table; the last three have lists.
_COLUMNS = ["id", "text", "label", "suggested", "suspicion"]
_COLUMNS += ["contradicting_ids", "contradicting_labels", "contradicting_texts"]
#: Rows that are listed as contradicting a row.
_CONTRADICTIONS = 3

#: Memories that vote for a row.
NEIGHBORS = 50
#: Of the lexical member and of the kernel machines: labels that may be wrong are followed less than in a training.
_COST, _RIDGE = 0.3, 1.0

_ADVICE = "make a memory of the rows with `zoo index --file TABLE --memory FOLDER`, and audit the folder"


class Contradiction(NamedTuple):
    """A row of the memory that contradicts the label of another one."""

    id: str
    text: str
    label: str


class AuditedRow(NamedTuple):
    """A row of a memory, and the judgement of its label."""

    id: str
    text: str
    label: str
    #: the most probable label.
    suggested: str
    #: 1 - the probability of the row's label.
    suspicion: float
    #: duplicates with another label, then neighbors with the suggested label if it is another one.
    contradictions: list[Contradiction]


class Audit(NamedTuple):
    """All rows of a memory, the most suspicious first."""

    rows: list[AuditedRow]
    #: estimated share of wrong labels.
    wrong: float
    #: of this share.
    standard_error: float
    #: number of rows that have a duplicate with another label.
    conflicts: int


def audit(source: Predictor | Memory) -> Audit:
    """Judge the label of each row of a memory by members fitted without it and by its neighbors.

    The neighbors of a row are neither itself nor its duplicates. Of a `MemoryEnsemble`, the vectors of a frozen encoder
    and pre-trained word vectors are used as well; of other models and of a memory without a model, the texts only.

    Args:
        source: a predictor, as `zoo.load` returns it, or a memory.

    Raises:
        InputError: the memory cannot be judged: it has no labels, fewer than two of them, or no rows of its own.

    Example:
        >>> audit(zoo.load("runs/mine")).rows[0].suggested  # doctest: +SKIP
    """
    predictor = source if isinstance(source, Predictor) else None
    memory = source.memory if isinstance(source, Predictor) else source
    if memory is None:
        assert predictor is not None
        if predictor.data.memory is None or not predictor.data.has_memory:
            raise InputError(f"this model reads no memory; {_ADVICE}")
        memory = predictor.data.memory.open(None)
    if not isinstance(memory, FolderMemory):
        raise InputError(f"{memory.location()}: an index of your own can only be searched; {_ADVICE}")
    separator = None if predictor is None else predictor.data.options.to_dict().get("label_separator")
    labels = distinct_labels(memory.labels(), separator)
    if len(labels) < 2:
        named = f"has only the label {labels[0]!r}" if labels else "has no labels"
        raise InputError(f"{memory.location()}: {named}; an audit needs rows with two labels or more")
    if len(np.unique(duplicate_codes(memory.rows.texts[:]))) <= (len(labels) if separator is None else 1):
        raise InputError(f"{memory.location()}: a single text, or one a label: none can judge it; add rows")
    held_out, logs = judge(memory, labels, predictor, separator)
    return _ranked(memory, labels, held_out, logs, separator)


def _ranked(
    memory: FolderMemory, labels: list[str], judged: HeldOut, logs: NDArray[np.float64], separator: str | None
) -> Audit:
    """Rank the rows of a memory by the probability of their labels; of a set, by its least probable part."""
    target, suggested = judged.target.numpy(), logs.argmax(axis=1)
    wrong = share_of_errors(logs, target)
    if separator is None:  # a class is a set of one label
        own = logs[np.arange(len(logs)), target]
        target, suggested = (np.eye(len(labels), dtype=bool)[each] for each in (target, suggested))
    else:
        own = np.take_along_axis(logs, target[:, None], axis=1).min(axis=(1, 2))
    sets, suggested = target > 0, suggested > 0
    rows = memory.rows
    ids, texts, written = rows.ids, rows.texts[:], rows.labels or []
    conflicts = {
        row: [each for each in group if (sets[each] != sets[row]).any()]
        for group in conflicting_rows(rows, memory.opened.lookup)
        for row in group
    }
    # The nearest neighbors of each search first; -1 for none.
    neighbors = [vote.rows for vote in votes_of(judged.outputs).values() if vote.rows is not None]
    nearest = torch.stack(neighbors, dim=2).flatten(1)

    def contradictions(row: int) -> list[Contradiction]:
        # Where a label is missing, neighbors that have it; where only one is too many, neighbors without it.
        missing, excess = suggested[row] & ~sets[row], sets[row] & ~suggested[row]
        others = np.array([each for each in dict.fromkeys(nearest[row].tolist()) if each >= 0], np.int64)
        agrees = sets[others][:, missing] if missing.any() else ~sets[others][:, excess]
        chosen = [*conflicts.get(row, []), *others[agrees.any(axis=1)].tolist()]
        return [Contradiction(ids[each], texts[each], written[each]) for each in chosen[:_CONTRADICTIONS]]

    # From logarithms, so that rows differ whose label is nearly certain, or nearly impossible.
    suspicion, order = (-np.expm1(own)).tolist(), np.argsort(own, kind="stable").tolist()
    chosen = ([labels[number] for number in np.flatnonzero(each)] for each in suggested)
    names = [(separator or "").join(each) for each in chosen]  # sorted as the labels are, blanks included
    audited = [
        AuditedRow(ids[row], texts[row], written[row], names[row], suspicion[row], contradictions(row))
        for row in order
    ]
    standard_error = math.sqrt(wrong * (1 - wrong) / surest_rows(len(sets)))
    return Audit(audited, wrong, standard_error, len(conflicts))


def share_of_errors(logs: NDArray[np.float64], target: NDArray[np.int64]) -> float:
    """Estimate the share of rows with wrong labels: how often the surest fifth of the judgements disagrees.

    A row's own label has no part in its judgement, so that the fifth has as many wrong labels as the others, and its
    texts are clear enough for the members to be right. `logs` are those of `judge`. Of sets, it is the surest fifth of
    those of each size: small ones are surer.
    """
    sureness, answer, sizes = logs.max(axis=1), logs.argmax(axis=1), np.zeros(len(target))
    disagrees = answer != target
    if target.ndim == 2:
        sureness, disagrees, sizes = sureness.sum(axis=1), disagrees.any(axis=1), answer.sum(axis=1)
    of_sizes = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
    surest = [rows[np.argsort(-sureness[rows], kind="stable")][: surest_rows(len(rows))] for rows in of_sizes]
    return float(disagrees[np.concatenate(surest)].mean())


def surest_rows(count: int) -> int:
    """The number of rows on which the share of errors is estimated."""
    return max(1, count // 5)


def audit_memory(model: str, output: str = "audit.csv") -> None:
    """Write the rows of a model's memory, those whose label is probably wrong first.

    Each row is judged by members that are fitted without it and by its neighbors without itself and its duplicates. The
    table has a line for each row: id, text, label, suggested label, suspicion (1 - the probability of the
    label), and up to 3 rows that contradict it (JSON lists).

    To correct labels, change the column `label` of the table where a suggestion is right:
    `zoo memory relabel MODEL --file audit.csv` makes a new version of the memory.

    Args:
        model: a run folder or a model folder; or a memory folder.
        output: the table, a CSV file.
    """
    table = check_output(output, [model], ".csv")
    result = audit(load(model) if is_model(model) else open_memory(model))
    write_csv(table, [_COLUMNS, *map(_line_of, result.rows)], "--output")
    print(f"{visible(output)}: {describe(result)}")


def _line_of(row: AuditedRow) -> list[str]:
    against = [
        json.dumps([getattr(each, name) for each in row.contradictions], ensure_ascii=False)
        for name in ("id", "label", "text")
    ]
    return [row.id, row.text, row.label, row.suggested, f"{row.suspicion:.4f}", *against]


def describe(result: Audit) -> str:
    """Return the number of rows, of labels that are probably wrong, and of conflicts."""
    count = len(result.rows)
    percent = f"{100 * result.wrong:.1f} ± {100 * result.standard_error:.1f} %"
    return (
        f"{count:,} rows; about {round(result.wrong * count):,} of them ({percent}) are probably wrong;"
        f" {result.conflicts:,} rows have the text of a row with another label"
    )


class _Rows(NamedTuple):
    """The rows of a memory as members read them."""

    #: int64 [n], classes; or the numbers of each row's labels [n, L].
    numbers: NDArray[np.int64]
    #: int64 [n], equal for duplicates.
    groups: NDArray[np.int64]
    readings: Readings
    sizes: Sizes

    @property
    def target(self) -> NDArray[np.int64]:
        """Classes, int64 [n], or sets of labels [n, C] of 0 and 1."""
        return as_indicators(self.numbers, self.sizes.num_classes) if self.sizes.multilabel else self.numbers

    def with_vectors(self, memory: EncodedMemory) -> _Rows:
        """Add the vectors of the memory's rows, which also vote by their similarity."""
        searched = SearchedMemory(memory, torch.from_numpy(self.numbers))
        vectors = torch.from_numpy(memory.vectors.copy())
        readings = self.readings._replace(vectors=vectors, memory=searched).without_duplicates()
        return self._replace(readings=readings, sizes=self.sizes._replace(vector_size=vectors.shape[1]))


def judge(
    memory: FolderMemory, labels: list[str], predictor: Predictor | None, separator: str | None = None
) -> tuple[HeldOut, NDArray[np.float64]]:
    """Judge the rows of a memory with these labels; the vectors are those of the predictor's model, if it has some.

    Returns outputs of members for the n rows, and log probabilities, float64 [n, C]; of sets [n, 2, C]. An encoder
    whose metric was learned is tuned again for each fold, on the rows of the others, from its earlier weights.
    """
    rows = read_texts(memory, labels, separator)
    model = None if predictor is None else predictor.model
    if predictor is None or not isinstance(model, MemoryEnsemble):
        return cross_judge(rows)
    network, data = model.network, predictor.data
    split = data.split_of(memory.rows, None)
    if "bag" in network.members:
        bags = read_table(model, data, split, {"bags"}).bags
        sizes = rows.sizes._replace(bag_size=network.sizes.bag_size)
        rows = rows._replace(readings=rows.readings._replace(bags=bags), sizes=sizes)
    if network.encoder is None:
        return cross_judge(rows)
    encode = partial(model.encode, data)
    rows = rows.with_vectors(EncodedMemory.open(memory, model.encoder_fingerprint(data), encode))
    before, plan = network.encoder_before, network.metric_plan
    if before is None or plan is None:
        return cross_judge(rows)
    if any(map(is_adapter, before)):
        raise InputError(
            f"{predictor.source}: an encoder that low-rank adapters tuned (model.lora_rank) has no audit"
        )
    metric = EncoderMetric(model, data, split, rows.target, rows.groups, [plan], rows.sizes, before)
    with model.in_use, using(metric.encoder, metric.original):
        metric.tune_folds()
        return cross_judge(rows, metric)


def read_texts(memory: FolderMemory, labels: list[str], separator: str | None = None) -> _Rows:
    """Read the texts of a memory whose rows have these labels, and search each text among the others."""
    texts, of_rows = memory.rows.texts[:], label_numbers(memory.rows, labels, separator)
    neighbors = memory.search(texts, NEIGHBORS, exclude_duplicates=True)
    row_of = np.append(memory.opened.rows_with_ids(neighbors.memories.ids), -1)
    numbers = torch.from_numpy(row_of[neighbors.rows].astype(np.int64))
    classes = torch.from_numpy(of_rows)[numbers]
    votes = Votes(torch.from_numpy(neighbors.scores), numbers >= 0, classes, len(labels), numbers)
    sizes = Sizes(len(labels), NEIGHBORS, 0, 0, separator is not None, c=_COST, ridge=_RIDGE)
    ngrams = NGramTfidf().fit(texts)
    return _Rows(of_rows, duplicate_codes(texts), Readings(texts, ngrams, votes), sizes)


def cross_judge(rows: _Rows, metric: EncoderMetric | None = None) -> tuple[HeldOut, NDArray[np.float64]]:
    """Judge each row by members, and an encoder if its metric was learned, that were fitted without its fold."""
    readings = rows.readings
    given = {name for name in Readings._fields if getattr(readings, name) is not None}
    names = [name for name, member in MEMBERS.items() if member.reads | member.learns_from <= given]
    tuned = None if metric is None else (metric.fold_of_row, metric.read_without)
    held_out = cross_fit(readings, names, rows.sizes, rows.target, rows.groups, tuned)
    pool = fit_pool(held_out)
    logs = pool.combine(pool.calibrate(held_out.outputs)).log_softmax(dim=1)
    return held_out, logs.double().numpy()
