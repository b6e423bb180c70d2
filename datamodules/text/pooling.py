"""Pooling of a transformer's states into the vector of a text, for models and for dense retrieval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Pooling: TypeAlias = Literal["mean", "cls"]


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Return the mean of the tokens' states [N, T, l], or the first one, [N, l]; zero for a text without tokens.

    The mask, bool [N, T], is True where there is a token; tokens come before padding.
    """
    if pooling == "cls":
        return states[:, 0] * mask[:, :1]
    real = mask.unsqueeze(2).to(states.dtype)  # [N, T, 1]
    return (states * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
