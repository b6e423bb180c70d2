"""Callbacks that watch a run and write files; none of them changes what is learned."""

from callbacks.prediction_table import PredictionTable
from callbacks.run_folder import RunFolder
from callbacks.throughput import Throughput

__all__ = ["PredictionTable", "RunFolder", "Throughput"]
