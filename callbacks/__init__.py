"""Callbacks that watch a run and write files; none of them changes what is learned."""

# A model needs `callbacks.chart` alone, which imports no Lightning: the others are imported on first use.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callbacks.chart import Chart
    from callbacks.charts import Charts, PredictionTable
    from callbacks.gradient_norms import GradientNorms
    from callbacks.run_folder import RunFolder
    from callbacks.throughput import Throughput

__all__ = [
    "Chart",
    "Charts",
    "GradientNorms",
    "PredictionTable",
    "RunFolder",
    "Throughput",
]

_MODULES = {
    "Chart": "callbacks.chart",
    "Charts": "callbacks.charts",
    "GradientNorms": "callbacks.gradient_norms",
    "PredictionTable": "callbacks.charts",
    "RunFolder": "callbacks.run_folder",
    "Throughput": "callbacks.throughput",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
