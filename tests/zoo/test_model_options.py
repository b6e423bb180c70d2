"""Every option of every model changes what is trained, is refused, or is logged as without effect.

The other value of an option is one of its type. `CASES` has another one where the type names none or other options are
needed, or the reason why no value changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytorch_lightning as pl
import torch

from datamodules.base import DataModule
from datamodules.core.errors import InputError
from tests.zoo import option_cases as cases
from tests.zoo.adapters import ADAPTERS, SIZES, Adapter
from tests.zoo.conftest import trainer
from zoo.registry import MODELS, model_class
from zoo.runs.finishing import fit
from zoo.tasks.base import Task
from zoo.tasks.retrieval.task import RetrievalTask


class OfModel(NamedTuple):
    """A value that is made from the model that was trained with other options."""

    make: Callable[[Task], Any]


#: The file of a model of the same kind that was trained with another seed.
TRAINED = "trained.ckpt"
BERT, VECTORS = "tiny-bert", "vectors.txt"
TOKENS = {"tokenizer": BERT}
TRANSFORMER = {"transformer": BERT}


def first_weight(model: Task) -> list[str]:
    """The name of a weight, to freeze it."""
    return [next(name for name, _ in model.network.named_parameters())]


def descent(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def falling(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 / (1 + epoch))


#: Class -> option -> case; of the classes that a model inherits from, the first with the option counts.
CASES: cases.Cases = {
    "Task": {
        "init_from": cases.Case(TRAINED),
        "optimizer": cases.Case(descent),
        "lr_scheduler": cases.Case(falling),
        "freeze": cases.Case(OfModel(first_weight), {"init_from": TRAINED}),
        "learning_rates": cases.Case({"*": 0.5}),
        "compile": cases.NoEffect("the backend of torch.compile"),
    },
    "Fitted": {
        "init_from": cases.Case(TRAINED, effect=cases.REFUSED),
        "optimizer": cases.Case(descent, effect=cases.LOGGED),
        "lr_scheduler": cases.Case(falling, effect=cases.LOGGED),
        "freeze": cases.Case(["*"], effect=cases.REFUSED),
        "learning_rates": cases.Case({"*": 0.5}, effect=cases.REFUSED),
        "compile": cases.Case("inductor", effect=cases.REFUSED),
    },
    "ReadsWordVectors": {"train_word_vectors": cases.Case(True, data={"word_vectors": VECTORS})},
    "ReadsSpelling": {
        "characters": cases.Case(False, {"characters": True}),
        "char_hidden_size": cases.Case(5, {"characters": True}),
    },
    "ReadsTransformer": {
        "transformer": cases.Case(BERT, data=TOKENS),
        "lora_rank": cases.Case(2, TRANSFORMER, TOKENS),
    },
    "FrozenEncoder": {"freeze_encoder": cases.Case(True, TRANSFORMER, TOKENS)},
    "MemoryEnsemble": {
        "members": cases.Case(["lexical"]),
        "class_weight": cases.Case("balanced"),
        "transformer": cases.Case(BERT, data=TOKENS),
        "metric_steps": cases.Case(2, {**TRANSFORMER, "metric_steps": 0}, TOKENS),
        "metric_layers": cases.Case(2, {**TRANSFORMER, "metric_steps": 2}, TOKENS),
        "lora_rank": cases.Case(2, {**TRANSFORMER, "metric_steps": 2}, TOKENS),
    },
    "KNNBiLSTM": {
        "attention": cases.Case("softmax", {"features": "M5"}),
    },
    "ExpaNet": {
        "tau": cases.Case(1.0, {"read": "hard"}),
        "final_tau": cases.Case(0.5, {"read": "hard"}),
        "straight_through": cases.Case(True, {"read": "hard"}),
    },
    "MemNN": {"loss": cases.Case("joint", effect=cases.LOGGED)},
    "AMVLSTM": {
        "attention_scale": cases.Case("length", {"attention": "question"}),
        "slices": cases.Case(2, {"similarity": "tensor"}),
        "freeze_encoder": cases.Case(True, TRANSFORMER, TOKENS),
    },
    "MatchingTask": {"loss": cases.Case("cross_entropy"), "margin": cases.Case(30.0, {"loss": "hinge"})},
    "RetrievalTask": {"mix_retriever": cases.Case(True, data={"num_hits": 5})},
    "TransformerMatcher": {"transformer": cases.Case("other-bert")},
    "CharCNN": {"length": cases.Case(140, effect=cases.REFUSED)},
    "RetrievalBM25": {"analyzer": cases.Case("english")},
    "RetrievalULM": {"analyzer": cases.Case("english")},
    "BOWRocchio": {"weight": cases.Case(0.4)},
    "TrigramRetrieval": {"num_trigrams": cases.Case(300)},
    "NGrams": {"max_features": cases.Case(9)},
    "VDCNN": {"depth": cases.Case(17)},
    "HMN": {"loss": cases.Case("joint")},
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

    def effect(self, option: str, case: cases.Case) -> str:
        """The effect of another value of an option."""
        value = case.value
        if isinstance(value, OfModel):
            value = value.make(self.train(case.options, case.data)[2])
        try:
            result, idle, _ = self.train({**case.options, option: value}, case.data)
        except InputError as error:
            return cases.REFUSED if case.effect == cases.REFUSED else f"{cases.REFUSED}: {error}"
        if f"model.{option}" in idle:
            return cases.LOGGED
        same = result == self.train(case.options, case.data)[0]
        return "changes nothing" if same else cases.CHANGES

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
        return (
            list(cases.plain_values([model.network.state_dict(), scores, self.output(model, data)])),
            idle,
            model,
        )

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
        made: DataModule = type(self.adapter.data)(**{**asdict(self.adapter.data.options), **given})
        return made


def kind_of(name: str) -> str:
    """The kind of data on which a model is trained."""
    return next((kind for kind, adapter in ADAPTERS.items() if name in adapter.variants), "ranking")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_option_has_an_effect(name: str, adapters: Any, tiny_bert: Path) -> None:
    words = ["apple", "iron", "rain", "the", "of", "near", "where", "is", "in", "old"]
    Path(VECTORS).write_text("".join(f"{word} {i} {i % 3} 1\n" for i, word in enumerate(words)))
    cases.write_other_bert(tiny_bert)
    training = Training(name, adapters(kind_of(name)))
    options = cases.constructor_options(training.kind, training.base)
    wrong = cases.wrong_options([training.kind], options, CASES, training.effect)
    assert not wrong, "\n".join(wrong)
