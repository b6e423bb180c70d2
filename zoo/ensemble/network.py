"""The members in one network, with what they read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from datamodules.batch import ClassificationBatch
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.ensemble.known_texts import IN_MEMORY, KnownTexts
from zoo.ensemble.member import Input, Readings, SearchedMemory, Sizes
from zoo.ensemble.members import REFERENCES, Members, is_reference
from zoo.ensemble.new_labels import combine, votes_of
from zoo.ensemble.outputs import Outputs, Votes
from zoo.ensemble.pool import Pool
from zoo.layers.bags import VectorBag
from zoo.layers.encoders import TransformerEncoder, WordEncoder
from zoo.layers.tfidf import NGramTfidf
from zoo.tasks.classification.guides import Guides
from zoo.tasks.classification.metric_learning import MetricPlan
from zoo.tasks.outputs import ClassificationOutput

#: Parts whose values are fitted without gradients.
_FITTED = ("members.", "ngrams.", "bag.")


class EnsembleNetwork(nn.Module):
    """Members, the encoder that they read, and the pool of their outputs."""

    #: the memory that is searched by vectors; it is in no checkpoint.
    memory: SearchedMemory | None = None
    #: the texts of a memory with the labels of the model; in no checkpoint either.
    known: KnownTexts | None = None

    def __init__(
        self, members: list[str], sizes: Sizes, encoder: TransformerEncoder | None, words: WordEncoder | None
    ) -> None:
        """Make the members; `encoder` is None where none reads vectors, and `words` where none reads bags."""
        super().__init__()
        self.sizes, self.num_classes = sizes, sizes.num_classes
        self.encoder, self.words = encoder and encoder.eval(), words  # without dropout, also before `train`
        self.bag = None if words is None else VectorBag(len(words.table))
        self.ngrams = NGramTfidf()
        references = [name for name in REFERENCES if name != "regression" or "encoder" in members]
        self.members = Members([*members, *references], sizes)
        self.requires_grad_(False)
        #: members and references for which the fit had no time, or too many rows.
        self.skipped: set[str] = set()
        #: None until the members are fitted.
        self.pool: Pool | None = None
        #: the texts of no row that members are fitted on; those without a class are in no checkpoint.
        self.guides: Guides | None = None
        #: the weights of the encoder before it was tuned on the training rows, by name; None = it was not.
        self.encoder_before: dict[str, Tensor] | None = None
        #: the plan by which it was tuned.
        self.metric_plan: MetricPlan | None = None
        #: version of the memory whose rows the members were fitted to; 0 = they were fitted to the training rows.
        self.fitted_version = 0
        #: of the classes that only the memory has, see `rarity_of`.
        self.rarity = torch.ones(0)
        #: a text must not retrieve duplicates of itself: on where texts come from the memory's own table.
        self.excludes_duplicates = False
        #: classify by every row of the answer's table.
        self.measures_table = False

    @property
    def used(self) -> list[str]:
        """Names of members and references, without those that the fit skipped."""
        return [name for name in self.members if name not in self.skipped]

    @property
    def applied(self) -> list[str]:
        """Names of those that still have their inputs: a tuned encoder makes no vectors as it was published."""
        reads = {name: self.members.by_name[name].reads for name in self.used}
        return [name for name in reads if self.encoder_before is None or "published" not in reads[name]]

    @property
    def names(self) -> list[str]:
        """Names of the members among them, without the references that the table compares them with."""
        return [name for name in self.used if not is_reference(name, self.sizes.multilabel)]

    @property
    def reads(self) -> set[Input]:
        """The inputs of those that are used."""
        return self.members.inputs_of(self.used)

    @override
    def train(self, mode: bool = True) -> Self:
        """Switch the mode; the encoder has no training mode: its vectors are the same every time."""
        super().train(mode)
        if self.encoder is not None:
            self.encoder.eval()
        return self

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes."""
        if self.pool is None:
            raise InputError("the members are not fitted yet: train the model with zoo.runs.train or zoo fit")
        names = self.active_members()
        readings = self.read(batch, self.members.inputs_of(names))
        outputs = self.members.classify(readings, names)
        blank = self.blank(len(batch.row)).to(batch.row.device)
        logits, contributions = combine(outputs, self.pool, self.rarity, blank)
        familiarity = self.pool.familiarity(outputs, logits)
        if self.known is not None and not self.excludes_duplicates:
            change = self.known.answer(readings.texts, logits)
            if change is not None:
                logits, contributions = logits + change, {**contributions, IN_MEMORY: change}
                familiarity = familiarity.masked_fill(change.flatten(1).any(dim=1), math.inf)
        memory_weight, retrieved = _memory_weights(outputs, self.pool, batch)
        table = {}
        if self.measures_table:
            table = self.pool.answers(self.pool.table_logits(outputs) | {"all": logits})
        output = ClassificationOutput(
            logits, memory_weight, None, readings.vectors, contributions, retrieved, table, familiarity
        )
        return output._replace(chosen=self.pool.answer("all", logits)) if self.sizes.multilabel else output

    def blank(self, number: int) -> Tensor:
        """Logits of n texts without any member, by which all classes are equal: 0 [n, C], or of sets [n, 2, C]."""
        return torch.zeros(number, *([2] if self.sizes.multilabel else []), self.num_classes)

    def active_members(self) -> list[str]:
        """The members whose outputs are needed: those with some weight, or all, and references, for the table."""
        if self.pool is None or self.measures_table:
            return self.applied
        combinations = ("all", "memory") if len(self.rarity) else ("all",)
        weights = [self.pool.familiar, *(self.pool.weights.get(each, {}) for each in combinations)]
        return [name for name in self.names if any(each.get(name) for each in weights)]

    def read(self, batch: ClassificationBatch, inputs: set[Input]) -> Readings:
        """The inputs of members for the texts of a batch."""
        readings = Readings(batch.text_string or [""] * len(batch.row))
        if "ngrams" in inputs:
            readings = readings._replace(ngrams=self.ngrams(readings.texts))
        if "neighbors" in inputs:
            fields = batch.memory_score, batch.memory_mask, batch.memory_target
            readings = readings._replace(neighbors=Votes(*fields, self.num_classes))
        if "vectors" in inputs:
            assert self.encoder is not None
            readings = readings._replace(vectors=self.encoder(batch.word, batch.char, batch.text))
        if "bags" in inputs:
            assert self.bag is not None
            assert self.words is not None
            readings = readings._replace(bags=self.bag(batch, self.words))
        if "memory" in inputs:
            readings = readings._replace(memory=self.memory)
        return readings.without_duplicates() if self.excludes_duplicates else readings

    def get_extra_state(self) -> PlainDict:
        """Pool, words of classes, version of the members and earlier weights of the encoder, for the state dict."""
        pool = None if self.pool is None else self.pool.describe()
        plan = None if self.metric_plan is None else self.metric_plan._asdict()
        guides = None if self.guides is None else self.guides.describe()
        tuning = {"encoder_before": self.encoder_before, "metric_plan": plan}
        values = {"pool": pool, "guides": guides, "version": self.fitted_version, **tuning}
        return {**values, "skipped": sorted(self.skipped)}

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the values of a state dict."""
        self.skipped = set(state["skipped"])
        self.pool = None if state["pool"] is None else Pool.of(state["pool"])
        self.guides = None if state["guides"] is None else Guides.of(state["guides"])
        self.encoder_before, self.fitted_version = state["encoder_before"], state["version"]
        self.metric_plan = None if state["metric_plan"] is None else MetricPlan(**state["metric_plan"])

    def describe_members(self) -> PlainDict:
        """The part of the state dict that is fitted without gradients, and the version of the memory."""
        fitted = {name: value for name, value in self.state_dict().items() if name.startswith(_FITTED)}
        return {"version": self.fitted_version, **fitted}

    def use_members(self, values: PlainDict) -> None:
        """Take values that `describe_members` described."""
        self.load_state_dict(self.state_dict() | {name: values[name] for name in values if name != "version"})
        self.fitted_version = int(values["version"])


def _memory_weights(
    outputs: Mapping[str, Outputs], pool: Pool, batch: ClassificationBatch
) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Each memory's share of its vote, times the vote's weight among all votes: of the batch, and of other searches."""
    votes = votes_of(outputs)
    weights = {name: pool.weights["all"].get(name, 0.0) for name in votes}
    total = max(sum(weights.values()), 1e-9)
    of_batch, retrieved = torch.zeros_like(batch.memory_score), []
    for name, vote in votes.items():
        shares = vote.shares(pool.calibrations[name][0]) * (weights[name] / total)
        if vote.rows is None:
            of_batch = of_batch + shares
        else:
            retrieved.append((vote.rows, vote.score, shares))
    return of_batch, retrieved
