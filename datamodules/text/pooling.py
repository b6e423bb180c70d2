"""From the states of a text's tokens to its vector, for models and for dense retrieval."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from torch import Tensor, nn

Pooling: TypeAlias = Literal["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def text_vectors(
    states: Tensor, mask: Tensor, pooling: Pooling, dense: Iterable[nn.Module] = (), normalizes: bool = False
) -> Tensor:
    """Return the vectors [N, d] of texts: states pooled (see `pool`), through dense layers, and of length 1 if wanted.

    A text without tokens has the vector zero.
    """
    import torch

    vectors = pool(states, mask, pooling)
    for layer in dense:
        vectors = layer(vectors)
    if normalizes:
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    return vectors * mask.any(dim=1, keepdim=True)


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector [N, l] of the tokens' states [N, T, l]; zero for a text without tokens.

    The mask, bool [N, T], is True where there is a token; tokens come before padding.

    Args:
        states: of the tokens.
        mask: of the tokens.
        pooling: the `mean`; the first state (`cls`); the last one (`lasttoken`); the largest values (`max`); the sum
            divided by the square root of the number of tokens (`mean_sqrt_len_tokens`); or the mean, in which the n-th
            token counts n times (`weightedmean`).
    """
    if pooling == "cls":
        return states[:, 0] * mask[:, :1]
    if pooling == "max":
        return states.masked_fill(~mask.unsqueeze(2), -float("inf")).amax(dim=1).where(mask[:, :1], 0.0)
    real = mask.unsqueeze(2).to(states.dtype)  # [N, T, 1]
    if pooling == "lasttoken":
        real = real * (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True)).unsqueeze(2)
    if pooling == "weightedmean":
        real = real * mask.cumsum(dim=1).unsqueeze(2)
    divisor = real.sum(dim=1)
    if pooling == "mean_sqrt_len_tokens":
        divisor = divisor.sqrt()
    return (states * real).sum(dim=1) / divisor.clamp(min=1)
