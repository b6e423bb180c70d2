"""Tables of vectors of which a batch reads a few rows, and updates that cost time for these rows alone.

A step of a dense optimizer goes over every row of a table, and so does its gradient: with 30,000 words of 100 numbers
that takes longer than all else in a small network's step. Here a table's gradient holds the rows that were read (a
sparse tensor), and the optimizer updates no others. SGD and Adagrad, as PyTorch has them, then find exactly what they
find from a dense gradient. Adam moves every row at every step, for some time after its last gradient: `RowAdam` puts
these moves off until the row is read, and makes them then, all at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

#: A put-off move that is this much smaller than the first of its row is left out: float32 would not show it.
NEGLIGIBLE = 1e-12


class RowTable(nn.Module):
    """Base of the modules that have a `table` and read some of its rows."""

    table: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        #: whether the table's gradient is sparse.
        self.is_sparse = False
        #: makes the moves that an optimizer has put off, of some rows, or of all (None).
        self.settle: Callable[[Tensor | None], None] | None = None
        # Whoever keeps or copies the weights gets them as they should be.
        self.register_state_dict_pre_hook(_settle_all)  # type: ignore[no-untyped-call]

    def rows(self, ids: Tensor) -> Tensor:
        """Read rows.

        Args:
            ids: int64 [...], rows of the table.

        Returns:
            [..., size].
        """
        if self.settle is not None:
            self.settle(ids.flatten())
        return functional.embedding(ids, self.table, sparse=self.is_sparse)


def _settle_all(table: RowTable, prefix: str, keep_vars: bool) -> None:
    if table.settle is not None:
        table.settle(None)


class RowAdam(Adam):
    """Adam, with the moves of rows that have no gradient put off until they are read.

    Adam (Kingma and Ba, 2015) keeps for each number the means m of its gradients and v of their squares. Without a
    gradient, m falls by beta1 and v by beta2 a step, and the number still moves by lr m / sqrt(v), both corrected
    for their bias. So what n such steps do depends on m and v before them and on two sums over the steps, which are the
    same for all rows that were updated last at the same time:

        A = sum_k a_k,  a_k = lr_k beta1^k / (1 - beta1^t)          R = sum_k a_k sqrt(1 - beta2^t) / beta2^(k/2)

    with t the number of the k-th of the n steps. The row's move is R m / sqrt(v) if epsilon is 0, and A m / epsilon
    if v is; it is computed as A m / ((A / R) sqrt(v) + epsilon), which is both. The result is that of dense Adam, but
    for rounding and for what epsilon contributes in between. Its state is Adam's: a checkpoint of either resumes both.
    """

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        #: table -> which of its rows have moves to make.
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
                    self._update(table, group)
                    table.grad = None
                else:
                    self.settle(table)
        super().step()
        for table, gradient in sparse:
            table.grad = gradient
        return loss

    @torch.no_grad()
    def _update(self, table: Tensor, group: dict[str, Any]) -> None:
        assert table.grad is not None
        if (overflow := getattr(self, "found_inf", None)) is not None and overflow.item():
            return  # a step that the scaler of half-precision gradients skips
        gradient = table.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        if (scale := getattr(self, "grad_scale", None)) is not None:
            values = values / scale
        state = self.state[table]
        if not state:
            device = table.device if group["fused"] or group["capturable"] else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        self.settle(table, rows)
        state["step"] += 1
        step, (beta1, beta2), lr = int(state["step"]), group["betas"], float(group["lr"])
        mean = state["exp_avg"].index_select(0, rows).lerp_(values, 1 - beta1)
        square = (
            state["exp_avg_sq"].index_select(0, rows).mul_(beta2).addcmul_(values, values, value=1 - beta2)
        )
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        size = square.sqrt_().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        table.index_add_(0, rows, mean.div_(size), alpha=-lr / (1 - beta1**step))
        if table not in self._waiting:
            self._waiting[table] = _Waiting(len(table), table.device, beta1, beta2)
        self._waiting[table].count_step(rows, step, lr)

    @torch.no_grad()
    def settle(self, table: Tensor, rows: Tensor | None = None) -> None:
        """Make the moves that were put off.

        Args:
            table: a parameter.
            rows: int64 [n], of the table; some may be named more than once. None = all.
        """
        waiting = self._waiting.get(table)
        if waiting is None or waiting.steps == 0:
            return
        rows = waiting.late(rows)
        if len(rows):
            group = next(group for group in self.param_groups if any(p is table for p in group["params"]))
            state, (beta1, beta2) = self.state[table], group["betas"]
            count, by_mean, by_ratio = waiting.sums(rows)
            mean, square = state["exp_avg"].index_select(0, rows), state["exp_avg_sq"].index_select(0, rows)
            # A row that never had a gradient has no mean and no square: 0 / 0 where epsilon is 0.
            size = square.sqrt().mul_(by_mean / by_ratio).add_(group["eps"]).clamp_(min=1e-38)
            table.index_copy_(0, rows, table.index_select(0, rows).addcdiv_(mean * by_mean, size, value=-1))
            state["exp_avg"].index_copy_(0, rows, mean.mul_(torch.pow(beta1, count).float()))
            state["exp_avg_sq"].index_copy_(0, rows, square.mul_(torch.pow(beta2, count).float()))
        waiting.mark(rows)

    def settle_all(self) -> None:
        """Make all moves that were put off."""
        for table in list(self._waiting):
            self.settle(table)
            del self._waiting[table]  # nothing waits: what was counted is of no more use

    def state_dict(self) -> dict[str, Any]:
        """Adam's own."""
        self.settle_all()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Adam's own."""
        self._waiting.clear()
        super().load_state_dict(state_dict)


class _Waiting:
    """Since when each row of a table waits, and the sums A and R of `RowAdam` for every such time."""

    def __init__(self, rows: int, device: torch.device, beta1: float, beta2: float) -> None:
        #: steps that were counted.
        self.steps = 0
        #: the step after which each row is as it should be [rows].
        self.since = torch.zeros(rows, dtype=torch.int64, device=device)
        # The moves of a row shrink by this factor a step, or a little faster.
        shrink = beta1 / math.sqrt(beta2)
        reach = 1 if shrink == 0 else math.ceil(math.log(NEGLIGIBLE) / math.log(shrink))
        self.betas = beta1, beta2
        after = torch.arange(reach, 0, -1, dtype=torch.float64)
        # What a step counts for rows that wait since so many steps: reach, ..., 1.
        self.by_mean, self.by_ratio = beta1**after, shrink**after
        #: float64 [2, steps and more]: A and R of the rows that wait since then.
        self.totals = torch.zeros(2, 1024, dtype=torch.float64)

    def count_step(self, rows: Tensor, step: int, lr: float) -> None:
        """One more step, the optimizer's `step`-th, in which only `rows` were updated."""
        if self.steps == self.totals.shape[1]:
            self.totals = torch.cat([self.totals, torch.zeros_like(self.totals)], dim=1)
        beta1, beta2 = self.betas
        n = min(len(self.by_mean), self.steps + 1)
        recent = self.totals[:, self.steps + 1 - n : self.steps + 1]
        weight = lr / (1 - beta1**step)
        recent[0].add_(self.by_mean[-n:], alpha=weight)
        recent[1].add_(self.by_ratio[-n:], alpha=weight * math.sqrt(1 - beta2**step))
        self.steps += 1
        self.since[rows] = self.steps

    def late(self, rows: Tensor | None) -> Tensor:
        """Those of the rows that have moves to make, each as often as it is named; None = of all."""
        if rows is None:
            return (self.since < self.steps).nonzero().squeeze(1)
        return rows[self.since[rows] < self.steps]

    def sums(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For late rows, each [n, 1]: the steps that they waited (float64), A and R (float32)."""
        since = self.since[rows]
        total = self.totals.to(since.device)[:, since].float().unsqueeze(2)
        return (self.steps - since).double().unsqueeze(1), total[0], total[1].clamp(min=1e-38)

    def mark(self, rows: Tensor) -> None:
        """The rows are as they should be."""
        self.since[rows] = self.steps


def why_dense(optimizer: Optimizer) -> str | None:
    """Why an optimizer does not update a table by rows with the result that it has by dense updates; None: it does."""
    if type(optimizer) not in (SGD, Adagrad, Adam, AdamW, RowAdam):
        return f"{type(optimizer).__name__} is none of SGD, Adagrad, Adam and AdamW"
    for group in optimizer.param_groups:
        # Each of these moves rows, or a memory of their gradients, in ways that are not made up for later.
        for name in ("weight_decay", "momentum", "amsgrad", "maximize"):
            if group.get(name):
                return f"{type(optimizer).__name__} has {name}={group[name]}"
        if isinstance(optimizer, SGD | Adagrad) and group.get("fused"):
            return f"{type(optimizer).__name__} is fused"
        if isinstance(optimizer, Adam) and group["betas"][0] ** 2 >= group["betas"][1]:
            return f"{type(optimizer).__name__} has betas={group['betas']}, and the first is too large"
    return None


def update_by_rows(optimizer: Optimizer, tables: Sequence[RowTable]) -> Optimizer:
    """Have an optimizer update tables by rows.

    Args:
        optimizer: one that `why_dense` has nothing against; its parameters are the tables' and others.
        tables: their gradients become sparse.

    Returns:
        The optimizer, or one of the same settings in its place.
    """
    if isinstance(optimizer, Adam):
        optimizer = RowAdam(optimizer.param_groups, **optimizer.defaults)
        for table in tables:
            table.settle = lambda rows, weight=table.table: optimizer.settle(weight, rows)
    for table in tables:
        table.is_sparse = True
    return optimizer


def update_densely(tables: Iterable[RowTable]) -> None:
    """Have whatever optimizer comes next update all rows; moves that were put off are made."""
    for table in tables:
        _settle_all(table, "", False)
        table.is_sparse, table.settle = False, None


def sum_sparse_gradients(tables: Iterable[RowTable]) -> None:
    """Make one of the gradients of a row that was read several times, so that norms are of the sums."""
    for table in tables:
        gradient = table.table.grad
        if gradient is not None and gradient.is_sparse:
            table.table.grad = gradient.coalesce()


def clip_values(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Clip every number of the gradients to -most..most, as `torch.nn.utils.clip_grad_value_`; of sparse ones, too.

    Args:
        parameters: sparse gradients among theirs are sums, see `sum_sparse_gradients`.
        most: 0 or more.
    """
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            (gradient.values() if gradient.is_sparse else gradient).clamp_(-most, most)
