"""Every option of every model changes what is trained, is refused, or is logged as without effect.

The other value of an option is one of its type. `CASES` has another one where the type names none or other options are
needed, and None where no value changes a result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from datamodules.base import DataModule
from datamodules.core.classes import option_defaults
from datamodules.core.errors import InputError
from tests.sentence_folders import write_bert
from tests.zoo.adapters import ADAPTERS, SIZES, Adapter
from tests.zoo.conftest import COMMON_WORDS, TOPIC_WORDS, trainer
from zoo.registry import MODELS, model_class
from zoo.runs.finishing import fit
from zoo.tasks.base import Task
from zoo.tasks.retrieval.task import RetrievalTask

CHANGES, REFUSED, LOGGED = "changes the result", "is refused", "is logged"


class Case(NamedTuple):
    """Another value of an option, and what it must do next to some other options."""

    value: Any
    #: the other options, with both values.
    options: Mapping[str, Any] = MappingProxyType({})
    #: the options of a model's data, with both values.
    data: Mapping[str, Any] = MappingProxyType({})
    effect: str = CHANGES


class Option(NamedTuple):
    """An option of a class: its type, and its value where no other is given."""

    type: Any
    value: Any

    def other(self) -> Any:
        """Another value by the type; None where only a table can name one."""
        if isinstance(self.value, bool):
            return not self.value
        if isinstance(self.value, int):
            return self.value + 1
        if isinstance(self.value, float):
            return self.value / 2 if self.value > 0.5 else self.value + 0.25
        if isinstance(self.value, tuple) and self.value:
            return (*self.value[:-1], self.value[-1] + 1)
        choices = get_args(self.type) if get_origin(self.type) is Literal else ()
        return next((choice for choice in choices if choice != self.value), None)


def constructor_options(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Option]:
    """The options of all constructors of a class; `given` are values in place of the defaults."""
    types: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        types |= get_type_hints(vars(base).get("__init__", object))
    defaults = {**option_defaults(kind), **given}
    return {name: Option(types.get(name), defaults[name]) for name in option_defaults(kind)}


def wrong_options(
    kind: type[Any], options: Mapping[str, Option], effect: Callable[[str, Case], str]
) -> list[str]:
    """The options of a class with another effect than that of their case.

    An option without a case must change the result by another value of its type.
    """
    bases = [base.__name__ for base in kind.__mro__]
    wrong = []
    for name, option in options.items():
        found = (CASES[base][name] for base in bases if name in CASES.get(base, {}))
        case = next(found, Case(option.other()))
        if case is None:
            continue
        if case.value is None:
            wrong.append(f"{kind.__name__}.{name}: has no case in the table of this test")
        elif (done := effect(name, case)) != case.effect:
            wrong.append(f"{kind.__name__}.{name}={case.value!r} {done}; expected: {case.effect}")
    return wrong


def plain_values(value: Any) -> Iterator[Any]:
    """Values that can be compared, of nested lists and mappings of arrays."""
    if isinstance(value, Tensor | np.ndarray):
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        yield array.shape, array.tobytes()
    elif isinstance(value, Mapping):
        yield from plain_values(list(value.items()))
    elif isinstance(value, list | tuple) and value:
        for each in value:
            yield from plain_values(each)
    else:
        yield repr(value)


#: The file of a model of the same kind that was trained with another seed.
TRAINED = "trained.ckpt"
BERT, VECTORS = "tiny-bert", "vectors.txt"
TOKENS = {"tokenizer": BERT}
TRANSFORMER = {"transformer": BERT}


def first_weight(model: Task) -> list[str]:
    return [next(name for name, _ in model.network.named_parameters())]


def descent(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def falling(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 / (1 + epoch))


#: Class -> option -> case; of the classes that a model inherits from, the first with the option counts.
CASES: dict[str, dict[str, Case | None]] = {
    "Task": {
        "init_from": Case(TRAINED),
        "optimizer": Case(descent),
        "lr_scheduler": Case(falling),
        "freeze": Case(first_weight, {"init_from": TRAINED}),
        "learning_rates": Case({"*": 0.5}),
    },
    "Fitted": {
        "init_from": Case(TRAINED, effect=REFUSED),
        "optimizer": Case(descent, effect=LOGGED),
        "lr_scheduler": Case(falling, effect=LOGGED),
        "freeze": Case(["*"], effect=REFUSED),
        "learning_rates": Case({"*": 0.5}, effect=REFUSED),
    },
    "ReadsWordVectors": {"train_word_vectors": Case(True, data={"word_vectors": VECTORS})},
    "ReadsTransformer": {"transformer": Case(BERT, data=TOKENS), "lora_rank": Case(2, TRANSFORMER, TOKENS)},
    "FrozenEncoder": {"freeze_encoder": Case(True, TRANSFORMER, TOKENS)},
    "MemoryEnsemble": {
        "members": Case(["lexical"]),
        "class_weight": Case("balanced"),
        "transformer": Case(BERT, data=TOKENS),
        "metric_steps": Case(2, {**TRANSFORMER, "metric_steps": 0}, TOKENS),
        "metric_layers": Case(2, {**TRANSFORMER, "metric_steps": 2}, TOKENS),
        "lora_rank": Case(2, {**TRANSFORMER, "metric_steps": 2}, TOKENS),
    },
    "KNNBiLSTM": {
        "attention": Case("softmax", {"features": "M5"}),
        "characters": Case(False, {"characters": True}),
        "char_hidden_size": Case(5, {"characters": True}),
    },
    "ExpaNet": {
        "tau": Case(1.0, {"read": "hard"}),
        "final_tau": Case(0.5, {"read": "hard"}),
        "straight_through": Case(True, {"read": "hard"}),
    },
    "MemNN": {"loss": Case("joint", effect=LOGGED)},
    "AMVLSTM": {
        "attention_scale": Case("length", {"attention": "question"}),
        "freeze_encoder": Case(True, TRANSFORMER, TOKENS),
    },
    "MatchingTask": {"loss": Case("cross_entropy")},
    "RetrievalTask": {"mix_retriever": Case(True, data={"num_hits": 5})},
    "TransformerMatcher": {"transformer": Case("other-bert")},
    "CharCNN": {"length": Case(140, effect=REFUSED)},
    "RetrievalBM25": {"analyzer": Case("english")},
    "RetrievalULM": {"analyzer": Case("english")},
    "BOWRocchio": {"weight": Case(0.4)},
    "TrigramRetrieval": {"num_trigrams": Case(300)},
    "NGrams": {"max_features": Case(9)},
    "VDCNN": {"depth": Case(17)},
    "WordAverages": {"epochs": Case(3)},
    "HMN": {"loss": Case("joint")},
}

#: The options with which others have an effect, where the first variant of the adapters lacks these.
BASES: dict[str, dict[str, Any]] = {
    "MemoryEnsemble": {"members": ["lexical", "encoder", "lexical_vote"]},
    "ExpaNet": {"word_size": 10},
    "KNNBiLSTM": {**SIZES, "features": "M7"},
    "TransformerMatcher": {"transformer": BERT},
}


class Training:
    """Trains one model with different options, on tables of a few rows, for two steps."""

    def __init__(self, name: str, adapter: Adapter) -> None:
        self.kind, self.adapter = model_class(name), adapter
        first = next(iter(adapter.variants.get(name, {"": {}}).values()))
        self.base = BASES.get(name, first)
        self.results: dict[str, tuple[Any, set[str], Task]] = {}

    def effect(self, option: str, case: Case) -> str:
        """The effect of another value of an option."""
        value = case.value
        if value is first_weight:
            value = first_weight(self.train(case.options, case.data)[2])
        try:
            result, idle, _ = self.train({**case.options, option: value}, case.data)
        except InputError as error:
            return REFUSED if case.effect == REFUSED else f"{REFUSED}: {error}"
        if f"model.{option}" in idle:
            return LOGGED
        same = result == self.train(case.options, case.data)[0]
        return "changes nothing" if same else CHANGES

    def train(self, options: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Any, set[str], Task]:
        """Weights and scores; the options that are logged as without effect; the model."""
        key = repr((sorted(options.items()), changes))
        if key not in self.results:
            self.results[key] = self._train({**self.base, **options}, changes)
        return self.results[key]

    def _train(self, options: dict[str, Any], changes: Mapping[str, Any], seed: int = 5) -> Any:
        data = self.data(changes)
        if TRAINED in options.values() and seed == 5 and not Path(TRAINED).exists():
            others = {name: value for name, value in options.items() if name not in ("init_from", "freeze")}
            self._train(others, changes, seed=6)
        pl.seed_everything(seed, verbose=False)
        model = self.kind(**options)
        run = trainer(max_epochs=2, limit_train_batches=1, limit_val_batches=1, num_sanity_val_steps=0)
        fit(run, model, data)
        if seed != 5:
            run.save_checkpoint(TRAINED)
        scores = {name: value for name, value in run.callback_metrics.items() if "time" not in name}
        idle = {name for name, _ in model.idle_options(data)}
        results = [model.network.state_dict(), scores, self.output(model, data)]
        return list(plain_values(results)), idle, model

    def output(self, model: Task, data: DataModule) -> Any:
        """The output for a batch; a collection is ranked by scores alone."""
        if isinstance(model, RetrievalTask):
            return None
        (batch, *_) = data.val_dataloader()
        with torch.no_grad():
            return model.eval()(batch)

    def data(self, changes: Mapping[str, Any]) -> DataModule:
        """The data of the adapter, with other options."""
        given = {**({"tokenizer": BERT} if self.kind.__name__ == "TransformerMatcher" else {}), **changes}
        if not given:
            return self.adapter.data
        return type(self.adapter.data)(**{**asdict(self.adapter.data.options), **given})


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_option_has_an_effect(name: str, adapters: Any, tiny_bert: Path) -> None:
    words = ["apple", "iron", "rain", "the", "of", "near", "where", "is", "in", "old"]
    Path(VECTORS).write_text("".join(f"{word} {i} {i % 3} 1\n" for i, word in enumerate(words)))
    write_bert(Path("other-bert"), [*COMMON_WORDS, *chain(*TOPIC_WORDS.values())], hidden_size=8)
    kind = next((kind for kind, adapter in ADAPTERS.items() if name in adapter.variants), "ranking")
    training = Training(name, adapters(kind))
    options = constructor_options(training.kind, training.base)
    wrong = wrong_options(training.kind, options, training.effect)
    assert not wrong, "\n".join(wrong)
