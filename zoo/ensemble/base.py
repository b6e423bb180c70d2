"""Options, network and vectors of an ensemble: what its stages and its evaluation have in common."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.batch import BatchContents, ClassificationSpec
from datamodules.classification import ClassificationDataModule, label_numbers, targets_of
from datamodules.core.errors import InputError
from datamodules.core.types import Count, Size
from datamodules.corpora.multilabel import distinct_labels
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from datamodules.text_rows import TextSplit
from zoo.ensemble.answer import Answer
from zoo.ensemble.evidence import EnsemblePredictor
from zoo.ensemble.known_texts import KnownTexts
from zoo.ensemble.member import Input, Readings, SearchedMemory, Sizes
from zoo.ensemble.members import MEMBERS
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.new_labels import rarity_of
from zoo.layers.encoders import TransformerEncoder, WordEncoder, layers_of
from zoo.tasks.classification.held_out import HeldOutRows
from zoo.tasks.classification.metric_learning import MetricPlan, steps_for, using
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.encoders import EncodesMemory, ReadsTransformer
from zoo.tasks.fitted import Fitted
from zoo.tasks.model import Given
from zoo.tasks.predictor import evaluating, on_device

log = logging.getLogger("zoo")

#: Rows that are read together.
_ROWS = 256


class EnsembleModel(Fitted, EncodesMemory, ReadsTransformer, ClassificationTask):
    """Base of `MemoryEnsemble`: its members, fitted without gradients, their encoder, and the memory that they search.

    Args:
        members: some of `lexical` (support vector machine of n-grams), `named` (the same, which learns from the names
            of the classes as well), `naive_bayes` (of n-grams), `encoder` (kernel machine on the vectors of the
            `transformer`), `self_trained` (regression on these, which learns from the names of the classes and from
            texts without labels as well), `bag` (kernel machine on the mean of pre-trained word vectors),
            `lexical_vote` (of the retriever's memories), `dense_vote` (of the memories with the nearest vectors).
        metric_steps: steps in which the `transformer` is tuned until texts of one class are neighbors, unless
            held-out rows are more likely without; 0 = none, None = chosen by held-out rows.
        metric_layers: number of its upper layers that are tuned; None = half of them, or all, chosen by held-out
            rows. With `lora_rank`, their adapters are tuned.
        class_weight: weights of errors on rows of some labels, 1 for others; "balanced" = inversely proportional to
            the number of a label's training rows. Probabilities and thresholds are weighted, too.
    """

    depends_on_seed = True
    predictor_type = EnsemblePredictor
    reads_strings = True
    without_memory = ""
    keeps_directions = True

    def __init__(
        self,
        members: Sequence[str] = tuple(MEMBERS),
        metric_steps: Count | None = None,
        metric_layers: Size | None = None,
        class_weight: Literal["balanced"] | dict[str, float] | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if not members or set(members) - set(MEMBERS) or len(set(members)) < len(members):
            raise InputError(f"model.members={list(members)}: choose some of {', '.join(MEMBERS)}, each once")
        if metric_steps and self.transformer is None:
            raise InputError("model.metric_steps tunes a transformer: name one with --model.transformer")
        if self.lora_rank is not None and metric_steps == 0:
            raise InputError("model.lora_rank trains the transformer's metric: omit --model.metric_steps 0")
        if isinstance(class_weight, dict):  # YAML reads 0 as a number
            class_weight = {str(label): weight for label, weight in class_weight.items()}
            if not all(0 < weight < math.inf for weight in class_weight.values()):
                raise InputError(f"model.class_weight={class_weight}: use positive numbers, or balanced")
        self.class_weight = class_weight
        self.member_names = list(members)
        self.metric_steps, self.metric_layers = metric_steps, metric_layers
        is_self_trained = self.transformer is not None and "self_trained" in members
        self.guides_read = {"label_texts"} if is_self_trained or "named" in members else set()
        self.guides_read |= {"unlabelled_file"} if is_self_trained else set()
        self.uses_memory = bool({"neighbors", "memory"} & self._wanted_inputs)
        #: the table of the last fit.
        self.answer: Answer | None = None
        #: the stages for which the last fit had no time.
        self.skipped: list[str] = []
        #: reason -> members of the option that the network does without.
        self.unusable: dict[str, list[str]] = {}
        #: held-out rows of the last fit of the weights, for thresholds; None where all had a part in it.
        self.held_out: HeldOutRows | None = None

    # --- the network ---

    @property
    def _wanted_inputs(self) -> set[Input]:
        return {each for name in self.member_names for each in MEMBERS[name].reads}

    @override
    def build_network(self, given: Given[ClassificationSpec]) -> EnsembleNetwork:
        spec = given.spec
        words = None
        if self.transformer is None and given.word_vectors is not None and "bags" in self._wanted_inputs:
            num_words, size = given.word_vectors.shape
            words = WordEncoder(num_words, size, table=given.word_vectors, train_table=False)
        #: input that does not exist -> the reason.
        missing: dict[Input, str] = {}
        if self.transformer is None:
            missing["vectors"] = "vectors need a pre-trained encoder (model.transformer)"
        multilabel = spec.label_separator is not None
        if multilabel and self.class_weight is not None:
            raise InputError("model.class_weight: sets of labels have no class; omit it")
        if words is None:
            missing["bags"] = "bags need word vectors (data.word_vectors), without model.transformer"
        if spec.num_memories == 0 or spec.memory_labels != spec.labels:
            reason = "there are no memories (data.num_memories), or they have other labels than the texts"
            missing |= {"neighbors": reason, "memory": reason}
        members, self.unusable = [], {}
        for name in self.member_names:
            inputs = MEMBERS[name].reads | MEMBERS[name].learns_from
            if reasons := [missing[each] for each in missing if each in inputs]:
                self.unusable.setdefault(reasons[0], []).append(name)
            else:
                members.append(name)
        if not members:
            raise InputError(
                f"model.members={self.member_names}: none of them has anything to read here:"
                f" {'; '.join(dict.fromkeys(missing.values()))}"
            )
        encoder = None
        if self.transformer is not None and any("vectors" in MEMBERS[name].reads for name in members):
            encoder = TransformerEncoder(self.transformer, given.transformer_config, self.lora_rank)
        sizes = Sizes(
            num_classes=len(spec.labels),
            num_memories=spec.num_memories,
            vector_size=0 if encoder is None else encoder.size,
            bag_size=0 if words is None else words.table.shape[1],
            multilabel=multilabel,
        )
        return EnsembleNetwork(members, sizes, encoder, words)

    # --- vectors and memory ---

    def targets(self, rows: Rows) -> NDArray[np.int64]:
        """The classes of rows [n], those that only the memory has last; or their sets of the labels of the training."""
        return targets_of(rows, self.spec, self.new_labels if self.spec.label_separator is None else ())

    def encode(self, data: ClassificationDataModule, texts: list[str]) -> NDArray[np.float32]:
        """The texts' vectors [n, l], of length 1; 0 for a text without words."""
        return EnsemblePredictor(self, data).encode(texts)

    @override
    def read_memory(
        self, data: ClassificationDataModule, memory: Memory | None, num_texts: int | None = None
    ) -> None:
        network = self.network
        known = [] if memory is None else distinct_labels(memory.labels(), self.spec.label_separator)
        self.new_labels = tuple(label for label in known if label not in self.spec.labels)
        rows = memory.rows if isinstance(memory, FolderMemory) and self.new_labels else None
        target = None if rows is None else label_numbers(rows, self.labels, self.spec.label_separator)
        network.rarity = rarity_of(target, network.num_classes, len(self.new_labels))
        network.known = None
        if isinstance(memory, FolderMemory) and self.spec.memory_labels == self.spec.labels:
            network.known = KnownTexts(memory, self.spec, self.new_labels)
        if "memory" in network.members.inputs_of(network.active_members()):
            self.search_memory(data, memory)

    def search_memory(self, data: ClassificationDataModule, memory: Memory | None) -> None:
        """Let members search a memory by vectors, if one does; its texts are encoded unless they were before."""
        network = self.network
        if "memory" not in network.reads:
            return
        if not isinstance(memory, FolderMemory):
            network.memory = None
            return
        encoder = self.encoder_fingerprint(data)
        if network.memory is None or not network.memory.encoded.is_of(memory, encoder):
            encoded = EncodedMemory.open(memory, encoder, partial(self.encode, data))
            target = label_numbers(memory.rows, self.labels, self.spec.label_separator)
            network.memory = SearchedMemory(encoded, torch.from_numpy(target))

    # --- the encoder's metric ---

    def metric_plans(self, num_rows: int) -> list[MetricPlan]:
        """Plans of the tuning for n training rows, the cheapest first; empty if there is none.

        A kind of question, an intent, or a tone may need that all layers move, and far; a topic that few do.
        """
        encoder: TransformerEncoder | None = self.network.encoder
        steps = steps_for(num_rows) if self.metric_steps is None else self.metric_steps
        if encoder is None or encoder.published.is_static or not steps:
            return []
        plans = [MetricPlan(steps, layers=self.metric_layers)]
        if self.metric_layers is None:
            depth = len(layers_of(encoder.transformer))
            numbers = (steps, 2 * steps) if self.metric_steps is None else (steps,)
            plans += [MetricPlan(number, layers=depth, kept=1.0) for number in numbers]
        return plans

    def show_stage(self, stage: str) -> None:
        """Log the stage of the run."""
        if self._trainer is not None and self.trainer.is_global_zero:
            log.info("%s", stage)

    def has_time(self, stage: str, seconds: float) -> bool:
        """Return whether the first process has time for a stage of so many seconds; else the table names it."""
        if self.deadline == math.inf:
            return True
        left = self.deadline - time.monotonic()
        fits = seconds <= left if self._trainer is None else self.trainer.strategy.broadcast(seconds <= left)
        if not fits:
            reason = f"about {seconds:.0f} s, {left:.0f} left" if left > 0 else "no time left"
            self.skipped.append(f"{stage} ({reason})")
            log.info("skipped for --time_limit: %s", self.skipped[-1])
        return bool(fits)


def read_table(
    model: EnsembleModel,
    data: ClassificationDataModule,
    split: TextSplit,
    inputs: set[Input],
    rows: NDArray[np.int64] | None = None,
) -> Readings:
    """The inputs of members for some rows of a table, or all, on the CPU."""
    network: EnsembleNetwork = model.network
    memory = network.memory
    rows = np.arange(len(split.rows)) if rows is None else rows
    texts = split.rows.texts.take(rows)
    readings = Readings(texts)
    if batch_inputs := inputs & {"bags", "neighbors"}:
        dataset = data.dataset(split, BatchContents(memory_texts=False, new_labels=model.new_labels))
        with evaluating(model):
            batches = (on_device(batch, model) for batch in dataset.batches(_ROWS, rows))
            readings = Readings.join([network.read(batch, batch_inputs) for batch in batches] or [readings])
    readings = readings._replace(texts=texts, memory=memory if "memory" in inputs else None)
    if "ngrams" in inputs:
        readings = readings._replace(ngrams=network.ngrams(texts))
    encode = partial(model.encode, data) if memory is None else memory.encoded.vectors_of
    if "vectors" in inputs:
        readings = readings._replace(vectors=torch.from_numpy(encode(texts)))
    if "published" in inputs and network.encoder is not None and network.encoder_before is not None:
        with using(network.encoder, network.encoder_before):
            readings = readings._replace(published=torch.from_numpy(model.encode(data, texts)))
    if "guides" in inputs and network.guides is not None:
        guides = network.guides
        if "named" in network.used and guides.named:
            guides = guides._replace(ngrams=network.ngrams(guides.named))
        # Those that the encoder has made before it was tuned are of another one.
        if "self_trained" in network.used and (guides.vectors is None or network.encoder_before is not None):
            guides = guides.encoded_by(encode)
        readings = readings._replace(guides=guides)
    return readings
