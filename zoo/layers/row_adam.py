"""Tables of vectors whose updates cost time only for the rows that a batch reads.

A step of a dense optimizer goes over every row of a table: with 30,000 words of 100 numbers that takes longer than the
rest of a small network's step. Here the gradient of a `WordEncoder`'s table is a sparse tensor of the rows that were
read, and the optimizer updates no others. Adam moves a row also in steps without a gradient: `RowAdam` delays these
updates until the row is read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Adam, Optimizer

from datamodules.core.compiled import njit
from datamodules.core.types import PlainDict
from zoo.layers.encoders import WordEncoder

#: A delayed update is skipped if it is this much smaller than the first of its row, which float32 cannot resolve.
NEGLIGIBLE = 1e-12


def distinct_rows(ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """The distinct row numbers [n] of a table, sorted, and the position of each id among them [...]; does not sort."""
    is_read = torch.zeros(num_rows, dtype=torch.bool, device=ids.device)
    is_read[ids.flatten()] = True
    rows = is_read.nonzero().squeeze(1)
    position = torch.empty(num_rows, dtype=torch.int64, device=ids.device)
    position[rows] = torch.arange(len(rows), device=ids.device)
    return rows, position[ids]


class RowAdam(Adam):
    """Adam that delays the updates of rows without a gradient until they are read; for tables on a CPU.

    Adam (Kingma and Ba, 2015) keeps for each number the means m of its gradients and v of their squares. Without a
    gradient, m falls by beta1 and v by beta2 a step, and the number still moves by lr m / sqrt(v), both corrected
    for their bias. So the result of n such steps depends on m and v before them and on two sums over the steps, which
    are the same for all rows that were last updated at the same step:

        A = sum_k a_k,  a_k = lr_k beta1^k / (1 - beta1^t)          R = sum_k a_k sqrt(1 - beta2^t) / beta2^(k/2)

    with t the number of the k-th of the n steps. The row's update is R m / sqrt(v) if epsilon is 0, and A m / epsilon
    if v is 0; A m / ((A / R) sqrt(v) + epsilon) equals both. The result is that of dense Adam except for rounding and
    for the contribution of epsilon between these cases. The state is Adam's: a checkpoint of either resumes both.

    A schedule may change beta1 and beta2: all updates that were delayed with the old ones are made first.
    """

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        #: table -> the rows with delayed updates.
        self._waiting: dict[Tensor, _Waiting] = {}

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """See `torch.optim.Optimizer.step`; parameters with a sparse gradient are updated by rows."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sparse: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is None:
                    continue
                if table.grad.is_sparse:
                    sparse.append((table, table.grad))
                    self._update(table, table.grad, group)
                    table.grad = None
                else:
                    self.settle(table)
        super().step()
        for table, gradient in sparse:
            table.grad = gradient
        return loss

    def _update(self, table: Tensor, gradient: Tensor, group: PlainDict) -> None:
        rows, values = _sums(gradient)
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        waiting = self._waiting.get(table)
        if waiting is None or waiting.betas != tuple(group["betas"]):
            self.settle(table)
            waiting = self._waiting[table] = _Waiting(len(table), *group["betas"])
        self.settle(table, rows)
        state["step"] += 1
        step, (beta1, beta2), lr = int(state["step"]), group["betas"], float(group["lr"])
        waiting.count_step(step, lr)
        numbers = beta1, beta2, lr / (1 - beta1**step), math.sqrt(1 - beta2**step), group["eps"]
        _update_rows(
            *_arrays(table, state), rows.numpy(), values.numpy(), waiting.since, waiting.steps,
            *map(np.float32, numbers)
        )  # fmt: skip
        if not waiting.can_wait:
            self.settle(table)

    def settle(self, table: Tensor, rows: Tensor | None = None) -> None:
        """Make the delayed updates of rows of a table, int64 [n] with duplicates; None = of all."""
        waiting = self._waiting.get(table)
        if waiting is None or waiting.steps == 0:
            return
        group = next(group for group in self.param_groups if any(p is table for p in group["params"]))
        _settle_rows(
            *_arrays(table, self.state[table]),
            np.arange(len(table)) if rows is None else rows.numpy(),
            waiting.since, waiting.steps, *waiting.totals, *waiting.betas, np.float32(group["eps"])
        )  # fmt: skip

    def state_dict(self) -> PlainDict:
        """Adam's own, after all updates."""
        for table in self._waiting:
            self.settle(table)
        self._waiting.clear()
        return super().state_dict()

    def load_state_dict(self, state_dict: PlainDict) -> None:
        """Load Adam's own state."""
        self._waiting.clear()
        super().load_state_dict(state_dict)


class _Waiting:
    """The step of each row's last update, and the sums A and R of `RowAdam` since every step."""

    def __init__(self, rows: int, beta1: float, beta2: float) -> None:
        #: number of steps.
        self.steps = 0
        #: int64 [rows]: the step of each row's last update.
        self.since = np.zeros(rows, np.int64)
        # A row's delayed updates shrink at least by this factor a step; otherwise none is delayed.
        shrink = beta1 / math.sqrt(beta2)
        self.can_wait = shrink < 1
        reach = math.ceil(math.log(NEGLIGIBLE) / math.log(shrink)) if 0 < shrink < 1 else 1
        self.betas = beta1, beta2
        # A step's weight in the sums of rows that were updated reach, ..., 1 steps before.
        self.weights = np.array([[beta1], [shrink]]) ** np.arange(reach, 0, -1)
        #: [2, at least `steps`]: A and R since each step.
        self.totals = np.zeros((2, 1024))

    def count_step(self, step: int, lr: float) -> None:
        """Count one more step, the optimizer's `step`-th."""
        if self.steps == self.totals.shape[1]:
            self.totals = np.concatenate([self.totals, np.zeros_like(self.totals)], axis=1)
        beta1, beta2 = self.betas
        n = min(self.weights.shape[1], self.steps + 1)
        weight = lr / (1 - beta1**step) * np.array([[1.0], [math.sqrt(1 - beta2**step)]])
        self.totals[:, self.steps + 1 - n : self.steps + 1] += weight * self.weights[:, -n:]
        self.steps += 1


def _arrays(table: Tensor, state: PlainDict) -> tuple[NDArray[np.float32], ...]:
    """A table and Adam's two means, as arrays that share their memory."""
    return table.detach().numpy(), state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()


def _sums(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n] and their gradients [n, size] of a sparse gradient, each row once."""
    rows = gradient._indices()[0]
    # Most often the rows are sorted and distinct already.
    if not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
        rows = gradient.indices()[0]
    return rows.contiguous(), gradient._values().contiguous()


# One pass over the rows: PyTorch's operations one by one take longer than a small network's whole step.


@njit(error_model="numpy")
def _update_rows(  # type: ignore[no-untyped-def]
    table, mean, square, rows, gradient, since, now, beta1, beta2, rate, correction, eps
):
    """Adam's step on rows whose delayed updates were made up to step `now`."""
    one = np.float32(1)
    for i in range(len(rows)):
        row = rows[i]
        for j in range(table.shape[1]):
            g = gradient[i, j]
            m = beta1 * mean[row, j] + (one - beta1) * g
            v = beta2 * square[row, j] + (one - beta2) * g * g
            mean[row, j], square[row, j] = m, v
            table[row, j] -= rate * m / (np.sqrt(v) / correction + eps)
        since[row] = now


@njit(error_model="numpy")
def _settle_rows(  # type: ignore[no-untyped-def]
    table, mean, square, rows, since, now, by_mean, by_ratio, beta1, beta2, eps
):
    """The delayed updates of rows; see `RowAdam` for A (`by_mean`) and R (`by_ratio`)."""
    # Where a row never had a gradient, m and v are 0, and so may be epsilon.
    tiny = np.float32(1e-38)
    for row in rows:
        start = since[row]
        if start == now:
            continue
        since[row] = now
        shrink_mean, shrink_square = np.float32(beta1 ** (now - start)), np.float32(beta2 ** (now - start))
        a = np.float32(by_mean[start])
        ratio = np.float32(by_mean[start] / by_ratio[start] if by_ratio[start] > 0 else 1)
        for j in range(table.shape[1]):
            m, v = mean[row, j], square[row, j]
            table[row, j] -= a * m / (ratio * np.sqrt(v) + eps + tiny)
            mean[row, j], square[row, j] = shrink_mean * m, shrink_square * v


def can_update_by_rows(optimizer: Optimizer) -> bool:
    """Return True for an Adam whose updates by rows have the same result as dense ones."""
    # These change rows without a gradient in ways that cannot be delayed.
    names = ("weight_decay", "amsgrad", "maximize")
    groups = optimizer.param_groups
    return type(optimizer) is Adam and not any(group.get(name) for group in groups for name in names)


def update_by_rows(optimizer: Optimizer, words: Iterable[WordEncoder]) -> RowAdam:
    """Return a `RowAdam` in the place of an optimizer that `can_update_by_rows`; it updates tables by rows."""
    adam = RowAdam(optimizer.param_groups, **optimizer.defaults)
    for each in words:
        each.is_sparse = True
        each.settle = lambda rows, table=each.table: adam.settle(table, rows)
    return adam


def update_densely(words: Iterable[WordEncoder]) -> None:
    """Make the delayed updates; the next optimizer updates all rows."""
    for each in words:
        each.settle_all()
        each.is_sparse, each.settle = False, None
