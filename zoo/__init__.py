"""Retrieval-augmented models for short text.

The models imported here are the registry: what `zoo list` shows and what a checkpoint can name.
"""

import inspect

from zoo.amv_lstm import AMVLSTM
from zoo.baselines.anmm import ANMM
from zoo.baselines.arc import ARCI, ARCII
from zoo.baselines.dssm import CDSSM, DSSM
from zoo.baselines.match_pyramid import MatchPyramid
from zoo.baselines.transformer_matcher import TransformerMatcher
from zoo.knn_bilstm import KNNBiLSTM
from zoo.tasks.base import Task
from zoo.tasks.classification import Prediction, RetrievedMemory

__version__ = "0.1.0"


def list_models() -> dict[str, type[Task]]:
    """Name -> class of every model."""
    return {
        name: value
        for name, value in globals().items()
        if inspect.isclass(value) and issubclass(value, Task) and value is not Task
    }


from zoo.inference import Predictor, load  # noqa: E402 (reads the registry above)
from zoo.matching import Candidate, MatchingPredictor, PairPrediction, WordPair  # noqa: E402

__all__ = [
    "AMVLSTM",
    "ANMM",
    "ARCI",
    "ARCII",
    "CDSSM",
    "DSSM",
    "Candidate",
    "KNNBiLSTM",
    "MatchPyramid",
    "MatchingPredictor",
    "PairPrediction",
    "Prediction",
    "Predictor",
    "RetrievedMemory",
    "TransformerMatcher",
    "WordPair",
    "list_models",
    "load",
]
