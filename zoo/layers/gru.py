"""All states of a GRU over sequences of table rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class AllStatesGRU(nn.GRU):
    """A one-layer GRU, or two in opposite directions, with its state at every position of a sequence."""

    def __init__(self, input_size: int, hidden_size: int, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, batch_first=True, bidirectional=bidirectional)

    def forward(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """The states at each position, from the left and the right: [N, T, directions, hidden_size], 0 after the end.

        The sequences, int64 [N, T] with lengths [N], are rows of the table [V, input_size].
        """
        packed = pack_padded_sequence(
            table[ids], lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(
            super().forward(packed)[0], batch_first=True, total_length=ids.shape[1]
        )
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        return (states * inside.unsqueeze(2)).view(*ids.shape, -1, self.hidden_size)
