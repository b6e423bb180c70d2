"""Retrieval-augmented models for short text.

`zoo.fit` trains a model, `zoo.load` opens a trained one, and `MemoryClassifier` is an estimator for scikit-learn.
`zoo.list_models` names the models; each is an attribute of this package, imported on first use. `zoo.create_model`
makes one for a training of your own, and `zoo.from_pretrained` one with its trained weights. A model of your own is
known as soon as its module is imported.
"""

# Nothing of ours is imported here: `python -m zoo` runs this before it keeps a user's folder `datamodules` out.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.loading import from_pretrained as from_pretrained
    from zoo.loading import load as load
    from zoo.model_folder.folder import ModelFolder as ModelFolder
    from zoo.python.classifier import MemoryClassifier as MemoryClassifier
    from zoo.python.fitting import fit as fit
    from zoo.registry import create_model as create_model
    from zoo.registry import list_models as list_models
    from zoo.tasks.classification.predictor import ClassificationPredictor as ClassificationPredictor
    from zoo.tasks.dialogue.predictor import DialoguePredictor as DialoguePredictor
    from zoo.tasks.matching.predictor import MatchingPredictor as MatchingPredictor
    from zoo.tasks.retrieval.predictor import RetrievalPredictor as RetrievalPredictor

__version__ = "0.1.0"

_MODULES = {
    "ClassificationPredictor": "zoo.tasks.classification.predictor",
    "DialoguePredictor": "zoo.tasks.dialogue.predictor",
    "MatchingPredictor": "zoo.tasks.matching.predictor",
    "MemoryClassifier": "zoo.python.classifier",
    "ModelFolder": "zoo.model_folder.folder",
    "RetrievalPredictor": "zoo.tasks.retrieval.predictor",
    "create_model": "zoo.registry",
    "fit": "zoo.python.fitting",
    "from_pretrained": "zoo.loading",
    "list_models": "zoo.registry",
    "load": "zoo.loading",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    # The import system asks every package for such names.
    if not name.startswith("_"):
        from zoo.registry import MODELS, model_class

        if name in MODELS:
            return model_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
