"""Options of models of several tasks: `class KNNBiLSTM(ReadsWordVectors, FrozenEncoder, ClassificationTask)`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Self, override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, ClassificationBatch, TextBatch
from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.core.types import PlainDict, Size
from datamodules.options import MemoryOptions
from datamodules.text.encodings import StoredEncodings
from datamodules.text.sentence_modules import check_reachable
from datamodules.text.tokenization import OWN_TOKENIZERS, make_tokenizer
from zoo.layers.encoders import WordEncoder, pooling_of, positions_of
from zoo.layers.row_adam import can_update_by_rows, update_by_rows, update_densely
from zoo.tasks.base import Task
from zoo.tasks.model import Given
from zoo.training.trained_parts import matches

#: Rows of a table from which updates by rows are faster than a fused step over all rows.
MANY_ROWS = 5_000


def digests_of(weights: Mapping[str, object]) -> dict[str, str]:
    """SHA-256 (hex) of each tensor of a state dict, by name."""
    return {
        name: hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for name, value in weights.items()
        if isinstance(value, Tensor)
    }


class ReadsWordVectors(Task):
    """A model that reads word vectors.

    Args:
        word_size: size of word vectors, where the data brings none (`--data.word_vectors`).
        train_word_vectors: train the word vectors too. Vectors that are not pre-trained are always trained.
    """

    #: append the last state of an LSTM, of this size, over a word's characters to its vector.
    characters: bool = False
    char_hidden_size: int = 50

    def __init__(self, word_size: Size = 300, train_word_vectors: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.word_size, self.train_word_vectors = word_size, train_word_vectors

    def make_words(self, given: Given) -> WordEncoder:
        """The encoder of a vocabulary's words, from pre-trained vectors where the data brings them."""
        # A model that is restored from its checkpoint is given a table in any case.
        state, table = self.data_state, given.word_vectors
        is_drawn = table is None or (state is not None and state.files.get("word_vectors") is None)
        return WordEncoder(
            given.spec.num_words,
            self.word_size if table is None else table.shape[1],
            table=table,
            train_table=is_drawn or self.train_word_vectors,
            num_chars=given.spec.num_chars if self.characters else 0,
            char_hidden_size=self.char_hidden_size,
        )

    @override
    def check_data(self, data: DataModule) -> None:
        super().check_data(data)
        reads_words = getattr(self, "transformer", None) is None
        has_characters = isinstance(data.options, MemoryOptions) and data.options.characters
        if reads_words and self.characters and not has_characters:
            raise InputError("model.characters is on, but data.characters is off; make them agree")

    @override
    def idle_options(self, data: DataModule) -> Iterator[tuple[str, str]]:
        yield from super().idle_options(data)
        if self.train_word_vectors and data.options.word_vectors is None:
            reason = "vectors that no file has (data.word_vectors) are always trained"
            yield "model.train_word_vectors", reason

    def _trained_words(self) -> list[WordEncoder]:
        words = (module for module in self.network.modules() if isinstance(module, WordEncoder))
        return [each for each in words if each.table.requires_grad]

    @override
    def adapt_optimizer(self, optimizer: Optimizer) -> Optimizer:
        words = self._trained_words()
        update_densely(words)
        large = [each for each in words if len(each.table) >= MANY_ROWS]
        # Several processes exchange whole gradients, and a GPU passes over a whole table quickly.
        is_one_cpu = self.trainer.world_size == 1 and self.trainer.strategy.root_device.type == "cpu"
        if not large or not is_one_cpu or not can_update_by_rows(optimizer):
            return optimizer
        if self.trainer.gradient_clip_val:
            return optimizer  # many versions of PyTorch do not clip a sparse gradient
        return update_by_rows(optimizer, large)

    def _settle(self) -> None:
        """Apply postponed updates, at the same points of every run, whatever callbacks read the weights."""
        for words in self._trained_words():
            words.settle_all()

    @override
    def on_validation_start(self) -> None:
        super().on_validation_start()
        self._settle()

    @override
    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self._settle()

    @override
    def on_fit_end(self) -> None:
        super().on_fit_end()
        update_densely(self._trained_words())


class ReadsTransformer(Task):
    """A model that may read a pre-trained transformer.

    Args:
        transformer: Hub name or folder of a pre-trained transformer that replaces the model's own encoder or word
            vectors; the data's tokens are then its own.
        lora_rank: train low-rank adapters of this rank, at a learning rate of 1e-4 to 1e-3; they need
            the extra `lora` (`peft`). None = train the transformer's weights themselves.
    """

    #: whether the transformer reads the texts of a row together.
    joins_texts: bool = False

    def __init__(self, transformer: str | None = None, lora_rank: Size | None = None, **shared: Any) -> None:
        super().__init__(**shared)
        self.transformer, self.lora_rank = transformer, lora_rank
        if lora_rank is not None and transformer is None:
            raise InputError("model.lora_rank trains a transformer: name one with --model.transformer")

    @override
    def check_data(self, data: DataModule) -> None:
        super().check_data(data)
        transformer, tokenizer = self.transformer, data.options.tokenizer
        if transformer is None:
            return
        advice = f"set --data.tokenizer {transformer}"
        if tokenizer in OWN_TOKENIZERS:
            raise InputError(f"data.tokenizer={tokenizer}: the transformer needs its own tokens: {advice}")
        check_reachable(transformer)
        if tokenizer != transformer:
            # Two names of the same tokens are fine; ids of another vocabulary would be other words.
            expected = make_tokenizer(transformer, lowercase=False).describe()["contents"]
            if data.words.tokenizer.describe()["contents"] != expected:
                raise InputError(f"data.tokenizer={tokenizer}: not the transformer's tokens: {advice}")
        lengths = data.lengths_by_option()
        if not self.joins_texts:
            longest = max(lengths, key=lengths.__getitem__)
            lengths = {longest: lengths[longest]}
        wanted, names = sum(lengths.values()), " + ".join(f"data.{name}" for name in lengths)
        if (most := positions_of(transformer)) is not None and wanted > most:
            raise InputError(f"{names}: {transformer} reads at most {most} tokens, not {wanted}; set fewer")


class EncodesMemory(Task):
    """A model whose encodings of a memory are kept next to the memory, for everyone who uses both."""

    #: whether these vectors have length 1.
    keeps_directions: ClassVar[bool] = False

    # Weights of the encoder at the last hashing: their addresses and versions; their digests.
    _digests: tuple[tuple[tuple[int, int], ...], dict[str, str]] | None = None

    @property
    @override
    def vector_size(self) -> int | None:
        return None if self.network.encoder is None else int(self.network.encoder.size)

    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The texts' vectors [B, vector_size]."""
        return self.network.encoder(batch.word, batch.char, batch.text)

    def is_evaluated(self, split: str) -> bool:
        """Return whether a trained model is measured on a split (`zoo validate`, `zoo test`)."""
        return split in ("validation", "test") and self._trainer is not None and not self.is_fitting

    @override
    def train(self, mode: bool = True) -> Self:
        # Only in training may an optimizer write to weights without changing their versions.
        if mode or self.training:
            self.forget_digests()
        return super().train(mode)

    @override
    def encodings_to_keep(self, data: DataModule) -> str | None:
        return None if self.network.encoder is None else self.encoder_fingerprint(data)

    def forget_digests(self) -> None:
        """Hash the encoder's weights again: an optimizer may write to them without changing their versions."""
        self._digests = None

    def encoder_fingerprint(self, data: DataModule) -> str:
        """Fingerprint of the encoder and of everything that its vectors of the data's texts depend on."""
        encoder, vocabulary = self.network.encoder, data.words.vocabulary.fingerprint
        weights = encoder.state_dict()
        # Hashing takes longer than the classification of a text: weights are hashed again only after a write.
        written = tuple((value.data_ptr(), value._version) for value in weights.values())
        if self._digests is None or self._digests[0] != written:
            self._digests = written, digests_of(weights)
        settings: PlainDict = {"pooling": pooling_of(encoder), "lengths": data.lengths_by_option()}
        if self.keeps_directions:
            settings["length"] = 1
        return fingerprint_of({**settings, "weights": self._digests[1], "vocabulary": vocabulary})


class FrozenEncoder(ReadsTransformer):
    """A model whose encoder may be frozen: all texts then pass through it once.

    Args:
        freeze_encoder: do not train the encoder: all texts are encoded once, and an epoch takes far less time.
    """

    #: name of the encoder in the network.
    encoder_name: ClassVar[str] = "encoder"

    def __init__(self, freeze_encoder: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.freeze_encoder = freeze_encoder
        if freeze_encoder:
            self.freeze_patterns.append(self.encoder_name)
        self._encoded_texts: StoredEncodings | None = None
        if self.encoder_is_frozen and self.lora_rank is not None:
            raise InputError("model.lora_rank trains the encoder, which is frozen; omit one of the two")

    @property
    def encoder_is_frozen(self) -> bool:
        """Return whether the whole encoder is frozen."""
        return any(matches(self.encoder_name, pattern) for pattern in self.freeze_patterns)

    @override
    def setup(self, stage: str) -> None:
        self._encoded_texts = None  # it belongs to the data of an earlier run
        super().setup(stage)

    @override
    def batch_contents(self, split: str) -> BatchContents:
        return super().batch_contents(split)._replace(encoded_texts=self._encoded_texts)

    @override
    def on_fit_start(self) -> None:
        super().on_fit_start()
        if not self.encoder_is_frozen:
            return
        encoder = getattr(self.network, self.encoder_name)  # called with words, characters and texts
        if isinstance(encoder, WordEncoder):
            return  # vectors of words are looked up as fast as encodings

        @torch.no_grad()
        def encode(batch: TextBatch) -> Tensor:
            return encoder(*(field.to(self.device) for field in batch[:3]))

        weights = digests_of(encoder.state_dict())
        settings = {"encoder": type(encoder).__name__, "pooling": pooling_of(encoder), "weights": weights}
        self.attach("train")
        contents = self.batch_contents("train")
        self._encoded_texts = self.training_data.encode_texts(encode, fingerprint_of(settings), contents)
