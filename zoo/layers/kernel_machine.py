"""A classifier of vectors with a Gaussian kernel, fitted in one step.

    f(x) = sum over the landmarks of a_j exp(-gamma |x - x_j|^2)

Ridge regression of the classes (+1 and -1) in the kernel's space, restricted to the span of m training texts, the
landmarks (Nystroem's method: Williams and Seeger, "Using the Nyström Method to Speed Up Kernel Machines", 2001, in the
form of Rudi, Camoriano and Rosasco, "Less is More: Nyström Computational Regularization", 2015, Equation 7). With n
texts it takes O(n m^2) steps, and O(m^2) memory in addition to the vectors.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.core.types import PlainDict

#: Of the kernel; directions have length 1, so that |x - y|^2 is between 0 and 4.
GAMMA = 1.0
#: Cost of large weights against errors.
RIDGE = 0.3
#: m; all training texts are landmarks if they are fewer.
MAX_LANDMARKS = 2000

#: Texts whose kernel values are computed together.
_ROWS = 4096
#: Share of the kernel matrix's mean diagonal that keeps it invertible where texts are equal.
_JITTER = 1e-8


class KernelMachine(nn.Module):
    """A classifier of vectors by their directions from the mean of the training texts; scores are 0 before the fit."""

    mean: Tensor
    landmarks: Tensor
    weight: Tensor

    def __init__(self, size: int, num_classes: int, ridge: float = RIDGE) -> None:
        super().__init__()
        self.ridge = ridge
        self.register_buffer("mean", torch.zeros(size), persistent=False)
        self.register_buffer("landmarks", torch.zeros(0, size), persistent=False)
        self.register_buffer("weight", torch.zeros(0, num_classes), persistent=False)

    def fit(self, vectors: NDArray[np.float32], target: NDArray[np.int64]) -> None:
        """Fit to vectors [n, d], of which zero vectors are skipped, and classes [n], or sets of labels [n, C].

        A missing class never wins.
        """
        num_classes = self.weight.shape[1]
        known = np.flatnonzero(vectors.any(axis=1))
        blocks = [known[start : start + _ROWS] for start in range(0, len(known), _ROWS)]
        mean = torch.zeros(vectors.shape[1], dtype=torch.float64)
        for rows in blocks:
            mean += functional.normalize(torch.from_numpy(vectors[rows]).double(), dim=1).sum(dim=0)
        mean /= max(1, len(known))
        chosen = np.random.default_rng(0).permutation(len(known))[:MAX_LANDMARKS]
        landmarks = _directions(torch.from_numpy(vectors[known[np.sort(chosen)]]).double(), mean)
        system = self.ridge * _kernel(landmarks, landmarks)
        weight = torch.zeros(len(landmarks), num_classes, dtype=torch.float64)
        for rows in blocks:
            kernel = _kernel(_directions(torch.from_numpy(vectors[rows]).double(), mean), landmarks)
            own = torch.from_numpy(target[rows])
            signs = 2.0 * (functional.one_hot(own, num_classes) if own.ndim == 1 else own) - 1.0
            system.addmm_(kernel.T, kernel)
            weight.addmm_(kernel.T, signs.double())
        if len(landmarks):
            system.diagonal().add_(_JITTER * system.diagonal().mean())
            weight = torch.linalg.solve(system, weight)
        fitted = {"mean": mean, "landmarks": landmarks, "weight": weight}
        self.set_extra_state({name: part.float() for name, part in fitted.items()})

    def forward(self, vectors: Tensor) -> Tensor:
        """float32 [B, C] from vectors [B, d] of any length; 0 for a zero vector."""
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            kernel = _kernel(_directions(vectors, self.mean), self.landmarks)
            return (kernel @ self.weight) * vectors.any(dim=1, keepdim=True)

    def get_extra_state(self) -> PlainDict:
        """The fitted values, for the state dict: their sizes are unknown before the fit, so they are no buffers."""
        return {name: getattr(self, name).cpu() for name in ("mean", "landmarks", "weight")}

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the fitted values of a state dict."""
        self.mean, self.landmarks, self.weight = (
            state[name].to(self.weight.device) for name in ("mean", "landmarks", "weight")
        )


def _directions(vectors: Tensor, mean: Tensor) -> Tensor:
    """Directions of vectors [n, d] from a mean direction, of length 1."""
    return functional.normalize(functional.normalize(vectors, dim=1) - mean, dim=1)


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    """exp(-gamma |x - y|^2) [n, m] of vectors of length 1."""
    return (2.0 * GAMMA * (first @ second.T - 1.0)).exp()
