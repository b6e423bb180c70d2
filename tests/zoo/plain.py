"""Plain versions of what several networks compute, in loops over numbers in float64."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Vector = NDArray[np.float64]


def drawn_texts(
    random: np.random.Generator,
    number: int,
    longest: int,
    words: int,
    lengths: Mapping[int, int] | None = None,
) -> NDArray[np.int64]:
    """Rows of word numbers [number, longest], padded with 0; `lengths` are those of some rows."""
    table = random.integers(1, words, size=(number, longest))
    drawn = random.integers(1, longest + 1, size=number)
    for row, length in (lengths or {}).items():
        drawn[row] = length
    return np.where(np.arange(longest) < drawn[:, None], table, 0)


def drawn_spellings(
    random: np.random.Generator, words: int, longest: int, characters: int
) -> NDArray[np.int64]:
    """The characters [words, longest] of each word but the first, which is padding."""
    drawn = random.integers(1, characters, size=(words, longest))
    spelled = drawn * (np.arange(longest) < random.integers(1, longest + 1, size=(words, 1)))
    spelled[0] = 0
    return spelled


def enlarge(network: nn.Module) -> None:
    """Draw large weights, so that no term of an equation is negligible."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.uniform_(-1, 1)


def numbers(module: nn.Module) -> dict[str, Vector]:
    """The weights by name."""
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(energy: Vector) -> Vector:
    powers = np.exp(energy - energy.max())
    return powers / powers.sum()


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0)


def cosine(a: Vector, b: Vector) -> float:
    norm = float(np.sqrt(a @ a) * np.sqrt(b @ b))
    return float(a @ b) / norm if norm else 0.0


def lstm_states(weights: dict[str, Vector], suffix: str, inputs: list[Vector]) -> list[Vector]:
    """The states of an LSTM, one cell at a time; gates in the order input, forget, cell, output."""
    size = len(weights[f"bias_hh_l0{suffix}"]) // 4
    state, cell, states = np.zeros(size), np.zeros(size), []
    for x in inputs:
        gates = weights[f"weight_ih_l0{suffix}"] @ x + weights[f"bias_ih_l0{suffix}"]
        gates = gates + weights[f"weight_hh_l0{suffix}"] @ state + weights[f"bias_hh_l0{suffix}"]
        new_state, new_cell = np.zeros(size), np.zeros(size)
        for j in range(size):
            i, f, g, o = (gates[part * size + j] for part in range(4))
            new_cell[j] = sigmoid(f) * cell[j] + sigmoid(i) * np.tanh(g)
            new_state[j] = sigmoid(o) * np.tanh(new_cell[j])
        state, cell = new_state, new_cell
        states.append(state)
    return states
