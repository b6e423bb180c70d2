"""The GRU over table rows compared with PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.layers.gru import AllStatesGRU

LENGTHS = torch.tensor([3, 7, 1, 7, 4])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_states_and_gradients_are_those_of_pytorch(bidirectional: bool) -> None:
    torch.manual_seed(1)
    gru = AllStatesGRU(5, 4, bidirectional).double()
    table = torch.randn(11, 5, dtype=torch.double, requires_grad=True)
    ids = torch.randint(11, (5, 9))
    result = gru(table, ids, LENGTHS)
    weight = torch.randn(result.shape, dtype=torch.double)
    inputs = [table, *gru.parameters()]
    gradients = torch.autograd.grad((result * weight).sum(), inputs)

    packed = pack_padded_sequence(table[ids], LENGTHS, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(nn.GRU.forward(gru, packed)[0], batch_first=True, total_length=9)
    expected = states.view(result.shape)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gru.packed(table, ids, LENGTHS), expected)
    for one, other in zip(gradients, torch.autograd.grad((expected * weight).sum(), inputs), strict=True):
        torch.testing.assert_close(one, other)


def test_empty_sequences() -> None:
    gru = AllStatesGRU(5, 4, bidirectional=True)
    result = gru(torch.randn(3, 5), torch.zeros(2, 4, dtype=torch.long), torch.tensor([0, 2]))
    assert not result[0].any()
    assert result[1, :2].all()
    nothing = gru(torch.randn(3, 5), torch.zeros(2, 4, dtype=torch.long), torch.tensor([0, 0]))
    nothing.sum().backward()
    assert not nothing.any()
