"""Options that models of several tasks share because they read words or texts in the same way.

Each class here goes before the task among a model's bases: `class KNNBiLSTM(WordVectors, FrozenEncoder,
ClassificationTask)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from datamodules.base import TextDataModule
from datamodules.batch import TextBatch
from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.text.hub import check_reachable
from datamodules.text.tokenization import OWN_TOKENIZERS, make_tokenizer
from zoo.layers.encoders import WordEncoder, positions_of
from zoo.layers.row_adam import RowTable, clip_values, update_by_rows, update_densely, why_dense
from zoo.training.trained_parts import is_named

#: Rows of a table from which on updates by rows are faster than a fused step over all of them.
MANY_ROWS = 5_000


def digests_of(weights: Mapping[str, Any]) -> dict[str, str]:
    """Identifies weights, the tensors of a state dict, by what they hold: name -> sha256 (hex)."""
    return {
        name: hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for name, value in weights.items()
        if isinstance(value, Tensor)
    }


class WordVectors:
    """A model that reads word vectors."""

    options: Any
    data_state: dict[str, Any]
    network: Any
    trainer: Any

    def __init__(
        self,
        word_size: int = 300,
        train_word_vectors: bool = False,
        sparse_updates: bool | None = None,
        **shared: Any,
    ) -> None:
        """Choose the vectors.

        Args:
            word_size: size of word vectors, where the data brings none (`--data.word_vectors`).
            train_word_vectors: train the word vectors too. Vectors that are not pre-trained are always trained.
            sparse_updates: whether a training step updates the rows of a batch's words alone, with the result that it
                has by updating all (see `zoo.layers.row_adam`); None = where that is faster and the optimizer
                allows it: tables of many words, on one CPU.
            **shared: options of the task.
        """
        super().__init__(**shared)

    # --- updates by rows ---

    def _row_tables(self) -> list[RowTable]:
        tables = (module for module in self.network.modules() if isinstance(module, RowTable))
        return [table for table in tables if table.table.requires_grad]

    def adapt_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """See `Task.adapt_optimizer`: large tables are updated by rows."""
        tables, wanted = self._row_tables(), self.options.sparse_updates
        update_densely(tables)
        reason = why_dense(optimizer)
        if self.trainer.world_size > 1:
            reason = "several processes exchange whole gradients"
        elif (device := self.trainer.strategy.root_device.type) != "cpu":
            reason = f"on {device}, a pass over a whole table costs next to nothing"
        if wanted and reason:
            raise InputError(
                f"model.sparse_updates is on, but {reason}; change that, or leave the option out"
            )
        if wanted is None:
            tables = [table for table in tables if len(table.table) >= MANY_ROWS]
        if wanted is False or reason or not tables:
            return optimizer
        return update_by_rows(optimizer, tables)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's own, but PyTorch clips the values of no sparse gradient."""
        if gradient_clip_val and gradient_clip_algorithm == "value":
            clip_values(self.network.parameters(), gradient_clip_val)
            return
        super().configure_gradient_clipping(  # type: ignore[misc]
            optimizer, gradient_clip_val, gradient_clip_algorithm
        )

    def _settle(self) -> None:
        for table in self._row_tables():
            if table.settle is not None:
                table.settle(None)

    # What has been put off is done at the same places of every run, whatever callbacks read the weights.

    def on_validation_start(self) -> None:
        """Bring the tables up to date."""
        super().on_validation_start()  # type: ignore[misc]
        self._settle()

    def on_train_epoch_end(self) -> None:
        """Bring the tables up to date."""
        super().on_train_epoch_end()  # type: ignore[misc]
        self._settle()

    def on_fit_end(self) -> None:
        """Let go of the optimizer."""
        super().on_fit_end()  # type: ignore[misc]
        update_densely(self._row_tables())

    # --- the table ---

    def make_words(self, spec: Any, word_vectors: Tensor | None) -> WordEncoder:
        """The words of a vocabulary, from pre-trained vectors where the data brings them.

        Args:
            spec: of the data.
            word_vectors: [num_words, d] pre-trained values, or None.
        """
        options = self.options
        # A model that is made again from its checkpoint is given a table, too, wherever that came from.
        data_options = self.data_state.get("options")
        drawn = word_vectors is None or (data_options is not None and data_options["word_vectors"] is None)
        return WordEncoder(
            spec.num_words,
            options.word_size if word_vectors is None else word_vectors.shape[1],
            table=word_vectors,
            train_table=drawn or options.train_word_vectors,
            **self._characters(spec),
        )

    def _characters(self, spec: Any) -> dict[str, int]:
        """Sizes of a character LSTM."""
        return {}


class SpelledWords(WordVectors):
    """A model that reads word vectors, and if wanted how words are spelled."""

    def __init__(
        self, characters: bool = True, char_size: int = 20, char_hidden_size: int = 50, **shared: Any
    ) -> None:
        """Choose the vectors.

        Args:
            characters: add the last state of an LSTM over a word's characters to its vector.
            char_size: size of a character's vector.
            char_hidden_size: state size of the character LSTM.
            **shared: options of `WordVectors` and of the task.
        """
        super().__init__(**shared)

    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        """See `Task.check_data`: characters."""
        super().check_data(data)  # type: ignore[misc]
        reads_words = self.options.get("transformer") is None
        if reads_words and self.options.characters and not data.options.characters:
            raise InputError("model.characters is on, but data.characters is off; make them agree")

    def _characters(self, spec: Any) -> dict[str, int]:
        options = self.options
        return {
            "num_chars": spec.num_chars if options.characters else 0,
            "char_size": options.char_size,
            "char_hidden_size": options.char_hidden_size,
        }


class ReadsTransformer:
    """A model whose option `transformer` names a pre-trained transformer that it reads, if it is not None."""

    options: Any

    def __init__(self, lora_rank: int | None = None, **shared: Any) -> None:
        """Choose how the transformer is trained.

        Args:
            lora_rank: train low-rank adapters of this rank beside the transformer's weights, which stay as they are
                (`zoo.layers.lora`); a tenth of the optimizer's memory, and a learning rate of 1e-4 to 1e-3 instead of
                1e-5. It needs `pip install "memory-zoo[lora]"`. None = its weights themselves are trained.
            **shared: options of the task.
        """
        super().__init__(**shared)
        if lora_rank is None:
            return
        if self.options.transformer is None:
            raise InputError("model.lora_rank is of a transformer: name one with --model.transformer")
        if lora_rank < 1:
            raise InputError(f"model.lora_rank={lora_rank}: must be 1 or more")

    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        """See `Task.check_data`: the transformer's own tokens, and no more of them than it can read."""
        super().check_data(data)  # type: ignore[misc]
        transformer, tokenizer = self.options.transformer, data.options.tokenizer
        if transformer is None:
            return
        if tokenizer in OWN_TOKENIZERS:
            raise InputError(
                f"data.tokenizer={tokenizer}: a pre-trained transformer wants its own tokens: set"
                f" --data.tokenizer {transformer}"
            )
        check_reachable(transformer)
        if tokenizer != transformer:
            # Two names of the same tokens are fine; ids of another vocabulary would be other words.
            theirs = make_tokenizer(transformer, lowercase=False).describe()["contents"]
            if data.tokenizer.describe()["contents"] != theirs:
                raise InputError(
                    f"data.tokenizer={tokenizer}: has other tokens than the pre-trained transformer: set"
                    f" --data.tokenizer {transformer}"
                )
        wanted, names = self.tokens_at_once(data.text_lengths())
        if (positions := positions_of(transformer)) is not None and wanted > positions:
            raise InputError(
                f"{names}: {transformer} reads {positions} tokens at most, not {wanted}; set fewer"
            )

    def tokens_at_once(self, lengths: dict[str, int]) -> tuple[int, str]:
        """How many tokens the transformer has to read together at most, and the options that say so.

        Args:
            lengths: tokens kept of a text, by the data's option.
        """
        longest = max(lengths, key=lengths.__getitem__)
        return lengths[longest], f"data.{longest}"


class EncodesMemory:
    """A model whose encodings of a memory lie beside the memory, whoever made them."""

    options: Any
    network: Any
    training: bool

    #: whether the vectors that lie there have length 1.
    keeps_directions: ClassVar[bool] = False

    # The encoder's weights that were hashed last: where they lie and how often they were written to; their digests.
    _digests: tuple[tuple[tuple[int, int], ...], dict[str, str]] | None = None

    def train(self, mode: bool = True) -> Any:
        """Lightning's own; an optimizer may write to weights without a trace in their versions, in training alone."""
        if mode or self.training:
            self._digests = None
        return super().train(mode)  # type: ignore[misc]

    def encoder_fingerprint(self, data: TextDataModule[Any, Any]) -> str:
        """Identifies what the encoder makes of the texts of the model's data."""
        weights = self.network.encoder.state_dict()
        # To hash them takes longer than to classify a text: only what has been written to since is hashed again.
        written = tuple((value.data_ptr(), value._version) for value in weights.values())
        if self._digests is None or self._digests[0] != written:
            self._digests = written, digests_of(weights)
        facts = {"pooling": self.options.pooling, "lengths": data.text_lengths()}
        if self.keeps_directions:
            facts["length"] = 1
        return fingerprint_of(
            {**facts, "weights": self._digests[1], "vocabulary": data.vocabulary.fingerprint}
        )


class FrozenEncoder(ReadsTransformer):
    """A model whose encoder may be a transformer, and may be left as it is: then all texts pass it once."""

    network: Any
    trainer: Any
    device: Any

    #: what the encoder is called in the network.
    encoder_name: ClassVar[str] = "encoder"

    def __init__(self, transformer: str | None = None, freeze_encoder: bool = False, **shared: Any) -> None:
        """Choose the encoder.

        Args:
            transformer: Hub name or folder of a pre-trained transformer that takes the place of the model's own
                encoder or word vectors; the data's tokens are then its own.
            freeze_encoder: leave the encoder as it is, as `freeze` with its name does. All texts are then encoded once,
                and an epoch takes a fraction of the time.
            **shared: options of `ReadsTransformer` and the task.
        """
        super().__init__(**shared)
        if self.encoder_is_frozen and self.options.lora_rank is not None:
            raise InputError("model.lora_rank trains the encoder, which is frozen; leave out one of the two")

    @property
    def frozen(self) -> list[str]:
        """See `Task.frozen`."""
        named: list[str] = super().frozen  # type: ignore[misc]
        return [*named, self.encoder_name] if self.options.freeze_encoder else named

    @property
    def encoder_is_frozen(self) -> bool:
        """Whether the whole encoder stays as it is."""
        return any(is_named(self.encoder_name, pattern) for pattern in self.frozen)

    def use_own_memory(self) -> None:
        """Have the memory's encodings read from where they lie beside it, if the model can."""

    def frozen_encoder(self) -> tuple[nn.Module, dict[str, Any]] | None:
        """The encoder, called with the fields of a `TextBatch`, and what its results depend on besides weights.

        None where it takes no time.
        """
        raise NotImplementedError

    def on_fit_start(self) -> None:
        """Encode everything once if the encoder is frozen."""
        super().on_fit_start()  # type: ignore[misc]
        found = self.frozen_encoder() if self.encoder_is_frozen else None
        if found is None:
            return
        self.use_own_memory()
        encoder, settings = found

        @torch.no_grad()
        def encode(batch: TextBatch) -> Tensor:
            vectors: Tensor = encoder(*(field.to(self.device) for field in batch))
            return vectors

        settings = {**settings, "weights": digests_of(encoder.state_dict())}
        self.trainer.datamodule.cache_encodings(encode, fingerprint_of(settings))
