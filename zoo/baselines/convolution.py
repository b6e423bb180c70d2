"""Convolution and pooling over texts of different lengths, which several matching models share.

Nothing here sees padding: a window's places beyond the text are zeros, and pooling takes the words that are
there. So a text's result is the same in any batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def window_sum(projected: Tensor, text: Tensor) -> Tensor:
    """A convolution over words whose products were made before, once for each distinct word.

    The output at a word is the sum of its window's words, each multiplied by the matrix of its place in the
    window. A batch has far fewer distinct words than tokens.

    Args:
        projected: [U, W, F], every word times the matrix of each of the W places; zero for padding (row 0).
        text: int64 [N, T], positions among the words, 0 = padding.

    Returns:
        float32 [N, T, F]; the window is centred on its word and reads zeros beyond the text. At padding,
        whatever the window reaches.
    """
    width = projected.shape[1]
    before = (width - 1) // 2
    windows = functional.pad(text, (before, width - 1 - before)).unfold(1, width, 1)  # [N, T, W]
    rows = windows * width + torch.arange(width, device=text.device)
    summed = functional.embedding_bag(
        rows.reshape(-1, width), projected.float().flatten(0, 1).contiguous(), mode="sum"
    )
    return summed.view(*text.shape, -1)


class WordConvolution(nn.Module):
    """Convolution over the words of texts, as `window_sum` computes it, with a bias if wanted."""

    def __init__(self, word_size: int, filters: int, window: int, bias: bool = True) -> None:
        super().__init__()
        self.places = nn.Linear(word_size, window * filters, bias=False)
        # As in PyTorch's own convolutions: fan-in is the whole window.
        bound = (word_size * window) ** -0.5
        nn.init.uniform_(self.places.weight, -bound, bound)
        self.bias = nn.Parameter(torch.empty(filters).uniform_(-bound, bound)) if bias else None
        self.window = window

    def forward(self, vectors: Tensor, text: Tensor) -> Tensor:
        """Convolve.

        Args:
            vectors: [U, D] vectors of the batch's distinct words, zero for padding (row 0).
            text: int64 [N, T].

        Returns:
            float32 [N, T, F], see `window_sum`.
        """
        projected = self.places(vectors).view(len(vectors), self.window, -1)
        summed = window_sum(projected, text)
        return summed if self.bias is None else summed + self.bias


def pool_neighbours(states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The larger of every two neighbours, as in max pooling by 2; the last of an odd number stays.

    Args:
        states: [N, T, F].
        lengths: int64 [N], real places of each row.

    Returns:
        [N, ceil(T / 2), F], zero beyond the real places, and the new lengths.
    """
    n, length, size = states.shape
    places = torch.arange(length, device=states.device)
    # A place that is not there must not win: below every number, and zeroed afterwards.
    least = torch.finfo(states.dtype).min
    real = (places < lengths.unsqueeze(1)).unsqueeze(2)
    padded = functional.pad(states.masked_fill(~real, least), (0, 0, 0, length % 2), value=least)
    pooled = padded.view(n, -1, 2, size).amax(dim=2)
    halves = (lengths + 1) // 2
    return pooled * real[:, ::2], halves


def pool_squares(image: Tensor, heights: Tensor, widths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Max pooling by 2 x 2 of images [P, T, S, F] over their real areas, and the new sizes of those."""
    pairs, length, _, size = image.shape
    by_column, _ = pool_neighbours(image.flatten(0, 1), widths.repeat_interleave(length))
    by_both, heights = pool_neighbours(by_column.view(pairs, length, -1), heights)
    return by_both.view(pairs, by_both.shape[1], -1, size), heights, (widths + 1) // 2


def pool_segments(states: Tensor, lengths: Tensor, segments: int) -> Tensor:
    """Dynamic max pooling: each row's real places are parted evenly, and each part gives its maximum.

    Part i of n of a text of l words is the words floor(i l / n) .. ceil((i + 1) l / n) - 1: in a text of fewer
    words than parts, neighbouring parts share words.

    Args:
        states: [N, T, F].
        lengths: int64 [N], real places of each row.
        segments: number of parts.

    Returns:
        [N, segments, F]; zero for a row without real places.
    """
    n, length, size = states.shape
    part = torch.arange(segments, device=states.device)
    ends = lengths.unsqueeze(1)
    start = part * ends // segments  # [N, segments]
    stop = ((part + 1) * ends + segments - 1) // segments
    # No part is longer than this, whatever the batch holds; shorter ones repeat their last place.
    width = length // segments + 2
    step = torch.arange(min(width, length), device=states.device)
    places = torch.minimum(start.unsqueeze(2) + step, stop.unsqueeze(2) - 1).clamp(min=0)
    rows = places + length * torch.arange(n, device=states.device).view(-1, 1, 1)
    gathered = states.flatten(0, 1).index_select(0, rows.flatten())
    pooled = gathered.view(n, segments, -1, size).amax(dim=2)
    return pooled * (lengths > 0).view(-1, 1, 1)


def pool_grid(image: Tensor, heights: Tensor, widths: Tensor, grid: tuple[int, int]) -> Tensor:
    """Dynamic max pooling of images over their real areas.

    Args:
        image: [P, T, S, F].
        heights: int64 [P], real rows of each image.
        widths: int64 [P], real columns.
        grid: parts of the rows and of the columns.

    Returns:
        [P, grid[0], grid[1], F]; zero for an image without a real area.
    """
    pairs, length, _, size = image.shape
    by_column = pool_segments(image.flatten(0, 1), widths.repeat_interleave(length), grid[1])
    by_row = pool_segments(by_column.view(pairs, length, -1), heights, grid[0])
    return by_row.view(pairs, *grid, size)


def inside(image: Tensor, heights: Tensor, widths: Tensor) -> Tensor:
    """The images [P, T, S, F] with zeros outside their real areas."""
    row = torch.arange(image.shape[1], device=image.device) < heights.unsqueeze(1)
    column = torch.arange(image.shape[2], device=image.device) < widths.unsqueeze(1)
    return image * (row.unsqueeze(2) & column.unsqueeze(1)).unsqueeze(3)
