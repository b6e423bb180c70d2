"""Held-out rows that stay with a model: its results for them bound the error of its answers, their texts show drift.

A fit writes them, and `zoo memory tune`; other versions of the memory use those of the last of these. Each row was
classified by members and weights that had no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, Memory

if TYPE_CHECKING:
    from torch import Tensor

#: Maximum number of rows that stay with a model.
MOST_ROWS = 5000
#: Share of the held-out rows that count as unlike all memories.
_SHARE = 0.05
#: Probability of an alarm where nothing has changed.
_ALARM = 0.001


class HeldOutScores(NamedTuple):
    """A model's results for n held-out rows, which are no duplicates of each other."""

    #: float64 [n], of the answer; negative where the model has no answer at any threshold.
    probability: NDArray[np.float64]
    #: bool [n].
    is_right: NDArray[np.bool_]
    #: float64 [n], probability of the row's own label; 0 where the model does not know it.
    of_label: NDArray[np.float64]


@dataclass(frozen=True)
class HeldOutRows:
    """n labelled rows without duplicates of each other, and the model's results for them."""

    #: None for rows of the training, from which the members have learned by now.
    texts: list[str] | None
    labels: list[str]
    scores: HeldOutScores
    #: fingerprint of the memory that was read; see `contents_of`.
    memory: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HeldOutRows:
        """Return the rows that `describe` described."""
        numbers = {name: values["scores"][name].numpy() for name in HeldOutScores._fields}
        rows = cls(**{**values, "scores": HeldOutScores(**numbers)})
        counts = {len(each) for each in (rows.labels, *rows.scores)}
        if counts != {len(rows.labels if rows.texts is None else rows.texts)}:
            raise ValueError("held-out rows lack a text, a label or a result")
        if not (np.isfinite(rows.scores.probability).all() and np.isfinite(rows.scores.of_label).all()):
            raise ValueError("the results of held-out rows are not finite")
        return rows

    def describe(self) -> PlainDict:
        """Return plain values and tensors."""
        import torch

        numbers = {name: torch.from_numpy(values) for name, values in self.scores._asdict().items()}
        return {**vars(self), "scores": numbers}


def contents_of(memory: Memory | None) -> str:
    """Return the fingerprint of a version of a memory; for an index of the user's, its location."""
    if isinstance(memory, FolderMemory):
        return memory.fingerprint
    return "" if memory is None else memory.location()


def rows_to_keep(
    texts: Sequence[str] | None,
    labels: Sequence[str],
    groups: NDArray[np.integer],
    known: Sequence[str],
    probabilities: Tensor,
    num_classes: int,
    memory: Memory | None,
    seed: int,
) -> HeldOutRows:
    """The held-out rows without duplicates of each other, drawn by the seed where there are many.

    Args:
        texts: of n rows; None = training rows.
        labels: of n rows.
        groups: [n], equal for duplicates.
        known: the model's labels, those that only the memory has last.
        probabilities: [n, C + N], of the model's labels, by weights that were fitted without the row.
        num_classes: C; the others only the memory has.
        memory: read by the members.
        seed: of the run.
    """
    rows = np.unique(groups, return_index=True)[1]
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:MOST_ROWS])
    kept, chosen = [labels[row] for row in rows], probabilities[rows].double()
    best, answer = chosen.max(dim=1)
    column = {label: number for number, label in enumerate(known)}
    # Nothing is known about the error of an answer that only the memory has, unless held-out rows have the label.
    unproven = [number for number in range(num_classes, len(known)) if known[number] not in kept]
    of_label = [
        float(chosen[row, column[label]]) if label in column else 0.0 for row, label in enumerate(kept)
    ]
    scores = HeldOutScores(
        np.where(np.isin(answer, unproven), -1.0, best),
        np.array([known[number] == label for number, label in zip(answer.tolist(), kept, strict=True)], bool),
        np.array(of_label, np.float64),
    )
    return HeldOutRows(
        None if texts is None else [texts[row] for row in rows], kept, scores, contents_of(memory)
    )


class Drift(NamedTuple):
    """The result for some texts."""

    texts: int
    #: texts that are less like their best memory than 95 % of the held-out rows are.
    unlike: int
    #: probability of as many if the texts were of the same kind as the held-out rows.
    p_value: float

    @property
    def is_alarm(self) -> bool:
        """True if the texts are of another kind than the held-out rows."""
        return self.p_value < _ALARM

    def __str__(self) -> str:
        """Return one line."""
        share = f"no memory is like {self.unlike:,} of {self.texts:,} texts ({self.unlike / max(self.texts, 1):.1%};"
        verdict = "DRIFT: the texts are of another kind" if self.is_alarm else "no sign of drift"
        return f"{share} of the held-out rows {_SHARE:.0%}): {verdict} (p = {self.p_value:.1g})"


def likeness(text: str, hits: Iterable[tuple[float, str | None]], is_lexical: bool) -> float:
    """The retrieval score of a text's best memory, a lexical one for each word; 0 if it retrieved none.

    `hits` are scores of memories, and how each was found (see `RetrievedMemory`).
    """
    best = max((score for score, found_by in hits if found_by != "vectors"), default=0.0)
    return best / max(len(text.split()), 1) if is_lexical else best


def drift(held_out: Sequence[float] | NDArray[np.float64], new: Sequence[float]) -> Drift:
    """Compare the likeness of texts with that of held-out rows.

    If all are exchangeable, the number of texts below the k-th smallest of n held-out values has a beta-binomial
    distribution with the parameters k and n - k + 1, which accounts for the chance in both.
    """
    from scipy.stats import betabinom

    n = len(held_out)
    k = max(int(_SHARE * n), 1)
    threshold = np.sort(held_out)[k - 1]
    unlike = int((np.asarray(new) < threshold).sum())
    return Drift(len(new), unlike, float(betabinom.sf(unlike - 1, len(new), k, n - k + 1)))
