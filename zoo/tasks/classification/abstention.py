"""Answers with a bounded error, and sets of labels, from a model's results for held-out rows.

A model answers where the probability of its answer is at least a threshold. The error among these answers is at most a
level, with a confidence over the draw of the held-out rows: Learn then Test (Angelopoulos, Bates, Candès, Jordan, Lei
2021) by fixed-sequence testing. The thresholds are fixed in advance (all numbers of float32) and tested from strict to
lax. The hypothesis of a test is "the error among the answers is above the level"; among the n held-out rows that are
answered, the number of errors has a binomial distribution, whose tail is exact for every n. The first test that does
not reject ends the sequence, and the last rejected threshold is used: the sequence needs no correction for the number
of its tests. Since few rows prove nothing, it starts where a quarter of the held-out rows are answered, or as many as
the level needs.

Assumptions:

- The rows to come are exchangeable with the held-out rows: they have the same source, and are no duplicates of rows
  from which the model has learned. Duplicates of each other count once. Labels that no held-out row has are not
  covered: a label that only the memory has is no answer then.
- Neither members nor weights were fitted on a held-out row by whose result a threshold is chosen. Two small exceptions
  are not corrected: the encoder's epoch is chosen by its accuracy on the validation rows, and where training rows are
  cross-fitted, the members of a fold have learned from fewer rows than the model's.
- The start depends on the probabilities of the held-out rows. This is exact if rows below the first threshold with too
  many errors are wrong more often than the level, too.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from zoo.tasks.classification.held_out import MOST_ROWS, HeldOutScores

#: The sequence of tests starts where at least one of this number of held-out rows is answered.
_LEAST_ANSWERED = 4

#: The way to more held-out rows.
TUNE_ADVICE = (
    "run `zoo memory tune MODEL FILE` with several hundred labelled rows (0.05 takes at least 59, all right)"
)


def answer_threshold(scores: HeldOutScores, max_error: float, confidence: float) -> float:
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


def rows_that_do(scores: HeldOutScores, max_error: float, confidence: float) -> int | None:
    """Return the number of rows like these that can certify a level; None = not even those that a model keeps."""
    numbers = range(2, MOST_ROWS // max(len(scores.probability), 1) + 1)
    copies = (HeldOutScores._make(np.tile(each, number) for each in scores) for number in numbers)
    certified = (each for each in copies if certified_threshold(each, max_error, confidence) is not None)
    return next((len(each.probability) for each in certified), None)


def rows_needed(max_error: float, confidence: float) -> int:
    """Return the smallest number of answered held-out rows that can certify a level, if all answers are right."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - max_error))


def certified_threshold(scores: HeldOutScores, max_error: float, confidence: float) -> float | None:
    """Return the lowest probability from which answers have at most this error; None = no threshold is certified."""
    values, answered, bounds = _error_bounds(scores, confidence)
    begin = np.searchsorted(answered, _start(scores, max_error, confidence))
    failures = np.flatnonzero(bounds[begin:] > max_error)
    end = begin + failures[0] if len(failures) else len(bounds)
    if end == begin:
        return None
    return 0.0 if end == len(bounds) else float(values[end - 1])


def lowest_level(scores: HeldOutScores, confidence: float) -> float | None:
    """Return the lowest level that the rows can certify, in steps of .001; None = they can certify none."""
    _, answered, bounds = _error_bounds(scores, confidence)
    for step in range(1, 1000):
        begin = np.searchsorted(answered, _start(scores, step / 1000, confidence))
        if begin < len(bounds) and bounds[begin] <= step / 1000:
            return step / 1000
    return None


def _start(scores: HeldOutScores, max_error: float, confidence: float) -> int:
    """Return the number of answered rows with which a sequence of tests starts."""
    return max(math.ceil(len(scores.probability) / _LEAST_ANSWERED), rows_needed(max_error, confidence))


def _error_bounds(
    scores: HeldOutScores, confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return thresholds from strict to lax, the numbers of answered rows, and upper bounds of the error among answers.

    A bound (Clopper and Pearson 1934) is the lowest level that the binomial test of its threshold certifies.
    """
    from scipy.stats import beta

    has_answer = scores.probability >= 0
    order = np.argsort(-scores.probability[has_answer], kind="stable")
    values, wrong = scores.probability[has_answer][order], ~scores.is_right[has_answer][order]
    # The last row of each probability: rows of equal probability are answered together.
    last = np.flatnonzero(np.append(values[1:] != values[:-1], True)[: len(values)])
    answered, errors = last + 1, np.cumsum(wrong)[last]
    bounds = np.where(
        errors < answered, beta.ppf(confidence, errors + 1, np.maximum(answered - errors, 1)), 1.0
    )
    return values[last], answered, bounds


def set_threshold(scores: HeldOutScores, miscoverage: float) -> float:
    """Return the probability from which a label is in the set of a text; raise an `InputError` if rows are too few.

    The set lacks the text's label with at most the probability `miscoverage`, over the draw of the text and of the
    held-out rows (split conformal prediction: Vovk, Gammerman, Shafer 2005). It may be empty.
    """
    rows = len(scores.of_label)
    # A product such as 20 * 0.1 may be a little below its whole number.
    rank = math.floor((rows + 1) * miscoverage + 1e-9)
    if rank == 0:
        raise InputError(
            f"label_sets={miscoverage:g}: {rows} held-out rows can certify {1 / (rows + 1):.4f} at the lowest; use a"
            f" higher level, or more rows: {TUNE_ADVICE}"
        )
    return float(np.sort(scores.of_label)[rank - 1])


def check_level(name: str, value: float) -> None:
    """Raise an `InputError` for a share that is not between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{name}={value}: must be above 0 and below 1, such as 0.05")
