"""The models of the zoo: a line each, with module, task and publication. A model is imported when it is used."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from datamodules.core.classes import imported_subclass, option_defaults
from datamodules.core.errors import InputError, suggestion

if TYPE_CHECKING:
    from zoo.tasks.base import Task


class Entry(NamedTuple):
    """One model."""

    module: str
    task: str
    paper: str


_ZHANG = "Zhang, Zhao, LeCun: Character-level Convolutional Networks for Text Classification (2015)"
# fmt: off
_HUANG = "Huang et al.: Learning Deep Structured Semantic Models for Web Search using Clickthrough Data (2013)"
_SHEN = "Shen et al.: A Latent Semantic Model with Convolutional-Pooling Structure for IR (2014)"
_HU = "Hu, Lu, Li, Chen: Convolutional Neural Network Architectures for Matching Sentences (2014)"
_ROBERTSON = "Robertson et al.: Okapi at TREC-3 (1994), as Lucene computes it"
_SUKHBAATAR = "Sukhbaatar, Szlam, Weston, Fergus: End-To-End Memory Networks (NIPS 2015)"
_TANG = "Tang, Wang, Zheng, Mei: End-to-end Learning for Short Text Expansion (KDD 2017)"
_NONE = "no publication: "

#: Name -> entry of every model.
MODELS = {name: Entry(f"zoo.{module}", task, paper) for name, module, task, paper in (
    ("MemoryEnsemble", "ensemble.model", "classification", _NONE + "a logarithmic opinion pool (Genest, Zidek 1986)"),
    ("KNNBiLSTM", "knn_bilstm", "classification", "Wang, Hamza, Song: k-Nearest Neighbor Augmented Neural Networks for Text Classification (2017)"),
    ("ExpaNet", "expanet", "classification", _TANG),
    ("MemNet", "expanet", "classification", _SUKHBAATAR),
    ("HMN", "hmn", "dialogue", "Xu, Shi, Yao, Zheng, Xu, Xu: Hierarchical Memory Networks for Answer Selection on Unknown Words (COLING 2016)"),
    ("MemNN", "hmn", "dialogue", _SUKHBAATAR),
    ("AMVLSTM", "amv_lstm", "matching", "Belkacem, Dkaki, Moreno, Boughanem: aMV-LSTM: an attention-based model with multiple positional text matching (SAC 2019)"),
    ("LSTMRNN", "lstm_rnn", "retrieval", "Palangi et al.: Deep Sentence Embedding Using Long Short-Term Memory Networks: Analysis and Application to Information Retrieval (2016)"),
    ("ANMM", "baselines.pair_networks", "matching", "Yang, Ai, Guo, Croft: aNMM: Ranking Short Answer Texts with Attention-Based Neural Matching (2016)"),
    ("ARCI", "baselines.pair_networks", "matching", _HU),
    ("ARCII", "baselines.pair_networks", "matching", _HU),
    ("BOWRocchio", "baselines.bag_of_words", "classification", _TANG + ", after Rocchio (1971)"),
    ("BiGRU", "baselines.word_networks", "classification", "Cho et al.: Learning Phrase Representations using RNN Encoder-Decoder (2014)"),
    ("CDSSM", "baselines.dssm", "matching", _SHEN),
    ("CharCNN", "baselines.character_networks", "classification", _ZHANG),
    ("CharCRNN", "baselines.character_networks", "classification", "Xiao, Cho: Efficient Character-level Document Classification (2016)"),
    ("DSSM", "baselines.dssm", "matching", _HUANG),
    ("FastText", "baselines.word_networks", "classification", "Joulin, Grave, Bojanowski, Mikolov: Bag of Tricks for Efficient Text Classification (2017)"),
    ("LINE", "baselines.word_averages", "classification", "Tang et al.: LINE: Large-scale Information Network Embedding (2015)"),
    ("Majority", "baselines.references", "classification", _NONE + "the most frequent label"),
    ("MatchPyramid", "baselines.pair_networks", "matching", "Pang et al.: Text Matching as Image Recognition (2016)"),
    ("NGrams", "baselines.bag_of_words", "classification", _ZHANG),
    ("NeighborVote", "baselines.references", "classification", _NONE + "k nearest neighbors by the retriever's score"),
    ("PTE", "baselines.word_averages", "classification", "Tang, Qu, Mei: PTE: Predictive Text Embedding (2015)"),
    ("PairBM25", "baselines.references", "matching", _ROBERTSON),
    ("RandomOrder", "baselines.references", "matching", _NONE + "an order that ignores the texts"),
    ("RetrievalBM25", "baselines.rankings", "retrieval", _ROBERTSON),
    ("RetrievalCLSM", "baselines.dssm", "retrieval", _SHEN),
    ("RetrievalDSSM", "baselines.dssm", "retrieval", _HUANG),
    ("RetrievalDoc2Vec", "baselines.rankings", "retrieval", "Le, Mikolov: Distributed Representations of Sentences and Documents (2014), by gensim"),
    ("RetrievalPLSA", "baselines.rankings", "retrieval", "Hofmann: Probabilistic Latent Semantic Analysis (1999)"),
    ("RetrievalULM", "baselines.rankings", "retrieval", "Zhai, Lafferty: A Study of Smoothing Methods for Language Models Applied to Ad Hoc Information Retrieval (2001), as Lucene computes it"),
    ("SkipGram", "baselines.word_averages", "classification", "Mikolov et al.: Distributed Representations of Words and Phrases (2013)"),
    ("TextCNN", "baselines.word_networks", "classification", "Kim: Convolutional Neural Networks for Sentence Classification (2014)"),
    ("TfidfSVM", "baselines.bag_of_words", "classification", _NONE + "scikit-learn's TfidfVectorizer and LinearSVC"),
    ("TransformerMatcher", "baselines.transformer_matcher", "matching", "Nogueira, Cho: Passage Re-ranking with BERT (2019); Reimers, Gurevych: Sentence-BERT (2019)"),
    ("VDCNN", "baselines.character_networks", "classification", "Conneau, Schwenk, Barrault, LeCun: Very Deep Convolutional Networks for Text Classification (2017)"),
    ("WordOverlap", "baselines.references", "matching", _NONE + "shared words"),
)}
# fmt: on


def list_models(pattern: str = "*", task: str | None = None) -> list[str]:
    """Return the names of the models that match a pattern in any case, such as "*lstm*", of one task or of all."""
    tasks = {entry.task for entry in MODELS.values()}
    if task is not None and task not in tasks:
        raise InputError(f"no task {task!r}; there are {', '.join(sorted(tasks))}")
    names = [name for name, entry in MODELS.items() if entry.task == (task or entry.task)]
    return [name for name in names if fnmatchcase(name.lower(), pattern.lower())]


def create_model(name: str, **options: Any) -> Task:
    """Make an untrained model: a `LightningModule`, whose network is built when it is given its data.

    Args:
        name: of a model of the zoo, in any case, or of a class of your own in an imported module.
        **options: of the model, as after `--model.`; `zoo list NAME` lists them.

    Raises:
        InputError: there is no such model or option.
    """
    kind = model_class({model.lower(): model for model in MODELS}.get(name.lower(), name))
    for option in options:
        if option not in (names := option_defaults(kind)):
            raise InputError(f"{option}: no option of {kind.__name__}; {suggestion(option, names)}")
    return kind(**options)


def model_class(name: str) -> type[Task]:
    """The model with this name, of the zoo or of an imported module; raises an `InputError` if there is none."""
    short = name.rpartition(".")[2]
    if short in MODELS:
        return getattr(import_module(MODELS[short].module), short)
    own: type[Task] | None = imported_subclass(import_module("zoo.tasks.base").Task, name)
    if own is None:
        raise InputError(f"no model {name!r} in this version (see `zoo list`); import your own before")
    return own
