"""The words of a data module: tokens of texts, vocabulary, and initial vectors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import TextBatch
from datamodules.core.errors import InputError
from datamodules.core.progress import progress_bar
from datamodules.core.sharing import cached_property
from datamodules.core.storage import Part, check_folder, contents_of, fingerprint_of, prepared_folder
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.options import DataOptions, MemoryOptions
from datamodules.text.encodings import Encodings, write_encodings
from datamodules.text.gather import TokenTable, bind, gather_texts
from datamodules.text.tokenization import WORD_TOKENIZERS, Tokenizer, TransformersTokenizer, make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vectors import initial_table, read_vectors
from datamodules.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

#: Number of the most frequent words of a file of vectors that join the vocabulary in any case.
VECTOR_WORDS = 100_000
#: Tokens that a store keeps of a text, unless a model reads more.
KEPT_TOKENS = 512


class Words:
    """Tokenizes texts and numbers their words."""

    def __init__(self, options: DataOptions, cache: Path) -> None:
        self.options, self.cache = options, cache
        self.vector_options = options if isinstance(options, MemoryOptions) else MemoryOptions()
        self._vocabulary: Vocabulary | None = None
        self._vectors_file: Path | None = None
        #: words of the model that the new one starts from, see `keep`.
        self.start_words: list[str] = []

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Cuts texts into tokens."""
        return make_tokenizer(self.options.tokenizer, self.options.lowercase)

    @property
    def special_tokens(self) -> int:
        """Number of tokens that a transformer adds to a text; they count in its length."""
        return len(self.vocabulary.prefix) + len(self.vocabulary.suffix)

    @property
    def are_known(self) -> bool:
        """True where there is a vocabulary."""
        return self._vocabulary is not None

    @property
    def vocabulary(self) -> Vocabulary:
        """The words; after `use` or `open`."""
        if self._vocabulary is None:
            raise InputError("the data has no vocabulary yet: train a model on it, or give a checkpoint")
        return self._vocabulary

    def bind(self, texts: Sequence[tuple[TokenStore, int]]) -> list[TokenTable]:
        """Bind token stores to the vocabulary, see `datamodules.text.gather.bind`."""
        return bind(self.vocabulary, texts, self.vector_options.max_characters)

    def use(self, vocabulary: Vocabulary) -> None:
        """Replace the vocabulary."""
        self._vocabulary = vocabulary

    def vectors(self) -> Tensor | None:
        """Initial word vectors [num_words, d], mapped from one file by all processes; None without pre-trained ones."""
        file = self._vectors_file
        return None if file is None else torch.from_numpy(np.load(file, mmap_mode="c"))

    def has_vector(self) -> Tensor | None:
        """bool [num_words]: True for pre-trained vectors; the others were drawn. None without pre-trained ones."""
        file = self._vectors_file
        return None if file is None else torch.from_numpy(np.load(file.with_name("has_vector.npy")))

    def keep(self, vocabulary: PlainDict) -> None:
        """Add the words of a trained model to the next vocabulary: a model that starts from it has their vectors."""
        # Characters and tokens of a transformer are not words.
        is_word = {name in WORD_TOKENIZERS for name in (vocabulary["tokenizer"]["name"], self.tokenizer.name)}
        if is_word == {True} or vocabulary["tokenizer"] == self.tokenizer.describe():
            self.start_words = vocabulary["words"]

    def tokenize(self, rows: Rows, length: int) -> TokenStore:
        """The tokens of texts, in a cache folder, for a model that reads `length` tokens of a text."""
        # More are kept, so that other lengths need no other store.
        kept = kept_tokens(length)
        description = {"rows": rows.fingerprint, "tokenizer": self.tokenizer.describe(), "tokens": kept}

        def save(folder: Path) -> None:
            bar = progress_bar(rows.texts, "tokenizing")
            TokenStore.from_texts(bar, self.tokenizer, max_tokens=kept).save(folder)

        name, fingerprint = prepared_folder(self.cache, "tokens", fingerprint_of(description), save)
        return TokenStore.open(self.cache / name, fingerprint)

    def tokenize_now(self, rows: Rows, length: int) -> TokenStore:
        """The tokens of texts, in memory (prediction)."""
        return TokenStore.from_texts(rows.texts, self.tokenizer, max_tokens=kept_tokens(length))

    def encode(
        self, tokens: TokenStore, length: int, encode: Callable[[TextBatch], Tensor], encoder: str
    ) -> Encodings:
        """Encode texts once, as `DataModule.encode_texts` describes."""
        (table,), vocabulary = self.bind([(tokens, length)]), self.vocabulary.fingerprint
        part = {"encoder": encoder, "tokens": tokens.part[1], "vocabulary": vocabulary, "length": length}
        size = np.minimum(np.diff(tokens.offsets) + self.special_tokens, length)
        save = partial(write_encodings, size, lambda rows: encode(gather_texts(table, rows)))
        name, fingerprint = prepared_folder(self.cache, "text-vectors", fingerprint_of(part), save)
        return Encodings.open(self.cache / name, fingerprint)

    def prepare(self, stores: Sequence[TokenStore], counts: Mapping[str, int] | None = None) -> Part:
        """Choose the words and vectors that `open` reads; `min_count` refers to `counts`, or else to occurrences."""
        of_vectors = ("word_vectors", "normalize_vectors", "characters")
        of_words = ("min_count", "tokenizer", "lowercase")
        description = {
            "stores": [store.part[1] for store in stores],
            "vectors": contents_of(self.vector_options.word_vectors),
            "counts": None if counts is None else fingerprint_of(counts),
            "start": self.start_words,
            **{name: getattr(self.vector_options, name) for name in of_vectors},
            **{name: getattr(self.options, name) for name in of_words},
        }
        save = partial(self._save_words, stores, counts)
        return prepared_folder(self.cache, "vocabulary", fingerprint_of(description), save)

    def _save_words(
        self, stores: Sequence[TokenStore], counts: Mapping[str, int] | None, folder: Path
    ) -> None:
        vectors = None
        if isinstance(self.tokenizer, TransformersTokenizer):
            vocabulary = Vocabulary.from_transformers(self.tokenizer)
        else:
            if (file := self.vector_options.word_vectors) is not None:
                known = {word for store in stores for word in store.lexicon}.union(self.start_words)
                vectors = read_vectors(file, words=known, most_frequent=VECTOR_WORDS)
            vocabulary = Vocabulary.from_stores(
                stores,
                self.tokenizer,
                min_count=self.options.min_count,
                extra_words=[*(() if vectors is None else vectors.rows), *self.start_words],
                characters=self.vector_options.characters,
                counts=counts,
            )
        (folder / "vocabulary.json").write_text(json.dumps(vocabulary.to_dict()))
        if vectors is not None:
            log.info("%s", vectors.describe_coverage(stores))
            table, has_vector = initial_table(vocabulary, vectors, seed=0)
            if self.vector_options.normalize_vectors:
                table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
            np.save(folder / "vectors.npy", table)
            np.save(folder / "has_vector.npy", has_vector)

    def open(self, part: Part) -> Vocabulary:
        """Read the vocabulary that `prepare` chose; its vectors, if any, are in use from now on."""
        folder = self.cache / part[0]
        check_folder(folder, part[1])
        vectors = folder / "vectors.npy"
        self._vectors_file = vectors if vectors.exists() else None
        return Vocabulary.from_dict(json.loads((folder / "vocabulary.json").read_text()))


def kept_tokens(length: int) -> int:
    """Number of tokens that a store keeps of a text for a model that reads `length`: one more shows a cut."""
    return max(KEPT_TOKENS, length + 1)
