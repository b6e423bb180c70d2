"""Callbacks that watch a run and write files; none of them changes what is learned."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from callbacks.chart import Chart

if TYPE_CHECKING:
    from callbacks.observers import Charts, GradientNorms, PredictionTable, RunFolder, Throughput

__all__ = ["Chart", "Charts", "GradientNorms", "PredictionTable", "RunFolder", "Throughput"]


def __getattr__(name: str) -> object:
    if name in __all__:  # imported on first use: a model needs the charts alone, without Lightning
        return getattr(import_module("callbacks.observers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
