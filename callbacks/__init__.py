"""Callbacks that watch a run and write files; none of them changes what is learned."""

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
