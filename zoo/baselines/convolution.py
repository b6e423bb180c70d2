"""Convolution and pooling over texts of different lengths; windows read zeros beyond a text, poolings skip padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def window_sum(projected: Tensor, text: Tensor) -> Tensor:
    """Convolve over texts, int64 [N, T], of words whose products with the W matrices of a kernel, [U, W, F], are known.

    The products are zero for padding (row 0). A window is centered on its word and reads zeros beyond the text.
    The result is float32 [N, T, F], undefined at padding.
    """
    width = projected.shape[1]
    before = (width - 1) // 2
    windows = functional.pad(text, (before, width - 1 - before)).unfold(1, width, 1)  # [N, T, W]
    rows = windows * width + torch.arange(width, device=text.device)
    table = projected.float().flatten(0, 1).contiguous()
    summed = functional.embedding_bag(rows.reshape(-1, width), table, mode="sum")
    return summed.view(*text.shape, -1)


class WordConvolution(nn.Module):
    """Convolution over the words of texts by `window_sum`."""

    def __init__(self, word_size: int, filters: int, window: int, bias: bool = True) -> None:
        super().__init__()
        self.kernel = nn.Linear(word_size, window * filters, bias=False)
        # As in PyTorch's own convolutions: fan-in is the whole window.
        bound = (word_size * window) ** -0.5
        nn.init.uniform_(self.kernel.weight, -bound, bound)
        self.bias = nn.Parameter(torch.empty(filters).uniform_(-bound, bound)) if bias else None
        self.window = window

    def forward(self, vectors: Tensor, text: Tensor) -> Tensor:
        """Convolve texts [N, T] of words [U, D], zero for padding (row 0); float32 [N, T, F], see `window_sum`."""
        summed = window_sum(self.kernel(vectors).view(len(vectors), self.window, -1), text)
        return summed if self.bias is None else summed + self.bias


def convolve(convolution: nn.Module, states: Tensor) -> Tensor:
    """ReLU of an `nn.Conv1d` on [N, T, F], or an `nn.Conv2d` on [P, T, S, F], in windows centered on every position."""
    weight = next(convolution.parameters())  # [output channels, input channels, *windows]
    sides = [side for window in weight.shape[2:] for side in ((window - 1) // 2, window // 2)]
    padded = functional.pad(states.movedim(-1, 1), sides)
    return torch.relu(convolution(padded)).movedim(1, -1).contiguous()


def pool_neighbors(states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Max pooling by 2 of states [N, T, F] with lengths [N]: [N, ceil(T / 2), F], zero beyond the lengths returned."""
    n, length, size = states.shape
    # Padding is below every number, and zeroed afterwards.
    least = torch.finfo(states.dtype).min
    is_real = (torch.arange(length, device=states.device) < lengths.unsqueeze(1)).unsqueeze(2)
    padded = functional.pad(states.masked_fill(~is_real, least), (0, 0, 0, length % 2), value=least)
    pooled = padded.view(n, -1, 2, size).amax(dim=2)
    return pooled * is_real[:, ::2], (lengths + 1) // 2


def pool_squares(image: Tensor, heights: Tensor, widths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Max pooling by 2 x 2 of images [P, T, S, F] over their real areas; returns the new sizes, too."""
    pairs, length, _, size = image.shape
    by_column, _ = pool_neighbors(image.flatten(0, 1), widths.repeat_interleave(length))
    by_both, heights = pool_neighbors(by_column.view(pairs, length, -1), heights)
    return by_both.view(pairs, by_both.shape[1], -1, size), heights, (widths + 1) // 2


def pool_segments(states: Tensor, lengths: Tensor, segments: int) -> Tensor:
    """Dynamic max pooling of states [N, T, F] with lengths [N] over n even segments.

    Segment i of a text of l words is the words floor(i l / n) .. ceil((i + 1) l / n) - 1, so that neighbors may share
    words. The result is [N, n, F]; zero for a text without words.
    """
    n, length, size = states.shape
    segment = torch.arange(segments, device=states.device)
    ends = lengths.unsqueeze(1)
    start = segment * ends // segments  # [N, segments]
    stop = ((segment + 1) * ends + segments - 1) // segments
    # No segment is longer than this in any batch; shorter ones repeat their last position.
    width = length // segments + 2
    step = torch.arange(min(width, length), device=states.device)
    positions = torch.minimum(start.unsqueeze(2) + step, stop.unsqueeze(2) - 1).clamp(min=0)
    rows = positions + length * torch.arange(n, device=states.device).view(-1, 1, 1)
    gathered = states.flatten(0, 1).index_select(0, rows.flatten())
    pooled = gathered.view(n, segments, -1, size).amax(dim=2)
    return pooled * (lengths > 0).view(-1, 1, 1)


def pool_grid(image: Tensor, heights: Tensor, widths: Tensor, grid: tuple[int, int]) -> Tensor:
    """Dynamic max pooling of images [P, T, S, F] over their real areas: [P, grid[0], grid[1], F], zero without one."""
    pairs, length, _, size = image.shape
    by_column = pool_segments(image.flatten(0, 1), widths.repeat_interleave(length), grid[1])
    by_row = pool_segments(by_column.view(pairs, length, -1), heights, grid[0])
    return by_row.view(pairs, *grid, size)


def zero_outside(image: Tensor, heights: Tensor, widths: Tensor) -> Tensor:
    """Images [P, T, S, F] with zeros outside their real areas."""
    row = torch.arange(image.shape[1], device=image.device) < heights.unsqueeze(1)
    column = torch.arange(image.shape[2], device=image.device) < widths.unsqueeze(1)
    return image * (row.unsqueeze(2) & column.unsqueeze(1)).unsqueeze(3)
