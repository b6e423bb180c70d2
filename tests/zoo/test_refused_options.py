"""Impossible options of models, alone or with the options of their data: a line that names the option."""

from typing import Any

import pytest

from datamodules import ClassificationDataModule, MatchingDataModule
from tests.datamodules.checks import refused
from zoo.registry import model_class

#: Model, options, and a part of the message; of the limits that types set (`datamodules.core.types`), one of each kind.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("AMVLSTM", {"attention": "Q"}, "model.attention='Q': choose one of none, question"),
    ("AMVLSTM", {"freeze_encoder": True}, "word vectors are fixed by --model.train_word_vectors false"),
    ("AMVLSTM", {"loss": "hinges"}, "model.loss='hinges': choose one of"),
    ("ARCI", {"filters": (4, 0)}, "model.filters=(4, 0): must be at least 1"),
    ("BOWRocchio", {"weight": 1.5}, "model.weight=1.5: must be in 0..1"),
    ("CharCNN", {"length": 122}, "model.length=122: the convolutions read at least 123 characters"),
    ("DSSM", {"hidden_sizes": ()}, "model.hidden_sizes=(): must be at least 1"),
    ("ExpaNet", {"hops": -1}, "model.hops=-1: use 0 (no memory) to 4"),
    ("ExpaNet", {"hops": 5}, "model.hops=5"),
    ("ExpaNet", {"tau": 1.0}, "model.tau changes a hard read only"),
    ("ExpaNet", {"final_tau": 0.5}, "model.final_tau changes a hard read only"),
    ("ExpaNet", {"straight_through": True}, "model.straight_through changes a hard read only"),
    ("ExpaNet", {"text_dropout": 1.0}, "model.text_dropout=1.0: must be 0 or more and below 1"),
    ("ExpaNet", {"bigrams": -1}, "model.bigrams=-1: must be 0 or more"),
    ("HMN", {"sentence_loss": -1.0}, "model.sentence_loss=-1.0: must be 0 or more"),
    ("KNNBiLSTM", {"features": "M9"}, "model.features='M9'"),
    ("KNNBiLSTM", {"lora_rank": 2}, "name one with --model.transformer"),
    ("KNNBiLSTM", {"lora_rank": 0, "transformer": "a"}, "model.lora_rank=0: must be at least 1"),
    ("KNNBiLSTM", {"lora_rank": 2, "transformer": "a", "freeze_encoder": True}, "omit one of the two"),
    ("LINE", {"epochs": 0}, "model.epochs=0"),
    ("LSTMRNN", {"cell": "gru"}, "model.cell"),
    ("MemoryEnsemble", {"members": []}, "choose some of lexical"),
    ("MemoryEnsemble", {"members": ["lexical", "lexical"]}, "choose some of lexical"),
    ("MemoryEnsemble", {"metric_layers": 0}, "model.metric_layers=0"),
    ("MemoryEnsemble", {"metric_steps": -1}, "model.metric_steps=-1"),
    (
        "MemoryEnsemble",
        {"lora_rank": 2, "transformer": "a", "metric_steps": 0},
        "omit --model.metric_steps 0",
    ),
    ("TransformerMatcher", {"transformer": "a", "mode": "tri"}, "model.mode='tri': choose one of cross, bi"),
    ("VDCNN", {"depth": 10}, "model.depth=10: choose one of 9, 17, 29, 49"),
]
NO_MEMORY = {"num_memories": 0}
#: Model, options, options of the data, and a part of the message.
REFUSED_DATA: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("AMVLSTM", {"loss": "hinge"}, {"batches": "pointwise"}, "model.loss=hinge"),
    ("AMVLSTM", {"loss": "softmax"}, {"batches": "pointwise"}, "model.loss=softmax"),
    ("AMVLSTM", {"loss": "hinge"}, {"goal": "classification"}, "use model.loss=cross_entropy"),
    ("BOWRocchio", {}, NO_MEMORY, "set --data.num_memories"),
    ("BOWRocchio", {}, {"validation_split": 0}, "model.weight: no validation rows"),
    ("CharCNN", {}, {**NO_MEMORY, "max_length": 1014}, "data.tokenizer=words: set --data.tokenizer characters"),
    ("CharCNN", {}, {**NO_MEMORY, "tokenizer": "characters"}, "model.length=1014, data.max_length=128: make them"),
    ("CharCRNN", {}, NO_MEMORY, "data.tokenizer=words: set --data.tokenizer characters"),
    ("VDCNN", {}, NO_MEMORY, "data.tokenizer=words: set --data.tokenizer characters"),
    ("DSSM", {}, {}, "DSSM reads the letters of words: set --data.characters true"),
    ("DSSM", {}, {"tokenizer": "bert", "characters": True}, "set --data.tokenizer to words or whitespace"),
    ("ExpaNet", {}, NO_MEMORY, "--model.hops 0"),
    ("KNNBiLSTM", {"features": "M3"}, NO_MEMORY, "--model.features M1"),
    ("KNNBiLSTM", {"features": "M1"}, {"characters": False}, "model.characters"),
    ("KNNBiLSTM", {"freeze_encoder": True}, {}, "model.freeze_encoder is on, but the encoder's weights are fresh"),
    ("KNNBiLSTM", {"transformer": "encoder"}, {}, "--data.tokenizer encoder"),
    ("NeighborVote", {}, NO_MEMORY, "set --data.num_memories"),
    ("SkipGram", {"expand": "join"}, NO_MEMORY, "set --data.num_memories, or --model.expand"),
    ("TransformerMatcher", {"transformer": "a"}, {}, "needs its own tokens: set --data.tokenizer"),
]  # fmt: skip
#: Options of models and data that agree.
ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("AMVLSTM", {"loss": "cross_entropy"}, {"batches": "pointwise"}),
    ("CharCNN", {"length": 130}, {**NO_MEMORY, "tokenizer": "characters", "max_length": 130}),
    ("DSSM", {}, {"characters": True}),
    ("ExpaNet", {"hops": 0}, NO_MEMORY),
]
PAIRS = ("AMVLSTM", "DSSM", "TransformerMatcher")


def data_of(name: str, options: dict[str, Any]) -> Any:
    return (MatchingDataModule if name in PAIRS else ClassificationDataModule)(**options)


@pytest.mark.parametrize(("name", "options", "message"), REFUSED, ids=str)
def test_an_impossible_option_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with refused(message):
        model_class(name)(**options)


@pytest.mark.parametrize(("name", "options", "data", "message"), REFUSED_DATA, ids=str)
def test_unreadable_data(name: str, options: dict[str, Any], data: dict[str, Any], message: str) -> None:
    with refused(message):
        model_class(name)(**options).check_data(data_of(name, data))


def test_options_that_agree() -> None:
    for name, options, data in ACCEPTED:
        model_class(name)(**options).check_data(data_of(name, data))
