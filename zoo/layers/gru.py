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
        steps, directions, rows, width = gates.shape
        size = width // 3
        # Everything is written where it is kept; the first state is 0.
        states = gates.new_zeros(steps + 1, directions, rows, size)
        products, reset_update, candidates = (
            gates.new_zeros(steps, directions, rows, parts * size) for parts in (3, 2, 1)
        )
        transposed, offset = weight.transpose(1, 2), bias.unsqueeze(1)
        for step, n in enumerate(alive):
            last, inputs, product = (part[:, :n] for part in (states[step], gates[step], products[step]))
            torch.baddbmm(offset, last, transposed, out=product)
            gate, candidate = reset_update[step][:, :n], candidates[step][:, :n]
            torch.add(inputs[..., : 2 * size], product[..., : 2 * size], out=gate).sigmoid_()
            torch.addcmul(
                inputs[..., 2 * size :], gate[..., :size], product[..., 2 * size :], out=candidate
            ).tanh_()
            torch.lerp(candidate, last, gate[..., size:], out=states[step + 1][:, :n])
        ctx.save_for_backward(weight, states, reset_update, candidates, products)
        ctx.alive = alive
        return states[1:]

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of the gates, the recurrent weights and their bias."""
        weight, states, reset_update, candidates, products = ctx.saved_tensors
        steps, directions, rows, size = candidates.shape
        last = states[:-1]
        reset, update = reset_update.chunk(2, dim=3)
        # A state's gradient times these factors is that of the products; all steps at once.
        of_candidate = (1 - update) * (1 - candidates * candidates)
        factors = torch.stack(
            [
                of_candidate * products[..., 2 * size :] * reset * (1 - reset),
                (last - candidates) * update * (1 - update),
                of_candidate * reset,
            ],
            dim=3,
        )  # [T, directions, N, 3, H]
        flowing = grad.new_zeros(directions, rows, size)
        of_states = grad.new_zeros(candidates.shape)
        of_products = grad.new_zeros(factors.shape)
        for step in range(steps - 1, -1, -1):
            n = ctx.alive[step]
            of_state, of_product = of_states[step][:, :n], of_products[step][:, :n]
            torch.add(flowing[:, :n], grad[step][:, :n], out=of_state)
            torch.mul(of_state.unsqueeze(2), factors[step][:, :n], out=of_product)
            flowing[:, :n] = torch.baddbmm(of_state * update[step][:, :n], of_product.flatten(2), weight)
        of_gates = of_products.clone()
        of_gates[:, :, :, 2] = of_states * of_candidate
        joined = of_products.flatten(3).transpose(0, 1).flatten(1, 2)  # [directions, T * N, 3H]
        of_weight = joined.transpose(1, 2) @ last.transpose(0, 1).flatten(1, 2)
        return of_gates.flatten(3), of_weight, joined.sum(dim=1), None
