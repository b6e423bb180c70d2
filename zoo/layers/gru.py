"""All states of a GRU over sequences of table rows, fast on CPUs.

As in `zoo.layers.lstm`: the inputs are the words of a batch, so their products are computed once a word of the table;
the time steps run without a graph node per operation, both directions in one; and the gradient of the recurrent weights
is one matrix product at the end. On GPUs PyTorch's fused kernel runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class AllStatesGRU(nn.GRU):
    """A one-layer GRU, or two in opposite directions, with its state at every place of a sequence."""

    def __init__(self, input_size: int, hidden_size: int, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, batch_first=True, bidirectional=bidirectional)
        self.directions = 2 if bidirectional else 1

    def forward(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """Run over sequences of rows.

        Args:
            table: [V, input_size], the inputs that occur.
            ids: int64 [N, T], rows of the table; anything after a sequence's end.
            lengths: int64 [N], 0..T.

        Returns:
            [N, T, directions, hidden_size]: the states after reading a place from the left, and from the right;
            0 behind a sequence's end.
        """
        if table.device.type == "cpu":
            return self._on_cpu(table, ids, lengths)
        packed = pack_padded_sequence(
            table[ids], lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(
            super().forward(packed)[0], batch_first=True, total_length=ids.shape[1]
        )
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        return (states * inside.unsqueeze(2)).view(*ids.shape, self.directions, self.hidden_size)

    def _on_cpu(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        n, t = ids.shape
        order = lengths.argsort(descending=True, stable=True)
        place = torch.arange(t).unsqueeze(0)
        # What each direction reads at a step: from the left, and from a sequence's last place to its first.
        read = torch.stack([place.expand(n, t), (lengths.unsqueeze(1) - 1 - place).clamp(min=0)])
        read = read[: self.directions, order]  # [directions, N, T]
        alive = (place < lengths.unsqueeze(1)).sum(dim=0).tolist()
        input_weight, input_bias = (self._joined(name) for name in ("weight_ih", "bias_ih"))
        weight, bias = (self._joined(name) for name in ("weight_hh", "bias_hh"))
        products = functional.linear(table, input_weight.flatten(0, 1), input_bias.flatten())
        products = products.view(len(table) * self.directions, -1)  # a row for each row and direction
        direction = torch.arange(self.directions).view(-1, 1, 1)
        rows = ids[order].expand(self.directions, n, t).gather(2, read) * self.directions + direction
        gates = functional.embedding(rows.permute(2, 0, 1), products)  # [T, directions, N, 3H]
        states = _Steps.apply(gates, weight, bias, alive).permute(2, 0, 1, 3)  # [N, T, directions, H]
        # Back to places and to the order of the rows.
        states = states.gather(1, read.permute(1, 2, 0).unsqueeze(3).expand(states.shape))
        inside = (place < lengths.unsqueeze(1)).view(n, t, 1, 1)
        found: Tensor = states[order.argsort()] * inside
        return found

    def _joined(self, name: str) -> Tensor:
        """A parameter of all directions, [directions, ...]."""
        endings = ("_l0", "_l0_reverse")[: self.directions]
        return torch.stack([getattr(self, name + ending) for ending in endings])


class _Steps(torch.autograd.Function):
    """The recurrence, from the products of the inputs; rows are sorted by length, longest first.

    r = s(x_r + h_r), z = s(x_z + h_z), c = tanh(x_c + r h_c), h' = (1 - z) c + z h, where h_r, h_z and h_c are the
    products of the last state h.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, alive: list[int]) -> Tensor:
        """States [T, directions, N, H] of gates [T, directions, N, 3H]; `alive` rows take part in each step."""
        _, directions, rows, width = gates.shape
        size = width // 3
        states = gates.new_zeros(len(alive), directions, rows, size)
        transposed, offset = weight.transpose(1, 2), bias.unsqueeze(1)
        last = gates.new_zeros(directions, rows, size)
        kept = []
        for step, n in enumerate(alive):
            if n == 0:
                break
            last, inputs = last[:, :n], gates[step, :, :n]
            products = torch.baddbmm(offset, last, transposed)
            reset_update = torch.sigmoid_(inputs[..., : 2 * size] + products[..., : 2 * size])
            reset, update = reset_update[..., :size], reset_update[..., size:]
            candidate = torch.addcmul(inputs[..., 2 * size :], reset, products[..., 2 * size :]).tanh_()
            kept.append((last, reset_update, candidate, products[..., 2 * size :]))
            last = torch.lerp(candidate, last, update)
            states[step, :, :n] = last
        ctx.save_for_backward(weight)
        ctx.kept, ctx.shape = kept, gates.shape
        return states

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of the gates, the recurrent weights and their bias."""
        (weight,) = ctx.saved_tensors
        size = ctx.shape[3] // 3
        of_gates = grad.new_zeros(ctx.shape)
        of_products, lasts = [], []
        flowing = grad.new_zeros(grad.shape[1:])
        for step in range(len(ctx.kept) - 1, -1, -1):
            last, reset_update, candidate, product = ctx.kept[step]
            n = last.shape[1]
            reset, update = reset_update[..., :size], reset_update[..., size:]
            of_state = flowing[:, :n] + grad[step, :, :n]
            of_candidate = of_state * (1 - update) * (1 - candidate * candidate)
            gate = of_gates[step, :, :n]
            gate[..., :size] = of_candidate * product
            gate[..., size : 2 * size] = of_state * (last - candidate)
            gate[..., : 2 * size] *= reset_update * (1 - reset_update)
            gate[..., 2 * size :] = of_candidate
            of_product = torch.cat([gate[..., : 2 * size], of_candidate * reset], dim=2)
            flowing[:, :n] = torch.baddbmm(of_state * update, of_product, weight)
            of_products.append(of_product)
            lasts.append(last)
        if not of_products:
            return of_gates, torch.zeros_like(weight), weight.new_zeros(weight.shape[:2]), None
        all_products, all_lasts = torch.cat(of_products, dim=1), torch.cat(lasts, dim=1)
        of_weight = all_products.transpose(1, 2) @ all_lasts
        return of_gates, of_weight, all_products.sum(dim=1), None
