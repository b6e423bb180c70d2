"""Callbacks that watch a run and write files; none of them changes what is learned."""

from callbacks.chart import Chart
from callbacks.charts import Charts
from callbacks.curves import Curves
from callbacks.gradient_norms import GradientNorms
from callbacks.prediction_table import PredictionTable
from callbacks.run_folder import RunFolder
from callbacks.stage_progress import StageProgress
from callbacks.throughput import Throughput

__all__ = [
    "Chart",
    "Charts",
    "Curves",
    "GradientNorms",
    "PredictionTable",
    "RunFolder",
    "StageProgress",
    "Throughput",
]
