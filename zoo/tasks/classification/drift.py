"""Drift: the share of texts that no memory is like, against the held-out rows of the training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Share of the held-out rows that count as unlike all memories.
_SHARE = 0.05
#: Probability of an alarm where nothing has changed.
_ALARM = 0.001


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
