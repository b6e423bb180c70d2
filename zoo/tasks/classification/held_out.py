"""Held-out rows that stay with a model: its results for them bound the error of its answers, and show other texts.

A fit and `zoo memory tune` write them. Each row was classified by members and weights that had no part of it.

A model answers where the probability of its answer is at least a threshold. The error among these answers is at most a
level, with a confidence over the draw of the held-out rows: Learn then Test (Angelopoulos, Bates, Candès, Jordan, Lei
2021) by fixed-sequence testing. The thresholds are fixed in advance (all numbers of float32) and tested from strict to
lax. The hypothesis of a test is "the error among the answers is above the level"; among the n held-out rows that are
answered, the number of errors has a binomial distribution, whose tail is exact for every n. The first test that does
not reject ends the sequence, and the last rejected threshold is used: the sequence needs no correction for the number
of its tests. Since few rows prove nothing, it starts where a quarter of the held-out rows are answered, or as many as
the level needs.

Of sets, the error is the share of wrong labels among those that are given. Labels of one text are not independent:
one of the places for labels of each held-out row is drawn, which may be empty. Each label is drawn with the same
probability, as no answer has more labels than there are places: so many that nine of ten of their labels have one.

Assumptions:

- The rows to come are exchangeable with the held-out rows: they have the same source, and are no duplicates of rows
  from which the model has learned. Duplicates of each other count once. Labels that no held-out row has are not
  covered: a label that only the memory has is no answer then.
- Neither members nor weights were fitted on a held-out row by whose result a threshold is chosen. Small exceptions are
  not corrected: the encoder's epoch is chosen by its accuracy on the validation rows, where training rows are
  cross-fitted, the members of a fold have learned from fewer rows than the model's, and the number of places for labels
  is chosen on these rows.
- The start depends on the probabilities of the held-out rows. This is exact if rows below the first threshold with too
  many errors are wrong more often than the level, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.multilabel import split_labels
from datamodules.retrieval import FolderMemory, Memory
from zoo.tasks.classification.calibration import Calibration

if TYPE_CHECKING:
    from torch import Tensor

    from datamodules.batch import ClassificationSpec

#: Numbers of the m held-out rows of a fold, int64 [m]; and, by weights that were fitted without them, probabilities of
#: their labels [m, C + N], answers (classes [m], or sets [m, C + N] of 0 and 1), and familiarity [m].
FoldResults: TypeAlias = "tuple[NDArray[np.int64], Tensor, Tensor, Tensor]"

#: Maximum number of rows that stay with a model.
MOST_ROWS = 5000
#: Share of the labels of sets that have a place in answers with a bounded error: few places are seldom empty.
_PLACED_SHARE = 0.9
#: Share of the held-out rows that count as unfamiliar.
_SHARE = 0.05
#: Points of a curve in a picture.
_POINTS = 50
#: Probability of an alarm where nothing has changed.
_ALARM = 0.001

#: The sequence of tests starts where at least one of this number of held-out rows is answered.
_LEAST_ANSWERED = 4

#: The way to more held-out rows.
TUNE_ADVICE = (
    "run `zoo memory tune MODEL FILE` with several hundred labelled rows (0.05 takes at least 59, all right)"
)


@dataclass(frozen=True)
class HeldOutRows:
    """n labelled rows without duplicates of each other, and the model's results for them."""

    #: float64 [n], of the answer, negative where the model has no answer at any threshold; of sets [m], of the labels
    #: that are drawn from those that have one.
    probability: NDArray[np.float64]
    #: bool [n] or [m].
    is_right: NDArray[np.bool_]
    #: float64 [n], probability of the row's own label, of a set the least; 0 where the model does not know it.
    of_label: NDArray[np.float64]
    #: float64 [n], how much the text is like those of the model's classes, unbounded; see `familiarity_of`.
    familiarity: NDArray[np.float64]
    labels: Sequence[str] = ()
    #: None for rows of the training, from which the members have learned by now.
    texts: Sequence[str] | None = None
    #: fingerprint of the memory that was read; see `contents_of`.
    memory: str = ""
    #: number of places for labels in an answer with a bounded error.
    most: int = 1

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HeldOutRows:
        """Return the rows that `describe` described."""
        others = {name: value for name, value in values.items() if name != "scores"}
        rows = cls(**{name: numbers.numpy() for name, numbers in values["scores"].items()}, **others)
        lengths = {len(rows.labels), len(rows.of_label), len(rows.familiarity)}
        if len(lengths) > 1 or len(rows.probability) != len(rows.is_right) or np.isnan(rows.of_label).any():
            raise InputError(f"the model's held-out rows are damaged; {TUNE_ADVICE}")
        return rows

    def describe(self) -> PlainDict:
        """Return plain values and tensors."""
        import torch

        scores = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        others = {name: value for name, value in vars(self).items() if name not in scores}
        return {**others, "scores": {name: torch.from_numpy(value) for name, value in scores.items()}}


def contents_of(memory: Memory | None) -> str:
    """Return the fingerprint of a version of a memory; for an index of the user's, its location."""
    if isinstance(memory, FolderMemory):
        return memory.fingerprint
    return "" if memory is None else memory.location()


def rows_to_keep(
    folds: Sequence[FoldResults],
    groups: NDArray[np.integer],
    labels: Sequence[str] | None,
    texts: Sequence[str] | None,
    known: Sequence[str],
    spec: ClassificationSpec,
    memory: Memory | None,
    seed: int,
) -> HeldOutRows:
    """The rows, of n held-out ones, without duplicates of each other, drawn by the seed where there are many.

    Training rows have no texts (None). Of the `known` labels, the model's, the last N only the memory has.
    """
    import torch

    numbers, *results = zip(*folds, strict=True)
    order = np.argsort(np.concatenate(numbers))
    probabilities, answers, familiarity = (torch.cat(each)[order] for each in results)
    separator, labels, random = spec.label_separator, labels or [], np.random.default_rng(seed)
    rows = np.unique(groups, return_index=True)[1]
    rows = np.sort(random.permutation(rows)[:MOST_ROWS])
    kept = [labels[row] for row in rows]
    values, every = probabilities[rows].double().numpy(), np.arange(len(rows))
    # Sets [n, C + N], of answers and of rows; a class is a set of one label.
    given, own = answers[rows].numpy(), np.zeros(values.shape, bool)
    if given.ndim == 1:
        given = given[:, None] == np.arange(len(known))
    column = {label: number for number, label in enumerate(known)}
    of_rows = [split_labels(label, separator) for label in kept]
    for row, written in enumerate(of_rows):
        own[row, [column[label] for label in written if label in column]] = True
    sizes = given.sum(axis=1)
    most = 1
    while np.minimum(sizes, most).sum() < _PLACED_SHARE * sizes.sum():
        most += 1
    place = random.integers(most, size=len(rows))
    drawn = np.where(given > 0, -values, 1.0).argsort(axis=1, kind="stable")[every, place]
    # Nothing is known about the error of an answer that only the memory has, unless held-out rows have the label.
    is_proven = (np.arange(len(known)) < len(spec.labels)) | own.any(axis=0)
    has_answer = place < sizes
    lacks = np.array([any(label not in column for label in written) for written in of_rows], bool)
    probability = np.where(is_proven[drawn], values[every, drawn], -1.0)[has_answer]
    is_right = own[every, drawn][has_answer]
    of_label = np.where(lacks, 0.0, np.where(own, values, 1.0).min(axis=1))
    of_text = familiarity[rows].double().numpy()
    chosen = None if texts is None else [texts[row] for row in rows]
    return HeldOutRows(probability, is_right, of_label, of_text, kept, chosen, contents_of(memory), most)


def familiarity_of(scores: HeldOutRows, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of the held-out rows that are at most as familiar as each of n texts, which counts among them [n].

    It is at most a level for at most this share of the texts that are exchangeable with the held-out rows (Vovk,
    Gammerman, Shafer 2005).
    """
    ranks = np.searchsorted(np.sort(scores.familiarity), values, side="right")
    return np.asarray((1 + ranks) / (1 + len(scores.familiarity)), np.float64)


def drift(held_out: Sequence[float] | NDArray[np.float64], new: Sequence[float]) -> PlainDict:
    """Compare how familiar texts are with how familiar the held-out rows are, or other numbers of the kind.

    If all are exchangeable, the number of texts below the k-th smallest of n held-out values has a beta-binomial
    distribution with the parameters k and n - k + 1, which accounts for the chance in both.

    Returns:
        `texts`: their number; `unlike`: those below the `threshold`, which 95 % of the held-out rows are not;
        `p_value`: probability of as many if all were of one kind; `is_alarm`: they are of another; a line, `summary`.
    """
    from scipy.stats import betabinom

    n = len(held_out)
    k = max(int(_SHARE * n), 1)
    threshold = float(np.sort(held_out)[k - 1])
    unlike = int((np.asarray(new) < threshold).sum())
    p_value = float(betabinom.sf(unlike - 1, len(new), k, n - k + 1))
    share = f"{unlike:,} of {len(new):,} texts ({unlike / max(len(new), 1):.1%}) are less familiar than"
    verdict = "DRIFT: the texts are of another kind" if p_value < _ALARM else "no sign of drift"
    summary = f"{share} {1 - _SHARE:.0%} of the held-out rows: {verdict} (p = {p_value:.1g})"
    found = {"texts": len(new), "unlike": unlike, "threshold": threshold, "p_value": p_value}
    return {**found, "is_alarm": p_value < _ALARM, "summary": summary}


def calibration(scores: HeldOutRows) -> PlainDict:
    """Return the share of right answers at each probability, and the error among the most probable answers.

    Returns:
        `rows` and their `accuracy`; `bins` of equally many rows: the mean `probability` of their answers, and the share
        that is `right`; `coverage`: shares of `answered` rows, the most probable ones, from a tenth on,
        with the `error` among them and its upper `bound`, of confidence .95.
    """
    has_answer = scores.probability >= 0
    if not has_answer.any():
        raise InputError(f"calibration: none of the held-out rows has an answer; {TUNE_ADVICE}")
    found = Calibration.of(scores.probability[has_answer], scores.is_right[has_answer])
    bins = [{"probability": probability, "right": right} for probability, right, _ in found.bins]
    _, answered, errors, bounds = _error_bounds(scores, 0.95)
    rows = len(scores.probability)
    points = np.flatnonzero(answered >= rows / 10)
    points = points[np.linspace(0, len(points) - 1, min(_POINTS, len(points))).astype(int)]
    coverage = [
        {"answered": answered[point] / rows, "error": errors[point] / answered[point], "bound": bounds[point]}
        for point in points
    ]
    return {"rows": rows, "accuracy": scores.is_right.mean(), "bins": bins, "coverage": coverage}


def answer_threshold(scores: HeldOutRows, max_error: float, confidence: float) -> float:
    """Return the certified threshold; raise an `InputError` that names the lowest level if there is none."""
    threshold = certified_threshold(scores, max_error, confidence)
    if threshold is not None:
        return threshold
    lowest = lowest_level(scores, confidence)
    instead = "no level at all" if lowest is None else f"{lowest:g} at the lowest"
    enough = rows_that_do(scores, max_error, confidence)
    more = "more rows like these would not do" if enough is None else f"about {enough} like these would do"
    raise InputError(
        f"max_error={max_error:g}: {len(scores.probability)} held-out rows can certify {instead}, with confidence"
        f" {confidence:g}, for answers to a quarter of the texts; {more}; use a higher level, or {TUNE_ADVICE}"
    )


def rows_that_do(scores: HeldOutRows, max_error: float, confidence: float) -> int | None:
    """Return the number of rows like these that can certify a level; None = not even those that a model keeps."""
    for number in range(2, MOST_ROWS // max(len(scores.probability), 1) + 1):
        probability, is_right = np.tile(scores.probability, number), np.tile(scores.is_right, number)
        copies = replace(scores, probability=probability, is_right=is_right)
        if certified_threshold(copies, max_error, confidence) is not None:
            return len(probability)
    return None


def rows_needed(max_error: float, confidence: float) -> int:
    """Return the smallest number of answered held-out rows that can certify a level, if all answers are right."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - max_error))


def certified_threshold(scores: HeldOutRows, max_error: float, confidence: float) -> float | None:
    """Return the lowest probability from which answers have at most this error; None = no threshold is certified."""
    values, answered, _, bounds = _error_bounds(scores, confidence)
    begin = np.searchsorted(answered, _start(scores, max_error, confidence))
    failures = np.flatnonzero(bounds[begin:] > max_error)
    end = begin + failures[0] if len(failures) else len(bounds)
    if end == begin:
        return None
    return 0.0 if end == len(bounds) else float(values[end - 1])


def lowest_level(scores: HeldOutRows, confidence: float) -> float | None:
    """Return the lowest level that the rows can certify, in steps of .001; None = they can certify none."""
    _, answered, _, bounds = _error_bounds(scores, confidence)
    for step in range(1, 1000):
        begin = np.searchsorted(answered, _start(scores, step / 1000, confidence))
        if begin < len(bounds) and bounds[begin] <= step / 1000:
            return step / 1000
    return None


def _start(scores: HeldOutRows, max_error: float, confidence: float) -> int:
    """Return the number of answered rows with which a sequence of tests starts."""
    return max(math.ceil(len(scores.probability) / _LEAST_ANSWERED), rows_needed(max_error, confidence))


def _error_bounds(
    scores: HeldOutRows, confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return thresholds from strict to lax, the numbers of answered rows and errors, and upper bounds of their share.

    A bound (Clopper and Pearson 1934) is the lowest level that the binomial test of its threshold certifies.
    """
    from scipy.stats import beta

    has_answer = scores.probability >= 0
    order = np.argsort(-scores.probability[has_answer], kind="stable")
    values, wrong = scores.probability[has_answer][order], ~scores.is_right[has_answer][order]
    # The last row of each probability: rows of equal probability are answered together.
    last = np.flatnonzero(np.append(values[1:] != values[:-1], True)[: len(values)])
    answered, errors = last + 1, np.cumsum(wrong, dtype=np.int64)[last]
    bounds = beta.ppf(confidence, errors + 1, np.maximum(answered - errors, 1))
    return values[last], answered, errors, np.where(errors < answered, bounds, 1.0)


def set_threshold(scores: HeldOutRows, miscoverage: float) -> float:
    """Return the probability from which a label is in the set of a text; raise an `InputError` if rows are too few.

    The set lacks the text's label, or one of several, with at most the probability `miscoverage`, over the draw of the
    text and of the held-out rows (split conformal prediction: Vovk, Gammerman, Shafer 2005). It may be empty.
    """
    return float(np.sort(scores.of_label)[_rank("label_sets", miscoverage, len(scores.of_label)) - 1])


def unknown_threshold(scores: HeldOutRows, level: float) -> float:
    """Return the familiarity up to which a text is unknown; raise an `InputError` if rows are too few."""
    return _rank("unknown", level, rows := len(scores.familiarity)) / (1 + rows)


def _rank(name: str, level: float, rows: int) -> int:
    """Return how many of the lowest of some held-out rows a level has; raise an `InputError` if it has none."""
    # A product such as 20 * 0.1 may be a little below its whole number.
    rank = math.floor((rows + 1) * level + 1e-9)
    if rank == 0:
        raise InputError(
            f"{name}={level:g}: {rows} held-out rows can certify {1 / (rows + 1):.4f} at the lowest; {TUNE_ADVICE}"
        )
    return rank


def check_level(name: str, value: float | None) -> None:
    """Raise an `InputError` for a share that is not between 0 and 1; None is none."""
    if value is not None and not 0 < value < 1:
        raise InputError(f"{name}={value}: must be above 0 and below 1, such as 0.05")
