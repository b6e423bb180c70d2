"""Retrieval-augmented models for short text.

The models listed here are the registry: what `zoo list` shows, what a YAML and a checkpoint can name. They are loaded
when they are asked for. A model of your own is known as soon as its module is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from datamodules.retrieval.dense.text_encoder import FILE_ENCODERS

if TYPE_CHECKING:
    from zoo.amv_lstm import AMVLSTM
    from zoo.baselines.anmm import ANMM
    from zoo.baselines.arc import ARCI, ARCII
    from zoo.baselines.bag_of_words import BOWRocchio, NGrams
    from zoo.baselines.bi_gru import BiGRU
    from zoo.baselines.char_cnn import CharCNN
    from zoo.baselines.char_crnn import CharCRNN
    from zoo.baselines.dssm import CDSSM, DSSM
    from zoo.baselines.fasttext import FastText
    from zoo.baselines.line import LINE, PTE
    from zoo.baselines.match_pyramid import MatchPyramid
    from zoo.baselines.reference_labels import Majority, NeighborVote, TfidfSVM
    from zoo.baselines.reference_pairs import FileOrder, PairBM25, RandomOrder, WordOverlap
    from zoo.baselines.retrieval_dssm import RetrievalCLSM, RetrievalDSSM
    from zoo.baselines.retrieval_lexical import RetrievalBM25, RetrievalULM
    from zoo.baselines.retrieval_topics import RetrievalDoc2Vec, RetrievalPLSA
    from zoo.baselines.skip_gram import SkipGram
    from zoo.baselines.text_cnn import TextCNN
    from zoo.baselines.transformer_matcher import TransformerMatcher
    from zoo.baselines.vdcnn import VDCNN
    from zoo.ensemble.model import WitnessEnsemble
    from zoo.expanet import ExpaNet, MemNet
    from zoo.hmn import HMN, MemNN
    from zoo.knn_bilstm import KNNBiLSTM
    from zoo.lstm_rnn import LSTMRNN
    from zoo.saving.loading import load
    from zoo.tasks.base import Task
    from zoo.tasks.classification.predictor import ClassificationPredictor, Prediction, RetrievedMemory
    from zoo.tasks.dialogue.predictor import Answer, DialoguePredictor, PointedWord, ReadTurn
    from zoo.tasks.matching.predictor import Candidate, MatchingPredictor, PairPrediction, WordPair
    from zoo.tasks.predictor import Predictor
    from zoo.tasks.retrieval.predictor import RankedDocument, RetrievalPredictor

__version__ = "0.1.0"

#: Name -> module of every model.
MODELS = {
    "AMVLSTM": "zoo.amv_lstm",
    "ANMM": "zoo.baselines.anmm",
    "ARCI": "zoo.baselines.arc",
    "ARCII": "zoo.baselines.arc",
    "BOWRocchio": "zoo.baselines.bag_of_words",
    "BiGRU": "zoo.baselines.bi_gru",
    "CDSSM": "zoo.baselines.dssm",
    "CharCNN": "zoo.baselines.char_cnn",
    "CharCRNN": "zoo.baselines.char_crnn",
    "DSSM": "zoo.baselines.dssm",
    "ExpaNet": "zoo.expanet",
    "FastText": "zoo.baselines.fasttext",
    "FileOrder": "zoo.baselines.reference_pairs",
    "HMN": "zoo.hmn",
    "KNNBiLSTM": "zoo.knn_bilstm",
    "LINE": "zoo.baselines.line",
    "LSTMRNN": "zoo.lstm_rnn",
    "Majority": "zoo.baselines.reference_labels",
    "MatchPyramid": "zoo.baselines.match_pyramid",
    "MemNN": "zoo.hmn",
    "MemNet": "zoo.expanet",
    "NGrams": "zoo.baselines.bag_of_words",
    "NeighborVote": "zoo.baselines.reference_labels",
    "PTE": "zoo.baselines.line",
    "PairBM25": "zoo.baselines.reference_pairs",
    "RandomOrder": "zoo.baselines.reference_pairs",
    "RetrievalBM25": "zoo.baselines.retrieval_lexical",
    "RetrievalCLSM": "zoo.baselines.retrieval_dssm",
    "RetrievalDSSM": "zoo.baselines.retrieval_dssm",
    "RetrievalDoc2Vec": "zoo.baselines.retrieval_topics",
    "RetrievalPLSA": "zoo.baselines.retrieval_topics",
    "RetrievalULM": "zoo.baselines.retrieval_lexical",
    "SkipGram": "zoo.baselines.skip_gram",
    "TextCNN": "zoo.baselines.text_cnn",
    "TfidfSVM": "zoo.baselines.reference_labels",
    "TransformerMatcher": "zoo.baselines.transformer_matcher",
    "VDCNN": "zoo.baselines.vdcnn",
    "WitnessEnsemble": "zoo.ensemble.model",
    "WordOverlap": "zoo.baselines.reference_pairs",
}
_OTHERS = {
    "Answer": "zoo.tasks.dialogue.predictor",
    "Candidate": "zoo.tasks.matching.predictor",
    "ClassificationPredictor": "zoo.tasks.classification.predictor",
    "DialoguePredictor": "zoo.tasks.dialogue.predictor",
    "MatchingPredictor": "zoo.tasks.matching.predictor",
    "PairPrediction": "zoo.tasks.matching.predictor",
    "PointedWord": "zoo.tasks.dialogue.predictor",
    "Prediction": "zoo.tasks.classification.predictor",
    "Predictor": "zoo.tasks.predictor",
    "ReadTurn": "zoo.tasks.dialogue.predictor",
    "RankedDocument": "zoo.tasks.retrieval.predictor",
    "RetrievalPredictor": "zoo.tasks.retrieval.predictor",
    "RetrievedMemory": "zoo.tasks.classification.predictor",
    "WordPair": "zoo.tasks.matching.predictor",
    "load": "zoo.saving.loading",
}

__all__ = [
    "AMVLSTM",
    "ANMM",
    "ARCI",
    "ARCII",
    "CDSSM",
    "DSSM",
    "HMN",
    "LINE",
    "LSTMRNN",
    "PTE",
    "VDCNN",
    "Answer",
    "BOWRocchio",
    "BiGRU",
    "Candidate",
    "CharCNN",
    "CharCRNN",
    "ClassificationPredictor",
    "DialoguePredictor",
    "ExpaNet",
    "FastText",
    "FileOrder",
    "KNNBiLSTM",
    "Majority",
    "MatchPyramid",
    "MatchingPredictor",
    "MemNN",
    "MemNet",
    "NGrams",
    "NeighborVote",
    "PairBM25",
    "PairPrediction",
    "PointedWord",
    "Prediction",
    "Predictor",
    "RandomOrder",
    "RankedDocument",
    "ReadTurn",
    "RetrievalBM25",
    "RetrievalCLSM",
    "RetrievalDSSM",
    "RetrievalDoc2Vec",
    "RetrievalPLSA",
    "RetrievalPredictor",
    "RetrievalULM",
    "RetrievedMemory",
    "SkipGram",
    "TextCNN",
    "TfidfSVM",
    "TransformerMatcher",
    "WitnessEnsemble",
    "WordOverlap",
    "WordPair",
    "list_models",
    "load",
]


def __getattr__(name: str) -> Any:
    module = MODELS.get(name) or _OTHERS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def list_models() -> dict[str, type[Task]]:
    """Name -> class of every model of the zoo."""
    return {name: __getattr__(name) for name in MODELS}


def _checkpoint_encoder(checkpoint: str, device: Any) -> Any:
    from zoo.saving.loading import CheckpointEncoder

    return CheckpointEncoder(checkpoint, device)


# Dense retrieval may see texts as a model of this zoo sees them.
FILE_ENCODERS[".ckpt"] = _checkpoint_encoder
