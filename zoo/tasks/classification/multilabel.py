"""Sets of labels: logits of two answers to one question a label, the choice of a set, and its scores.

Logits of one label are [B, C], those of sets [B, 2, C]: whether a text has a label is a question with two answers, no
and yes. A softmax over the second dimension gives both their probabilities, and a cross entropy their losses.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

#: The choice of a set: the probability from which a text has a label, and whether no set is empty.
SetRule: TypeAlias = tuple[float, bool]
#: Least probability of a label of a set, where held-out rows have one label each.
_LEAST_OF_ONE = 0.5


def choose_labels(probabilities: Tensor, rule: SetRule) -> Tensor:
    """The sets of texts, [B, C] of 0 and 1, by the probabilities of their labels [B, C]."""
    threshold, fills = rule
    chosen = probabilities >= threshold
    if fills:  # the most probable label is in it
        chosen |= probabilities == probabilities.amax(dim=1, keepdim=True)
    return chosen.long()


def fit_rule(probabilities: Tensor, target: Tensor) -> SetRule:
    """The rule of the highest micro F1 on n held-out rows, by probabilities [n, C] of their labels; `target` [n, C].

    One threshold serves all labels, as probabilities are calibrated: half of the best F1 (Lipton, Elkan, Naryanaswamy,
    "Optimal Thresholding of Classifiers to Maximize F1 Measure", 2014). No set is empty where none of the rows' is, and
    where each has one label, a second one has to be probable.
    """
    values, order = probabilities.double().flatten().sort(descending=True)
    right = target.flatten()[order].cumsum(dim=0)
    best = int((2 * right / (torch.arange(1, len(values) + 1) + target.sum())).argmax())
    threshold = float(values[best : best + 2].mean())
    if (target.sum(dim=1) == 1).all():
        threshold = max(threshold, _LEAST_OF_ONE)
    return threshold, bool(target.any(dim=1).all())


def probabilities_of(logits: Tensor) -> Tensor:
    """Probability of each label [B, C], by logits [B, C] of classes, or [B, 2, C] of sets."""
    probabilities = logits.softmax(dim=1)
    return probabilities if logits.ndim == 2 else probabilities[:, 1]


def row_scores(answer: Tensor, target: Tensor, unknown: Tensor | None = None) -> Tensor:
    """Score of each row, float64 [B]: of a class 1 where it is right; of sets F1, which is 1 where both are empty.

    Answers and targets are classes [B], or sets of the first D of C labels [B, D] and [B, C]; `unknown` [B] has the
    numbers of further labels of the texts, None = 0.
    """
    if target.ndim == 1:
        return (answer == target).double()
    both = (answer * target[:, : answer.shape[1]]).sum(dim=1).double()
    sizes = answer.sum(dim=1) + target.sum(dim=1) + (0 if unknown is None else unknown)
    return torch.where(sizes > 0, 2 * both / sizes.clamp(min=1), 1.0)
