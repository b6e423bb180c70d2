"""Models whose members, and their weights, can be fitted again without training; see `zoo.model_folder.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from datamodules.base import AnyDataModule
    from datamodules.corpora.rows import Rows
    from datamodules.retrieval import Memory


@runtime_checkable
class FitsWeights(Protocol):
    """A model whose members, and their weights, can be fitted again without training."""

    def describe_weights(self) -> PlainDict | None:
        """Return the weights as plain values; None before they were fitted."""

    def use_weights(self, weights: PlainDict) -> None:
        """Replace the weights."""

    def describe_held_out(self) -> PlainDict | None:
        """Return the held-out rows of the last fit (see `HeldOutRows`); None if it has none."""

    def describe_members(self) -> PlainDict:
        """Return the values of the members as plain values and tensors."""

    def use_members(self, values: PlainDict) -> None:
        """Replace the values of the members."""

    def learned_by_gradients(self) -> str | None:
        """The part that only a training can fit again; None if there is none."""

    def refit(
        self, data: AnyDataModule, memory: Memory | None, rows: Rows | None, members: bool = False
    ) -> str:
        """Fit the weights again on labelled rows, None = only on rows of the memory; return them as text.

        `members` are fitted first, to the memory's rows.
        """
