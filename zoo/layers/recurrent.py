"""The last state, or all states, of an LSTM over sequences of table rows, fast on CPUs; and all states of a GRU.

A batch's sequences are short, many, of different lengths, and made of the same few rows: words of a batch, characters
of an alphabet. So the input products are computed once per row of the table and not once per token; the time steps run
in place over the sequences that have not ended, without a graph node per operation; and the gradient of the recurrent
weights is one matrix product at the end. On GPUs PyTorch's fused kernel runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


class RowLSTM(nn.LSTM):
    """A one-layer LSTM, or two in opposite directions, over sequences of table rows.

    The sequences, int64 [N, T] with lengths [N], are rows of a table [V, input_size].
    """

    def __init__(self, input_size: int, hidden_size: int, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, batch_first=True, bidirectional=bidirectional)

    def forward(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """The states at each position, left to right and back: [N, T, directions * hidden_size], 0 after the end."""
        n, length = ids.shape
        if table.device.type == "cpu":
            packing = _Packing(ids, lengths, self.bidirectional)
            _, packed_states = self._on_cpu(table, ids, packing)
            padded = [
                state.new_zeros(n * length, self.hidden_size).index_copy(0, position, state)
                for position, state in zip(packing.positions, packed_states, strict=True)
            ]
            states = torch.cat(padded, dim=1).view(n, length, -1)
        else:
            packed, _ = self._on_gpu(table, ids, lengths)
            states, _ = pad_packed_sequence(packed, batch_first=True, total_length=length)
        return states * (lengths > 0).view(n, 1, 1)

    def last_states(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """The last forward and backward states [N, directions * hidden_size], 0 where a sequence is empty."""
        if ids.shape[1] == 0:  # no word of the batch has a letter
            ids = ids.new_zeros(len(ids), 1)
        if table.device.type == "cpu":
            last, _ = self._on_cpu(table, ids, _Packing(ids, lengths, self.bidirectional))
        else:
            _, last = self._on_gpu(table, ids, lengths)
        return last.transpose(0, 1).flatten(1) * (lengths > 0).unsqueeze(1)

    def _on_cpu(self, table: Tensor, ids: Tensor, packing: _Packing) -> tuple[Tensor, Tensor]:
        """Last states [D, N, H] and packed states [D, P, H]."""
        projected, recurrent = [], []
        for suffix in ("", "_reverse")[: len(packing.positions)]:
            weights = [
                _sigmoid_gates_first(getattr(self, f"{name}_l0{suffix}"))
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            projected.append(nn.functional.linear(table, weights[0], weights[2] + weights[3]))
            recurrent.append(weights[1])
        return packing.run(torch.stack(projected), torch.stack(recurrent), ids)

    def _on_gpu(self, table: Tensor, ids: Tensor, lengths: Tensor) -> tuple[PackedSequence, Tensor]:
        """All states, and last states [D, N, H]."""
        packed = _pack(ids, lengths)
        states, (last, _) = super().forward(packed._replace(data=table[packed.data]))
        return states, last


def last_states(projected: Tensor, recurrent: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    """The last states [N, D H] of D = 1 or 2 LSTMs whose input products are known; 0 where a sequence is empty.

    The sequences, int64 [N, T] with lengths [N], are rows of the products [D, V, GH], biases included. The G gates,
    also of the recurrent weights [D, GH, H], are input, forget, output, cell; or input, output, cell.
    """
    if projected.device.type == "cpu":
        last, _ = _Packing(ids, lengths, len(projected) == 2).run(projected, recurrent, ids)
    else:
        last = _last_states_on_gpu(projected, recurrent, ids, lengths)
    return last.transpose(0, 1).flatten(1) * (lengths > 0).unsqueeze(1)


#: PyTorch's kernel always has a forget gate: this bias holds it open, since its sigmoid is 1 and its slope 0.
_OPEN = 40.0


def _last_states_on_gpu(projected: Tensor, recurrent: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    """Last states [D, N, H] by PyTorch's kernel, which gets the products through input weights of 1."""
    directions, hidden = len(projected), recurrent.shape[2]
    weights, tables = [], []
    identity = torch.eye(4 * hidden, device=projected.device, dtype=projected.dtype)
    for d in range(directions):
        tables.append(_pytorch_gates(projected[d].T, hidden, _OPEN).T)
        columns = [identity if other == d else torch.zeros_like(identity) for other in range(directions)]
        weights += [torch.cat(columns, dim=1), _pytorch_gates(recurrent[d], hidden, 0.0).contiguous()]
    packed = _pack(ids, lengths)
    inputs = torch.cat(tables, dim=1)[packed.data]
    zeros = projected.new_zeros(directions, len(ids), hidden)
    _, last, _ = torch._VF.lstm(  # type: ignore[attr-defined]
        inputs, packed.batch_sizes, (zeros, zeros), weights, False, 1, 0.0, True, directions == 2
    )
    assert packed.unsorted_indices is not None
    return last[:, packed.unsorted_indices]


def _pytorch_gates(weight: Tensor, hidden: int, missing: float) -> Tensor:
    """Rows of gates in PyTorch's order: input, forget, cell, output; a missing forget gate is filled with `missing`."""
    i, *f, o, g = torch.split(weight, hidden)
    return torch.cat([i, f[0] if f else torch.full_like(i, missing), g, o])


def _pack(sequences: Tensor, lengths: Tensor) -> PackedSequence:
    # PyTorch packs no empty sequences. An empty one reads a token, and its state is zeroed afterwards.
    return pack_padded_sequence(sequences, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)


class _Packing:
    """Order in which positions of padded sequences [N, T] are read: all first steps, longest sequence first, ..."""

    def __init__(self, ids: Tensor, lengths: Tensor, bidirectional: bool) -> None:
        positions = torch.arange(ids.numel()).view(ids.shape)
        packed = _pack(positions, lengths)
        assert packed.unsorted_indices is not None
        self.unsorted = packed.unsorted_indices
        self.batch_sizes: list[int] = packed.batch_sizes.tolist()
        #: int64 [D][P]: flat positions in the padded table.
        self.positions = [packed.data]
        if bidirectional:
            # The backward LSTM runs forward over the reversed sequences.
            reversed_position = lengths.clamp(min=1).unsqueeze(1) - 1 - torch.arange(ids.shape[1])
            self.positions.append(_pack(positions.gather(1, reversed_position.clamp(min=0)), lengths).data)

    def run(self, projected: Tensor, recurrent: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Last states [D, N, H] and packed states [D, P, H]; arguments as of `last_states`."""
        steps = torch.stack([ids.flatten()[positions] for positions in self.positions])
        last, states = _States.apply(projected, recurrent, steps, self.batch_sizes)
        return last[:, self.unsorted], states


def _sigmoid_gates_first(weight: Tensor) -> Tensor:
    """Reorder PyTorch's gates to input, forget, output, cell, which is faster here."""
    i, f, g, o = weight.chunk(4)
    return torch.cat([i, f, o, g])


class _States(torch.autograd.Function):
    """The LSTMs of `last_states` over packed sequences with P tokens: step 0 of all, longest first, then step 1, ..."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any, projected: Tensor, recurrent: Tensor, steps: Tensor, batch_sizes: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Last states [D, N, H] and all states [D, P, H] of steps, int64 [D, P], rows of the table."""
        directions, _, width = projected.shape
        hidden = recurrent.shape[2]
        sigmoids, forgets = width - hidden, width == 4 * hidden
        read = [projected[d].index_select(0, steps[d]) for d in range(directions)]
        gates = torch.stack(read) if directions > 1 else read[0].unsqueeze(0)  # [D, P, GH]
        cells = gates.new_empty(directions, steps.shape[1], hidden)
        cell_tanh = torch.empty_like(cells)
        states = torch.empty_like(cells)
        last = gates.new_empty(directions, batch_sizes[0], hidden)
        transposed = recurrent.transpose(1, 2)
        previous = start = 0
        for step, alive in enumerate(batch_sizes):
            now = slice(start, start + alive)
            gate = gates[:, now]
            if step:
                before = slice(previous, previous + alive)
                gate.baddbmm_(states[:, before], transposed)
            gate[..., :sigmoids].sigmoid_()
            gate[..., sigmoids:].tanh_()
            i, *f, o, g = torch.split(gate, hidden, dim=2)
            cell = torch.mul(i, g, out=cells[:, now])
            if step and forgets:
                cell.addcmul_(f[0], cells[:, before])
            elif step:
                cell.add_(cells[:, before])
            torch.tanh(cell, out=cell_tanh[:, now])
            torch.mul(o, cell_tanh[:, now], out=states[:, now])
            ended = batch_sizes[step + 1] if step + 1 < len(batch_sizes) else 0
            last[:, ended:alive] = states[:, start + ended : start + alive]
            previous, start = start, start + alive
        ctx.save_for_backward(recurrent, steps, gates, cells, cell_tanh, states)
        ctx.batch_sizes, ctx.rows = batch_sizes, projected.shape[1]
        ctx.set_materialize_grads(False)
        return last, states

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(  # type: ignore[override]
        ctx: Any, *grad_outputs: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None]:
        recurrent, steps, gates, cells, cell_tanh, states = ctx.saved_tensors
        batch_sizes: list[int] = ctx.batch_sizes
        hidden = states.shape[2]
        end = gates.shape[2] - hidden  # of the sigmoids
        forgets = end == 3 * hidden
        grad_gates = torch.empty_like(gates)
        grad_last, grad_states = grad_outputs
        # [D, N, H]; of the current step for those alive.
        if grad_last is None:
            grad_state = gates.new_zeros(gates.shape[0], batch_sizes[0], hidden)
        else:
            grad_state = grad_last.to(gates.dtype, copy=True)
        grad_cell = torch.zeros_like(grad_state)
        start = steps.shape[1]
        for step in reversed(range(len(batch_sizes))):
            alive = batch_sizes[step]
            start -= alive
            now = slice(start, start + alive)
            i, *f, o, g = torch.split(gates[:, now], hidden, dim=2)
            d_state, d_cell = grad_state[:, :alive], grad_cell[:, :alive]
            if grad_states is not None:
                d_state += grad_states[:, now]
            tanh = cell_tanh[:, now]
            # h = o tanh(c): to the cell, then to the gates before their nonlinearities.
            through = d_state * o
            d_cell += through
            d_cell.addcmul_(through, tanh.square(), value=-1)
            grad = grad_gates[:, now]
            torch.mul(d_cell, g, out=grad[..., :hidden])
            if step and forgets:
                before = slice(start - batch_sizes[step - 1], start - batch_sizes[step - 1] + alive)
                torch.mul(d_cell, cells[:, before], out=grad[..., hidden : 2 * hidden])
            elif forgets:
                grad[..., hidden : 2 * hidden] = 0
            torch.mul(d_state, tanh, out=grad[..., end - hidden : end])
            torch.mul(d_cell, i, out=grad[..., end:])
            sigmoids = gates[:, now, :end]
            slope = sigmoids.square().neg_().add_(sigmoids)  # s - s^2
            grad[..., :end].mul_(slope)
            grad[..., end:].mul_(g.square().neg_().add_(1))
            if forgets:
                d_cell.mul_(f[0])
            if step:
                d_state.copy_(torch.bmm(grad, recurrent))
        grad_projected = gates.new_zeros(gates.shape[0], ctx.rows, gates.shape[2])
        grad_recurrent = torch.empty_like(recurrent)
        sizes = torch.tensor(batch_sizes)
        # Token j of a step follows token j of the step before, as many positions earlier as that step has tokens.
        before_all = torch.arange(batch_sizes[0], steps.shape[1]) - sizes[:-1].repeat_interleave(sizes[1:])
        for d in range(gates.shape[0]):
            grad_projected[d].index_add_(0, steps[d], grad_gates[d])
            grad_recurrent[d] = grad_gates[d, batch_sizes[0] :].T @ states[d].index_select(0, before_all)
        return grad_projected, grad_recurrent, None, None


class AllStatesGRU(nn.GRU):
    """A one-layer GRU, or two in opposite directions, with its state at every position of a sequence."""

    def __init__(self, input_size: int, hidden_size: int, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, batch_first=True, bidirectional=bidirectional)

    def forward(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """The states at each position, from the left and the right: [N, T, directions, hidden_size], 0 after the end.

        The sequences, int64 [N, T] with lengths [N], are rows of the table [V, input_size].
        """
        packed, _ = super().forward(_pack(table[ids], lengths))
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=ids.shape[1])
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        return (states * inside.unsqueeze(2)).view(*ids.shape, -1, self.hidden_size)
