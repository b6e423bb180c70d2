"""The default for a table of one's own: witnesses of the text and of its memories, and a few weights.

One run has four stages: an encoder is trained without memory, the memory is encoded by it, the other witnesses of the
text are fitted, and then shapes and weights of all witnesses on rows that none of them has learned from. The stages
after the training are Lightning's last epoch, in which no weight moves by gradients: validation, checkpoints, loggers
and several processes are as in any other epoch, and a run that was killed in any stage goes on from its last
checkpoint.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.classification.dataset import label_numbers
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from datamodules.text.pooling import Pooling
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.answer import Answer, AnswerScores, lines_of
from zoo.ensemble.fitting import fit_rest
from zoo.ensemble.network import TEXT_WITNESSES, VOTES, EnsembleOutput, WitnessNetwork
from zoo.ensemble.refit import refit
from zoo.layers.encoders import BiLSTMEncoder, TransformerEncoder
from zoo.saving.checkpoint import CHECKPOINT_KEY, read_checkpoint
from zoo.tasks.base import check_choices, check_sizes
from zoo.tasks.classification.metrics import ClassificationScores
from zoo.tasks.classification.predictor import ClassificationPredictor, RetrievedMemory, texts_and_labels
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.encoders import EncodesMemory, ReadsTransformer, SpelledWords
from zoo.training.warm_start import start_from

log = logging.getLogger("zoo")

#: Why a bag may have nothing to say.
_BAG = (
    "a bag wants the word vectors of a file (data.word_vectors) as they are, without model.transformer and"
    " model.train_word_vectors"
)


class WitnessEnsemble(EncodesMemory, ReadsTransformer, SpelledWords, ClassificationTask):
    """A log-linear pool of independent witnesses: words, an encoder, word vectors, votes of two kinds of neighbours.

    Example:
        >>> model = WitnessEnsemble(witnesses=["lexical", "lexical_vote"])
    """

    paper = (
        "no publication: a logarithmic opinion pool (Genest and Zidek 1986) of readers of text and neighbours"
    )
    reads_strings = True
    reads_memory_texts = False
    keeps_best = True
    takes_refit = True
    takes_new_labels = True
    needs_memory = False
    keeps_directions = True

    def __init__(
        self,
        witnesses: list[str] = [*TEXT_WITNESSES, *VOTES],  # noqa: B006 - it is kept as an option, never changed
        transformer: str | None = None,
        train_transformer: bool = False,
        pooling: Pooling = "mean",
        hidden_size: int = 100,
        dropout: float = 0.3,
        max_ngram: int = 2,
        max_letters: int = 5,
        c: float = 1.0,
        few_rows: int = 500,
        folds: int = 5,
        **shared: Any,
    ) -> None:
        """Choose the witnesses. All but the encoder are fitted without gradients, when the encoder is trained.

        Args:
            witnesses: some of `lexical` (TF-IDF and a linear layer), `encoder`, `bag` (the mean of pre-trained word
                vectors, and a kernel machine), `lexical_vote` (labels of the memories that the retriever found) and
                `dense_vote` (labels of the memories whose encodings are nearest).
            transformer: Hub name or folder of a pre-trained transformer that takes the BiLSTM's place.
            train_transformer: train the transformer; otherwise it is left as it is, and a kernel machine reads its
                vectors.
            pooling: how the states of a `transformer` become a text's vector.
            hidden_size: state size of one direction of the BiLSTM.
            dropout: on word vectors.
            max_ngram: words of the lexical witness's longest n-gram of words.
            max_letters: letters of its longest n-gram of letters; 0 = it reads whole words only.
            c: the lexical witness's weight of training errors against small weights.
            few_rows: with fewer validation rows than this, weights are fitted on training rows, too, each judged by
                witnesses that were fitted without it.
            folds: parts into which these training rows are cut.
            **shared: options of `ReadsTransformer`, `SpelledWords` and `Task`.
        """
        super().__init__(**shared)
        check_choices(self.options, pooling=("mean", "cls"))
        check_sizes(self.options, "hidden_size", "max_ngram")
        known = (*TEXT_WITNESSES, *VOTES)
        if not witnesses or set(witnesses) - set(known) or len(set(witnesses)) < len(witnesses):
            raise InputError(f"model.witnesses={witnesses}: choose some of {', '.join(known)}, each once")
        if max_letters < 0 or max_letters == 1 or not c > 0:
            raise InputError(
                f"model.max_letters={max_letters}, model.c={c}: use 0 or at least 2, and more than 0"
            )
        if folds < 2 or few_rows < 0:
            raise InputError(f"model.folds={folds}, model.few_rows={few_rows}: use at least 2, and 0 or more")
        if train_transformer and transformer is None:
            raise InputError("model.train_transformer is on, but model.transformer names none")
        if self.options.lora_rank is not None and not train_transformer:
            raise InputError(
                "model.lora_rank trains the transformer: set --model.train_transformer true, too"
            )
        #: what the run is doing, for the progress display.
        self.stage = ""
        #: the table of the last fit or test.
        self.answer: Answer | None = None
        self.answer_scores: AnswerScores | None = None
        # The best encoder so far: its weights, accuracy and epochs.
        self._best: dict[str, Any] | None = None
        self._vectors: dict[int, NDArray[np.float32]] = {}
        self._data: TextDataModule[Any, Any] | None = None

    # --- what it is made of ---

    @property
    @override
    def uses_memory(self) -> bool:
        return any(name in VOTES for name in self.options.witnesses)

    @property
    def trains_encoder(self) -> bool:
        """Whether an encoder learns by gradients."""
        reads = any(name in ("encoder", "dense_vote") for name in self.options.witnesses)
        return reads and (self.options.transformer is None or self.options.train_transformer)

    @property
    def encoder_epochs(self) -> int:
        """Epochs before the last one, in which everything else is fitted."""
        return int(self.trainer.max_epochs or 0) - 1 if self.trains_encoder else 0

    @property
    def encoder_epochs_used(self) -> int:
        """Epochs after which the encoder was best."""
        return int(self._best["epochs"]) if self._best else 1

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> WitnessNetwork:
        options = self.options
        can_vote = spec.num_memories > 0 and spec.memory_labels == spec.labels
        needs_words = options.transformer is None and {"encoder", "dense_vote", "bag"} & set(
            options.witnesses
        )
        words = self.make_words(spec, word_vectors) if needs_words else None
        # Vectors that are trained are the encoder's; a bag of them would know the training rows by heart.
        is_fixed = words is not None and not words.table.requires_grad
        able = {"bag": is_fixed, **dict.fromkeys(VOTES, can_vote)}
        heard = tuple(name for name in options.witnesses if able.get(name, True))
        if not heard:
            raise InputError(
                f"model.witnesses={options.witnesses}: none of them has anything to say here; a vote needs memories"
                f" (data.num_memories) with labels of the texts' own, and {_BAG}"
            )
        encoder: BiLSTMEncoder | TransformerEncoder | None = None
        if "encoder" in heard or "dense_vote" in heard:
            if words is None:
                encoder = TransformerEncoder(
                    options.transformer, options.pooling, transformer_config, options.lora_rank
                )
            else:
                encoder = BiLSTMEncoder(words, options.hidden_size, options.dropout)
        return WitnessNetwork(spec, heard, encoder, words if "bag" in heard else None, options)

    def missing(self) -> dict[str, list[str]]:
        """Why witnesses that were asked for take no part, and which."""
        unheard = [name for name in self.options.witnesses if name not in self.network.witnesses]
        reasons = {_BAG: ("bag",), "the memories are none or have other labels": VOTES}
        found = {reason: [name for name in unheard if name in names] for reason, names in reasons.items()}
        return {reason: names for reason, names in found.items() if names}

    def fresh_network(self) -> WitnessNetwork:
        """The network as it was before training; drawn by the run's seed, or started from where the run started."""
        assert self.spec is not None
        with torch.random.fork_rng():
            torch.manual_seed(self.data_side.seed)
            fresh = self.build_network(self.spec, self.data_side.word_vectors(), None).to(self.device)
        if (start := self.options.init_from) is not None:
            trained, self.network = self.network, fresh
            try:
                start_from(self, start, is_told=False)
            finally:
                self.network = trained
        return fresh

    def unseen(self, split: TextSplit) -> NDArray[np.bool_]:
        """[n], the rows of a split that the model that this one started from was not trained on."""
        start = self.options.init_from
        seen = (
            None if start is None else self.data_side.seen_by(read_checkpoint(start)[CHECKPOINT_KEY]["data"])
        )
        if seen is None:
            return np.ones(len(split.rows), bool)
        unseen: NDArray[np.bool_] = ~np.isin(self.data_side.copy_keys(split.rows), seen)
        return unseen

    @property
    def data_side(self) -> Any:
        """The data of the trainer, or the predictor's."""
        return self._data if self.data is None else self.data

    @property
    @override
    def vector_size(self) -> int | None:
        return None if self.network.encoder is None else int(self.network.encoder.size)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        vectors: Tensor = self.network.encoder(batch.word, batch.char, batch.text)
        return vectors

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """The texts' vectors [n, l], of length 1; 0 for a text without words."""
        return ClassificationPredictor(self, self.data_side).encode(texts)

    # --- the memory that is searched by vectors ---

    @override
    def use_memory(
        self, data: TextDataModule[Any, Any], memory: Memory | None, texts: int | None = None
    ) -> None:
        network, self._data = self.network, data
        labels = [*data.spec.labels, *getattr(data, "new_labels", ())]
        num_new = len(labels) - network.num_classes
        rows = memory.rows if isinstance(memory, FolderMemory) and num_new else None
        network.count_new(None if rows is None else label_numbers(rows, labels), num_new)
        if "dense_vote" not in network.speaking():
            return
        if not isinstance(memory, FolderMemory):
            network.use_memory(None, np.zeros(0, np.int64))
            return
        encoder = self.encoder_fingerprint(data)
        if network.memory is not None and network.memory.is_of(memory, encoder):
            return
        encoded = EncodedMemory.open(memory, encoder, self.encode)
        network.use_memory(encoded, label_numbers(memory.rows, labels))

    def vectors_of(self, split: TextSplit) -> NDArray[np.float32]:
        """The vectors of a split's texts [n, l]: those of the memory's texts are looked up."""
        if id(split) not in self._vectors:
            texts, memory = split.rows.texts[:], self.network.memory
            self._vectors[id(split)] = self.encode(texts) if memory is None else memory.vectors_of(texts)
        return self._vectors[id(split)]

    # --- the stages of a fit ---

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage != "fit":
            return
        trainer: Any = self.trainer
        if trainer.max_epochs is None or trainer.max_epochs < 0:
            raise InputError("trainer.max_epochs: say how many epochs the encoder is trained")
        if len(self.data_side.split("validation").rows) == 0:
            raise InputError(
                f"{self.data_side.split('train').rows.source}: no row is left for validation, on which weights are"
                " fitted; give more rows, or others with --data.validation_file"
            )
        start = self.options.init_from
        if start is not None and len(self.data_side.split("validation").rows) < self.options.few_rows:
            # Cross-fitting asks it what it was trained on: if it is gone, that is said before the first stage.
            try:
                read_checkpoint(start)
            except InputError as error:
                raise InputError(
                    f"model.init_from: {error}; to fit the weights, its rows must be known"
                ) from error
        # The last epoch fits everything else.
        trainer.fit_loop.max_epochs = trainer.max_epochs + 1 if self.trains_encoder else 1
        if trainer.fast_dev_run:
            trainer.limit_train_batches = 1
        for reason, names in self.missing().items():
            log.info("left out, since %s: %s", reason, ", ".join(names))

    @property
    def in_last_epoch(self) -> bool:
        """Whether the encoder is trained, and the rest is fitted."""
        return self.current_epoch >= self.encoder_epochs

    def tell(self, stage: str) -> None:
        """Say what the run is doing: in the log, and on the progress display."""
        self.stage = stage
        if self._trainer is None or not self.trainer.is_global_zero:
            return
        show = getattr(self.trainer.progress_bar_callback, "show_stage", None)
        if show is not None:
            show(stage)
        else:
            log.info("%s", stage)

    @override
    def on_train_epoch_start(self) -> None:
        if self.in_last_epoch:
            return
        self.network.trust = None  # a finished run may go on
        if not self.stage:
            self.tell(f"stage 1 of 4: the encoder learns without memory, {self.encoder_epochs} epochs")

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        if self.in_last_epoch:
            self.fit_to(self.trainer.datamodule)  # type: ignore[attr-defined]
            # One batch, in which nothing moves; then Lightning validates and saves.
            self.trainer.should_stop = True

    @override
    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        if self.in_last_epoch:
            return (
                torch.stack([weight.sum() for weight in self.parameters() if weight.requires_grad]).sum()
                * 0.0
            )
        loss = functional.cross_entropy(self.network.encoder_logits(batch), batch.target)
        self.log_loss(loss, len(batch.target))
        return loss

    @override
    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        if self.in_last_epoch:
            optimizer_closure()  # the optimizer's momentum would go on
        else:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    @override
    def on_validation_epoch_end(self) -> None:
        scores = self.validation_scores
        accuracy = float(scores.compute()["accuracy"]) if not self.trainer.sanity_checking else 0.0
        super().on_validation_epoch_end()
        trains = self.trainer.training or self.trainer.validating
        if self.trainer.sanity_checking or not trains or self.network.trust is not None:
            return
        if self._best is None or accuracy > self._best["accuracy"]:
            parts = {name: value.detach().clone() for name, value in self._encoder_state().items()}
            self._best = {"accuracy": accuracy, "epochs": self.current_epoch + 1, "weights": parts}

    def _encoder_state(self) -> dict[str, Tensor]:
        parts = ("encoder.", "classifier.")
        return {name: value for name, value in self.network.named_parameters() if name.startswith(parts)}

    def fit_to(self, data: TextRowsDataModule) -> None:
        """Fit everything but the encoder; every process does it by itself and finds the same."""
        self._data, self._vectors = data, {}
        if self._best is not None and self._best["weights"]:
            with torch.no_grad():
                for name, value in self._encoder_state().items():
                    value.copy_(self._best["weights"][name])
        self.answer = fit_rest(self, data)
        data.close_memory()

    # --- evidence ---

    @override
    def contributions(self, output: EnsembleOutput, row: int, label: int) -> dict[str, float] | None:
        return {name: float(scores[row, label]) for name, scores in output.contributions.items()}

    @override
    def with_found(
        self, memories: list[list[RetrievedMemory]], output: EnsembleOutput
    ) -> list[list[RetrievedMemory]]:
        memory, found = self.network.memory, output.found
        if memory is None or found is None:
            return memories
        texts, labels = texts_and_labels(memory.memory.rows, found.rows)
        by_text = zip(
            found.rows.tolist(), texts, labels, found.score.tolist(), found.weight.tolist(), strict=True
        )
        return [_joined(one, *others) for one, others in zip(memories, by_text, strict=True)]

    # --- growing ---

    @override
    def refit(self, predictor: Any, rows: Rows) -> str | None:
        return refit(self, predictor.data, predictor.memory, rows)

    # --- test ---

    @override
    def new_scores(self) -> ClassificationScores:
        assert self.spec is not None
        return ClassificationScores([*self.spec.labels, *self.data_state.get("new_labels", ())])

    @override
    def on_validation_start(self) -> None:
        network, data = self.network, self.data_side
        if self.trainer.state.fn == TrainerFn.VALIDATING and network.trust is not None:
            network.excludes_duplicates = data.excludes_duplicates("validation")
            self.use_memory(data, data.open_memory() if data.has_memory else None)

    @override
    def on_test_start(self) -> None:
        network, data = self.network, self.data_side
        network.says_all = network.trust is not None
        self.answer_scores = None
        if network.trust is not None:
            network.excludes_duplicates = data.excludes_duplicates("test")
            self.use_memory(data, data.open_memory() if data.has_memory else None)

    @override
    def count(self, scores: Any, batch: ClassificationBatch) -> None:
        output: EnsembleOutput = self(batch)
        scores.update(output.logits, batch.target, batch.weight, batch.is_copy)
        if output.said:
            if self.answer_scores is None:
                self.answer_scores = AnswerScores(list(output.said)).to(batch.target.device)
            self.answer_scores.update(output.said, batch.target, batch.weight)

    @override
    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        if self.answer_scores is not None:
            # Figures, since a process that was forked for a device leaves nothing else behind.
            for line in self.answer_scores.lines(self.network.trust.weights["all"]):
                for name, figure in line.figures().items():
                    value = torch.tensor(figure, dtype=torch.float64)
                    self.log(f"test/answer/{name}", value, rank_zero_only=False)
        self.network.says_all = False

    @override
    def answer_of(self, scores: dict[str, Any]) -> tuple[Answer | None, dict[str, Any]]:
        prefix = "answer/"
        figures = {name.removeprefix(prefix): scores[name] for name in scores if name.startswith(prefix)}
        others = {name: value for name, value in scores.items() if not name.startswith(prefix)}
        return Answer("test", lines_of(figures), []) if figures else None, others

    # --- checkpoints ---

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        done = self.network.trust is not None
        best = self._best and {**self._best, "weights": {} if done else self._best["weights"]}
        checkpoint[CHECKPOINT_KEY]["best_encoder"] = best

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._best = checkpoint[CHECKPOINT_KEY].get("best_encoder")


def _joined(
    by_words: list[RetrievedMemory],
    rows: list[int],
    texts: list[str],
    labels: list[str | None],
    scores: list[float],
    weights: list[float],
) -> list[RetrievedMemory]:
    """A text's memories that were found by words, and those that were found by vectors (rows -1: none)."""
    # A memory that both votes have counts for both; two of equal text and label are one to a reader.
    listed = {(one.text, one.label): one._replace(found_by="words") for one in by_words}
    for number, text, label, score, weight in zip(rows, texts, labels, scores, weights, strict=True):
        if number < 0:
            continue
        before = listed.get((text, label))
        if before is None:
            listed[text, label] = RetrievedMemory(text, label, score, weight, found_by="vectors")
        else:
            both = before.found_by if before.found_by == "vectors" else "words and vectors"
            listed[text, label] = before._replace(weight=before.weight + weight, found_by=both)
    return list(listed.values())
