"""The GRU over table rows beside PyTorch's own."""

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
    found = gru(table, ids, LENGTHS)
    weight = torch.randn(found.shape, dtype=torch.double)
    inputs = [table, *gru.parameters()]
    gradients = torch.autograd.grad((found * weight).sum(), inputs)

    packed = pack_padded_sequence(table[ids], LENGTHS, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(nn.GRU.forward(gru, packed)[0], batch_first=True, total_length=9)
    expected = states.view(found.shape)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gru.packed(table, ids, LENGTHS), expected)
    for one, other in zip(gradients, torch.autograd.grad((expected * weight).sum(), inputs), strict=True):
        torch.testing.assert_close(one, other)


def test_nothing_to_read() -> None:
    gru = AllStatesGRU(5, 4, bidirectional=True)
    found = gru(torch.randn(3, 5), torch.zeros(2, 4, dtype=torch.long), torch.tensor([0, 2]))
    assert not found[0].any()
    assert found[1, :2].all()
    nothing = gru(torch.randn(3, 5), torch.zeros(2, 4, dtype=torch.long), torch.tensor([0, 0]))
    nothing.sum().backward()
    assert not nothing.any()
