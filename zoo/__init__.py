"""Retrieval-augmented models for short text.

`zoo.load` opens a trained model. Every model of `zoo.registry.MODELS` is an attribute of this package, imported on first
use. A model of your own is known as soon as its module is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from datamodules.retrieval.dense.text_encoder import FILE_ENCODERS
from zoo.registry import MODELS

if TYPE_CHECKING:
    import torch

    from zoo.saving.encoder import SavedEncoder
    from zoo.saving.saved_model import SavedModel, load
    from zoo.tasks.classification.predictor import ClassificationPredictor
    from zoo.tasks.dialogue.predictor import DialoguePredictor
    from zoo.tasks.matching.predictor import MatchingPredictor
    from zoo.tasks.retrieval.predictor import RetrievalPredictor

__version__ = "0.1.0"

_FUNCTIONS = {
    "ClassificationPredictor": "zoo.tasks.classification.predictor",
    "DialoguePredictor": "zoo.tasks.dialogue.predictor",
    "MatchingPredictor": "zoo.tasks.matching.predictor",
    "RetrievalPredictor": "zoo.tasks.retrieval.predictor",
    "SavedModel": "zoo.saving.saved_model",
    "load": "zoo.saving.saved_model",
}

__all__ = [  # noqa: PLE0604 - the models come from the registry
    "ClassificationPredictor",
    "DialoguePredictor",
    "MatchingPredictor",
    "RetrievalPredictor",
    "SavedModel",
    "load",
    *MODELS,
]


def __getattr__(name: str) -> Any:
    module = MODELS[name].module if name in MODELS else _FUNCTIONS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def _saved_encoder(model: str, device: torch.device) -> SavedEncoder:
    from zoo.saving.encoder import SavedEncoder

    return SavedEncoder(model, device)


# Dense retrieval can use the text encoder of a trained model of this zoo.
FILE_ENCODERS[".ckpt"] = _saved_encoder
