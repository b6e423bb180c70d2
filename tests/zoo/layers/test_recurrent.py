"""The LSTM and the GRU that read table rows against PyTorch's on the sequences written out: values and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.layers.recurrent import AllStatesGRU, RowLSTM

ROWS, SIZE, HIDDEN, LENGTH = 9, 5, 4, 7


def sequences(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """A table, rows of it (with arbitrary ones after the sequences' ends), and the lengths."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS, SIZE, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, ROWS, (len(lengths), LENGTH), generator=generator)
    return table, ids, torch.tensor(lengths)


def reference(layer: nn.LSTM | nn.GRU, table: Tensor, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own layer on packed inputs: last states and all states; empty sequences are made 0."""
    packed = pack_padded_sequence(table[ids], lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
    if isinstance(layer, nn.LSTM):
        out, (last, _) = nn.LSTM.forward(layer, packed)
    else:
        out, last = nn.GRU.forward(layer, packed)
    states, _ = pad_packed_sequence(out, batch_first=True, total_length=ids.shape[1])
    real = (lengths > 0).double()
    return last.transpose(0, 1).flatten(1) * real.view(-1, 1), states * real.view(-1, 1, 1)


#: Form -> its layer, and the function that reads sequences.
FORMS: dict[str, tuple[Any, Callable[[Any], Callable[..., Tensor]]]] = {
    "last states": (RowLSTM, lambda lstm: lstm.last_states),
    "all states": (RowLSTM, lambda lstm: lstm),
    "GRU": (AllStatesGRU, lambda gru: gru),
}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [[3, 7, 1, 0, 4], [7, 7], [0], [1, 1, 1]])
@pytest.mark.parametrize("form", FORMS)
def test_equals_pytorch(form: str, lengths: list[int], bidirectional: bool) -> None:
    torch.manual_seed(1)
    kind, reads = FORMS[form]
    layer = kind(SIZE, HIDDEN, bidirectional).double()
    table, ids, sizes = sequences(lengths)
    table.requires_grad_(True)
    inputs = [table, *layer.parameters()]

    result = reads(layer)(table, ids, sizes)
    expected = reference(layer, table, ids, sizes)[form != "last states"].view(result.shape)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)

    # A different gradient at every number, so that exchanged numbers fail.
    weight = torch.randn(result.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad((result * weight).sum(), inputs, retain_graph=True)
    expected_gradients = torch.autograd.grad((expected * weight).sum(), inputs)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-11)


def test_bfloat16_autocast_runs_in_float32() -> None:
    torch.manual_seed(1)
    lstm = RowLSTM(SIZE, HIDDEN, bidirectional=True)
    table, ids, lengths = sequences([3, 7])
    table = table.float().requires_grad_(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = lstm(table, ids, lengths)
    assert states.dtype == torch.float32
    states.sum().backward()
    assert table.grad is not None
    torch.testing.assert_close(states, lstm(table, ids, lengths), rtol=0.05, atol=0.02)
