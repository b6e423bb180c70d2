"""Options, network and encoder of an ensemble: what its stages and its evaluation have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, ClassificationSpec
from datamodules.classification import label_numbers
from datamodules.core.errors import InputError
from datamodules.core.lightning import OptimizerCallable
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from datamodules.text.pooling import POOLINGS, Pooling
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.answer import Answer, AnswerScores
from zoo.ensemble.evidence import EnsemblePredictor
from zoo.ensemble.member import Input, Readings, SearchedMemory, Sizes
from zoo.ensemble.members import MEMBERS
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.new_labels import rarity_of
from zoo.layers.encoders import BiLSTMEncoder, TransformerEncoder
from zoo.tasks.base import check_choice, check_sizes
from zoo.tasks.classification.held_out import HeldOutRows
from zoo.tasks.classification.metric_learning import LearnsMetric, MetricPlan
from zoo.tasks.encoders import EncodesMemory, ReadsSpelling
from zoo.tasks.predictor import evaluating, on_device

log = logging.getLogger("zoo")

#: Rows that are read together.
_ROWS = 256
_NO_VOTE = "there are no memories (data.num_memories), or they have other labels than the texts"
#: Input -> the reason why no member can read it, where it does not exist.
_REASONS: dict[Input, str] = {
    "bags": (
        "bags need the word vectors of a file (data.word_vectors), without model.transformer and"
        " model.train_word_vectors"
    ),
    "neighbors": _NO_VOTE,
    "memory": _NO_VOTE,
}


class EnsembleModel(EncodesMemory, ReadsSpelling, LearnsMetric):
    """Base of `MemoryEnsemble`: its members, its encoder, and the memory that they search."""

    predictor_type = EnsemblePredictor
    reads_strings = True
    without_memory = ""
    keeps_directions = True

    def __init__(
        self,
        members: Sequence[str] = ("lexical", "encoder", "bag", "lexical_vote", "dense_vote"),
        train_transformer: bool = False,
        pooling: Pooling | None = None,
        metric_steps: int | None = None,
        word_size: int = 100,
        characters: bool = False,
        hidden_size: int = 100,
        dropout: float = 0.3,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=2e-3, fused=True),
        max_ngram: int = 2,
        max_letters: int = 5,
        c: float = 1.0,
        few_rows: int = 500,
        folds: int = 5,
        **shared: Any,
    ) -> None:
        """Choose the members. All but the encoder are fitted without gradients, after the encoder's training.

        Args:
            members: some of `lexical` (TF-IDF, linear), `encoder`, `bag` (mean of pre-trained word vectors, kernel
                machine), `lexical_vote` (of the retriever's memories), `dense_vote` (of the nearest encodings).
            train_transformer: train the `transformer`; otherwise it is frozen, and a kernel machine reads its vectors.
            pooling: reduction of the states of a `transformer` to a text's vector; None = as published.
            metric_steps: steps in which a frozen `transformer` is tuned until texts of one class are neighbors, unless
                held-out rows are more likely without; 0 = none, None = chosen by the number of rows.
            word_size: size of word vectors, where the data brings none (`--data.word_vectors`).
            characters: append the last state of an LSTM over a word's characters to its vector.
            hidden_size: state size of one direction of the BiLSTM.
            dropout: on word vectors.
            optimizer: makes the optimizer of the encoder.
            max_ngram: words of the lexical member's longest n-gram of words.
            max_letters: letters of its longest n-gram of letters; 0 = it reads whole words only.
            c: the lexical member's weight of training errors against small weights.
            few_rows: with fewer validation rows than this, weights are fitted on cross-fitted training rows as well.
            folds: number of parts into which these training rows are divided.
            **shared: options of `ReadsSpelling`, `LearnsMetric` and `Task`.
        """
        super().__init__(
            metric_steps=metric_steps,
            word_size=word_size,
            characters=characters,
            optimizer=optimizer,
            **shared,
        )
        check_choice("pooling", pooling or "mean", POOLINGS)
        if pooling is not None and self.transformer is None:
            raise InputError(
                f"model.pooling={pooling} reduces the states of model.transformer, which names none; omit it"
            )
        check_sizes(hidden_size=hidden_size, max_ngram=max_ngram)
        if not members or set(members) - set(MEMBERS) or len(set(members)) < len(members):
            raise InputError(f"model.members={list(members)}: choose some of {', '.join(MEMBERS)}, each once")
        if max_letters < 0 or max_letters == 1 or not c > 0:
            raise InputError(
                f"model.max_letters={max_letters}, model.c={c}: use 0 or at least 2, and more than 0"
            )
        if folds < 2 or few_rows < 0:
            raise InputError(f"model.folds={folds}, model.few_rows={few_rows}: use at least 2, and 0 or more")
        if train_transformer and self.transformer is None:
            raise InputError("model.train_transformer is on, but model.transformer names none")
        if self.lora_rank is not None and not train_transformer and metric_steps == 0:
            raise InputError(
                "model.lora_rank trains the transformer: set --model.train_transformer true, or --model.metric_steps"
            )
        self.member_names, self.train_transformer, self.pooling = list(members), train_transformer, pooling
        self.hidden_size, self.dropout = hidden_size, dropout
        self.max_ngram, self.max_letters, self.c = max_ngram, max_letters, c
        self.few_rows, self.folds = few_rows, folds
        self.uses_memory = bool({"neighbors", "memory"} & self._wanted_inputs)
        #: the table of the last fit.
        self.answer: Answer | None = None
        self._answer_scores: AnswerScores | None = None
        #: held-out rows of the last fit of the weights, by which thresholds are chosen.
        self.held_out: HeldOutRows | None = None
        #: of each epoch of the encoder's training, up to the best one once it is over: number of batches of a step
        #: (`accumulated`), and options of each group of the optimizer, such as its learning rate (`groups`).
        self.epochs: list[PlainDict] = []

    @override
    def idle_options(self, data: DataModule) -> Iterator[tuple[str, str]]:
        yield from super().idle_options(data)
        if data.options.memory_max_length is not None:
            yield (
                "data.memory_max_length",
                "memories vote with their labels, and are encoded like texts (data.max_length)",
            )

    # --- the network ---

    @property
    def _wanted_inputs(self) -> set[Input]:
        return {each for name in self.member_names for each in MEMBERS[name].reads}

    @property
    def trains_encoder(self) -> bool:
        """Return whether an encoder is trained by gradients."""
        is_trained = self.transformer is None or self.train_transformer
        return is_trained and "vectors" in self._wanted_inputs

    @override
    def metric_plan(self, num_rows: int) -> MetricPlan | None:
        encoder = self.network.encoder
        has_layers = isinstance(encoder, TransformerEncoder) and not encoder.published.is_static
        return super().metric_plan(num_rows) if has_layers and not self.trains_encoder else None

    @property
    @override
    def has_epochs(self) -> bool:
        return self.trains_encoder

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> EnsembleNetwork:
        wanted = self._wanted_inputs
        needs_words = self.transformer is None and bool({"vectors", "bags"} & wanted)
        words = self.make_words(spec, word_vectors) if needs_words else None
        missing: set[Input] = set()
        # Trained vectors are the encoder's: a bag of them would have memorized the training rows.
        if words is None or words.table.requires_grad:
            missing |= {"bags"}
        if spec.num_memories == 0 or spec.memory_labels != spec.labels:
            missing |= {"neighbors", "memory"}
        members = [name for name in self.member_names if not MEMBERS[name].reads & missing]
        inputs: set[Input] = {each for name in members for each in MEMBERS[name].reads}
        if not members:
            raise InputError(
                f"model.members={self.member_names}: none of them has anything to read here:"
                f" {'; '.join(dict.fromkeys(_REASONS.values()))}"
            )
        if self.trains_encoder:
            inputs.add("vectors")  # also for a vote that is not used
        encoder: BiLSTMEncoder | TransformerEncoder | None = None
        if "vectors" in inputs and words is not None:
            encoder = BiLSTMEncoder(words, self.hidden_size, self.dropout)
        elif "vectors" in inputs and self.transformer is not None:
            encoder = TransformerEncoder(self.transformer, self.pooling, transformer_config, self.lora_rank)
        sizes = Sizes(
            num_classes=len(spec.labels),
            num_memories=spec.num_memories,
            vector_size=0 if encoder is None else encoder.size,
            bag_size=0 if words is None else words.table.shape[1],
            trains_encoder=self.trains_encoder,
            max_ngram=self.max_ngram,
            max_letters=self.max_letters,
            c=self.c,
        )
        return EnsembleNetwork(members, sizes, encoder, words if "bags" in inputs else None)

    @property
    def unusable(self) -> dict[str, list[str]]:
        """Reason -> members of the option that the network does without."""
        by_reason: dict[str, list[str]] = {}
        for name in self.member_names:
            if name not in self.network.names:
                reason = next(_REASONS[each] for each in MEMBERS[name].reads if each in _REASONS)
                by_reason.setdefault(reason, []).append(name)
        return by_reason

    @contextmanager
    def using(self, network: EnsembleNetwork) -> Iterator[None]:
        """Put another network in place of the model's for a while."""
        own, self.network = self.network, network
        try:
            yield
        finally:
            self.network = own

    # --- vectors and memory ---

    @property
    def text_data(self) -> TextRowsDataModule[Any]:
        """The data of the trainer."""
        data: Any = self.data
        return cast("TextRowsDataModule[Any]", data)

    def encode(self, data: TextRowsDataModule[Any], texts: list[str]) -> NDArray[np.float32]:
        """The texts' vectors [n, l], of length 1; 0 for a text without words."""
        return EnsemblePredictor(self, data).encode(texts)

    @override
    def read_memory(
        self, data: TextRowsDataModule[Any], memory: Memory | None, num_texts: int | None = None
    ) -> None:
        network = self.network
        known = [] if memory is None else memory.labels()
        assert self.spec is not None
        self.new_labels = tuple(label for label in known if label not in self.spec.labels)
        rows = memory.rows if isinstance(memory, FolderMemory) and self.new_labels else None
        target = None if rows is None else label_numbers(rows, self.labels)
        network.rarity = rarity_of(target, network.num_classes, len(self.new_labels))
        if "memory" in network.members.inputs_of(network.active_members()):
            self.search_memory(data, memory)

    def search_memory(self, data: TextRowsDataModule[Any], memory: Memory | None) -> None:
        """Let members search a memory by vectors, if one does; its texts are encoded unless they were before."""
        network = self.network
        if "memory" not in network.members.reads:
            return
        if not isinstance(memory, FolderMemory):
            network.memory = None
            return
        encoder = self.encoder_fingerprint(data)
        if network.memory is None or not network.memory.encoded.is_of(memory, encoder):
            encoded = EncodedMemory.open(memory, encoder, partial(self.encode, data))
            target = torch.from_numpy(label_numbers(memory.rows, self.labels))
            network.memory = SearchedMemory(encoded, target)

    def learned_by_gradients(self) -> str | None:
        """The part that only a training can fit again; None if there is none."""
        if self.network.learns_by_gradients:
            return "the encoder"
        return None if self.network.encoder_before is None else "the encoder's metric"

    def show_stage(self, stage: str) -> None:
        """Log the stage of the run."""
        if self._trainer is not None and self.trainer.is_global_zero:
            log.info("%s", stage)


def read_table(
    model: EnsembleModel,
    data: TextRowsDataModule[Any],
    split: TextSplit,
    inputs: set[Input],
    rows: NDArray[np.int64] | None = None,
) -> Readings:
    """The inputs of members for some rows of a table, or all, on the CPU."""
    network: EnsembleNetwork = model.network
    memory = network.memory
    rows = np.arange(len(split.rows)) if rows is None else rows
    texts = split.rows.texts.take(rows)
    vectors = None
    if "vectors" in inputs and not network.learns_by_gradients:
        encode = partial(model.encode, data) if memory is None else memory.encoded.vectors_of
        vectors = torch.from_numpy(encode(texts))
        inputs = inputs - {"vectors"}
    readings = Readings(texts)
    if len(rows) and inputs & {"vectors", "bags", "neighbors"}:
        contents = BatchContents(memory_texts=False, new_labels=model.new_labels)
        dataset = data.dataset(split, contents)
        with evaluating(model):
            batches = (on_device(batch, model) for batch in dataset.batches(_ROWS, rows))
            readings = Readings.join([network.read(batch, inputs - {"memory"}) for batch in batches])
    readings = readings._replace(texts=texts, memory=memory if "memory" in inputs else None)
    return readings if vectors is None else readings._replace(vectors=vectors)
