"""The kernel machine, against scikit-learn's kernel ridge regression."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.kernel_ridge import KernelRidge

from zoo.layers import kernel_machine
from zoo.layers.kernel_machine import GAMMA, RIDGE, KernelMachine


def test_it_is_kernel_ridge_regression_if_all_texts_are_landmarks() -> None:
    random = np.random.default_rng(0)
    vectors, others = (random.normal(size=(n, 5)).astype(np.float32) for n in (60, 20))
    target = (vectors[:, 0] > 0.2).astype(np.int64) + (vectors[:, 1] > 0.5)
    machine = KernelMachine(5, 4)
    assert not machine(torch.from_numpy(others)).any()
    # Three texts without words are skipped; class 3 has no other text.
    machine.fit(np.concatenate([vectors, np.zeros((3, 5), np.float32)]), np.append(target, [0, 1, 3]))
    mean = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(axis=0)

    def direction(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        centered = rows / np.linalg.norm(rows, axis=1, keepdims=True) - mean
        return centered / np.linalg.norm(centered, axis=1, keepdims=True)

    reference = KernelRidge(alpha=RIDGE, kernel="rbf", gamma=GAMMA)
    reference.fit(direction(vectors), np.where(np.eye(4)[target] > 0, 1.0, -1.0))
    scores = machine(torch.from_numpy(others))
    np.testing.assert_allclose(scores.numpy(), reference.predict(direction(others)), atol=1e-4)
    assert not (scores.argmax(dim=1) == 3).any()
    assert not machine(torch.zeros(2, 5)).any()
    torch.testing.assert_close(machine(7 * torch.from_numpy(others)), scores)  # the length has no effect
    restored = KernelMachine(5, 4)
    restored.load_state_dict(machine.state_dict())
    assert torch.equal(restored(torch.from_numpy(others)), scores)


def test_it_learns_from_more_texts_than_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rings, which no plane divides."""
    monkeypatch.setattr(kernel_machine, "MAX_LANDMARKS", 50)
    monkeypatch.setattr(kernel_machine, "_ROWS", 64)
    random = np.random.default_rng(0)
    vectors = random.normal(size=(400, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    target = (np.abs(vectors[:, 0]) > 0.6).astype(np.int64)
    machine = KernelMachine(3, 2)
    machine.fit(vectors[:300], target[:300])
    assert len(machine.landmarks) == 50
    is_right = machine(torch.from_numpy(vectors[300:])).argmax(dim=1).numpy() == target[300:]
    assert is_right.mean() > 0.95
    machine.fit(np.zeros((2, 3), np.float32), np.array([0, 1]))  # no text has a word
    assert not machine(torch.from_numpy(vectors)).any()
