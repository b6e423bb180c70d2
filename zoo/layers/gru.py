"""All states of a GRU over sequences of table rows, fast on CPUs for the reasons given in `zoo.layers.lstm`."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.layers.uncompiled import uncompiled


class AllStatesGRU(nn.GRU):
    """A one-layer GRU, or two in opposite directions, with its state at every position of a sequence."""

    def __init__(self, input_size: int, hidden_size: int, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, batch_first=True, bidirectional=bidirectional)
        self.directions = 2 if bidirectional else 1

    # TorchDynamo would trace every time step.
    @uncompiled
    def forward(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """The states at each position, from the left and the right: [N, T, directions, hidden_size], 0 after the end.

        The sequences, int64 [N, T] with lengths [N], are rows of the table [V, input_size].
        """
        return (self._on_cpu if table.device.type == "cpu" else self.packed)(table, ids, lengths)

    def packed(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """Run `forward` by PyTorch's kernels."""
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
        ids, length = ids[order], lengths[order].unsqueeze(1)
        position, direction = torch.arange(t), torch.arange(self.directions)
        alive = (position < length).sum(dim=0).tolist()
        input_weight, input_bias = (self._joined(name) for name in ("weight_ih", "bias_ih"))
        weight, bias = (self._joined(name) for name in ("weight_hh", "bias_hh"))
        products = functional.linear(table, input_weight.flatten(0, 1), input_bias.flatten())
        products = products.view(len(table) * self.directions, -1)  # a row for each row and direction
        # The position that a direction reads at a step, which is the step at which it reads a position, too. After a
        # sequence's end nothing is read, and the state is 0.
        from_right = torch.where(position < length, length - 1 - position, position)
        turned = torch.stack([position.expand(n, t), from_right])[: self.directions]  # [directions, N, T]
        read = ids.expand(turned.shape).gather(2, turned) * self.directions + direction.view(-1, 1, 1)
        states = _Steps.apply(products, read.transpose(1, 2), weight, bias, alive)  # [directions, T, N, H]
        # Back to positions and to the order of the rows.
        row = order.argsort()
        step = (direction.view(-1, 1, 1) * t + turned[:, row]) * n + row.view(1, -1, 1)
        return functional.embedding(step.permute(1, 2, 0), states.reshape(-1, self.hidden_size))

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
    def forward(
        ctx: Any, products: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, alive: list[int]
    ) -> Tensor:
        """States [directions, T, N, H], 0 where a sequence has ended.

        `rows`, int64 [directions, T, N], are the products [V, 3H] (x_r, x_z, x_c) that are read. Weights and bias are
        [directions, 3H, H] and [directions, 3H]; of the N sequences, the first `alive` of a step have not ended.
        """
        directions, steps, n_rows = rows.shape
        size = weight.shape[2]
        # The products become the gates and the candidate in place.
        gates = products.index_select(0, rows.flatten()).view(directions, steps, n_rows, 3 * size)
        states = gates.new_empty(directions, steps + 1, n_rows, size)
        states[:, 0] = 0
        recurrent = gates.new_empty(directions, steps, n_rows, size)  # h_c
        product = gates.new_empty(directions, n_rows, 3 * size)
        transposed, offset = weight.transpose(1, 2), bias.unsqueeze(1)
        for span, n in _spans(alive):
            states[:, 1:][:, span, n:] = 0
            h = product[:, :n]
            h_rz, h_c = h[..., : 2 * size], h[..., 2 * size :]
            # Views of all steps at once: a slice a step would cost as much as the arithmetic.
            of_steps = (
                states[:, span, :n],
                states[:, 1:][:, span, :n],
                gates[:, span, :n, : 2 * size],
                gates[:, span, :n, :size],
                gates[:, span, :n, size : 2 * size],
                gates[:, span, :n, 2 * size :],
                recurrent[:, span, :n],
            )
            for last, state, rz, r, z, c, kept in zip(*(part.unbind(1) for part in of_steps), strict=True):
                torch.baddbmm(offset, last, transposed, out=h)
                kept.copy_(h_c)
                rz.add_(h_rz).sigmoid_()
                c.addcmul_(r, h_c).tanh_()
                torch.lerp(c, last, z, out=state)
        ctx.save_for_backward(rows, weight, states, gates, recurrent)
        ctx.alive, ctx.table_rows = alive, len(products)
        return states[:, 1:]

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        """Gradients of the products, the recurrent weights and their bias."""
        rows, weight, states, gates, recurrent = ctx.saved_tensors
        directions, steps, n_rows, size = recurrent.shape
        reset, update, candidates = gates.chunk(3, dim=3)
        last = states[:, :-1]
        # A state's gradient times these factors is that of the products; all steps at once.
        factors = gates.new_empty(directions, steps, n_rows, 3, size)
        of_reset, of_update, of_recurrent = factors.unbind(3)
        of_candidate = torch.addcmul(gates.new_ones(()), candidates, candidates, value=-1)
        of_candidate.addcmul_(of_candidate, update, value=-1)  # (1 - z) (1 - c^2)
        torch.mul(of_candidate, reset, out=of_recurrent)
        torch.mul(of_recurrent, recurrent, out=of_reset)
        of_reset.addcmul_(of_reset, reset, value=-1)
        torch.sub(last, candidates, out=of_update)
        of_update.mul_(update).addcmul_(of_update, update, value=-1)
        of_states = torch.empty_like(recurrent)
        of_products = torch.empty_like(factors)
        flowing = grad.new_zeros(directions, n_rows, size)
        for span, n in reversed(_spans(ctx.alive)):
            of_states[:, span, n:] = 0
            of_products[:, span, n:] = 0
            backwards = (
                part[:, span, :n].unbind(1)[::-1]
                for part in (grad, of_states, factors, of_products, of_products.flatten(3), update)
            )
            carried = flowing[:, :n]
            for given, of_state, factor, of_product, flat, z in zip(*backwards, strict=True):
                torch.add(carried, given, out=of_state)
                torch.mul(of_state.unsqueeze(2), factor, out=of_product)
                carried = torch.baddbmm(of_state * z, flat, weight)
            flowing[:, :n] = carried
        joined = of_products.view(directions, -1, 3 * size)  # [directions, T * N, 3H]
        of_weight = joined.transpose(1, 2) @ last.flatten(1, 2)
        of_bias = joined.sum(dim=1)
        # The candidate's input does not pass the reset gate.
        torch.mul(of_states, of_candidate, out=of_products[:, :, :, 2])
        of_table = torch.ops.aten.embedding_dense_backward(
            of_products.flatten(3), rows, ctx.table_rows, -1, False
        )
        return of_table, None, of_weight, of_bias, None


def _spans(alive: list[int]) -> list[tuple[slice, int]]:
    """Consecutive steps with the same number of sequences, and that number."""
    spans, start = [], 0
    for n, same in groupby(alive):
        end = start + len(list(same))
        spans.append((slice(start, end), n))
        start = end
    return spans
