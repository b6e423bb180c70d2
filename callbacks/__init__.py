"""Callbacks that watch a run and write files; none of them changes what is learned."""

# A model needs `callbacks.chart` alone, which imports no Lightning: the others are imported on first use.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callbacks.chart import Chart as Chart
    from callbacks.metrics import GradientNorms as GradientNorms
    from callbacks.metrics import Throughput as Throughput
    from callbacks.reports import Charts as Charts
    from callbacks.reports import PredictionTable as PredictionTable
    from callbacks.run_folder import RunFolder as RunFolder

_MODULES = {
    "Chart": "chart",
    "Charts": "reports",
    "GradientNorms": "metrics",
    "PredictionTable": "reports",
    "RunFolder": "run_folder",
    "Throughput": "metrics",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"callbacks.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
