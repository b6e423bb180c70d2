"""Words: how texts are cut, which words a model knows, and where their vectors come from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.core.errors import InputError
from datamodules.core.storage import (
    Part,
    check_folder,
    contents_of,
    fingerprint_of,
    is_whole,
    lock,
    new_folder,
)
from datamodules.corpora.rows import Rows
from datamodules.options import check_least
from datamodules.text.gather import WordTable
from datamodules.text.tokenization import (
    OWN_TOKENIZERS,
    WORD_TOKENIZERS,
    Tokenizer,
    TransformersTokenizer,
    make_tokenizer,
)
from datamodules.text.tokens import TokenStore
from datamodules.text.vectors import initial_table, read_vectors
from datamodules.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

#: Tokens that a store keeps of a text, unless a model reads more.
KEPT_TOKENS = 512

#: Words and punctuation, as Unicode tells them.
DEFAULT_TOKENIZER = "words"

#: Options that decide which words are known.
VOCABULARY_OPTIONS = ("min_count", "max_words", "vector_words", "characters", "tokenizer", "lowercase")


class WordPart:
    """Cuts texts into words and numbers them."""

    options: Any
    cache: Path

    def __init__(
        self,
        tokenizer: str = DEFAULT_TOKENIZER,
        lowercase: bool | None = None,
        min_count: int = 1,
        max_words: int | None = None,
        word_vectors: str | None = None,
        normalize_vectors: bool = False,
        vector_words: int = 100_000,
        characters: bool = False,
        max_characters: int = 16,
        **shared: Any,
    ) -> None:
        """Choose the words.

        Args:
            tokenizer: `words` (Unicode words and punctuation), `whitespace`, `characters` (then lengths are
                characters, too), or a `transformers` tokenizer by name or folder. The command line takes that of the
                model's `transformer` in place of `words`.
            lowercase: fold case before words are looked up; None = yes, but a `transformers` tokenizer keeps
                to its own rule.
            min_count: words that occur less often in the training texts are unknown words.
            max_words: largest vocabulary; None = no limit.
            word_vectors: file of pre-trained GloVe or word2vec vectors (text, plain, .gz, .xz, .zip).
            normalize_vectors: give each of these vectors the length 1.
            vector_words: how many of the most frequent words of that file join the vocabulary although the
                training texts lack them: they may come up later.
            characters: give the model the characters of words.
            max_characters: characters kept of a word.
            **shared: options of the other parts.
        """
        super().__init__(**shared)
        check_least(self.options, {"min_count": 1, "max_words": 1, "vector_words": 0, "max_characters": 1})
        self._vocabulary: Vocabulary | None = None
        self._words: WordTable | None = None
        self._vectors_file: Path | None = None
        #: words of the model that the new one starts from.
        self._start_words: list[str] = []

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What cuts texts into tokens."""
        name, lowercase = self.options.tokenizer, self.options.lowercase
        return make_tokenizer(name, name in OWN_TOKENIZERS if lowercase is None else lowercase)

    @property
    def special_tokens(self) -> int:
        """How many tokens of a text's length are none of its own: those that a transformer wants around it."""
        if not isinstance(self.tokenizer, TransformersTokenizer):
            return 0
        return len(self.tokenizer.prefix) + len(self.tokenizer.suffix)

    # --- the vocabulary in use ---

    @property
    def vocabulary(self) -> Vocabulary:
        """The words; after `setup` or `use_state`."""
        if self._vocabulary is None:
            raise InputError("the data has no vocabulary yet: train a model on it, or give a checkpoint")
        return self._vocabulary

    @property
    def words(self) -> WordTable:
        """The table of the vocabulary's words, which texts are bound to."""
        if self._words is None:
            self._words = WordTable(self.vocabulary, self.options.max_characters)
        return self._words

    def word_vectors(self) -> Tensor | None:
        """Pre-trained word vectors [num_words, d], or None; one copy for all processes of a machine."""
        if self._vectors_file is None:
            return None
        return torch.from_numpy(np.load(self._vectors_file, mmap_mode="c"))

    def has_vector(self) -> Tensor | None:
        """bool [num_words]: which words' vectors were pre-trained; the others' were drawn. None: there are none."""
        if self._vectors_file is None:
            return None
        return torch.from_numpy(np.load(self._vectors_file.with_name("has_vector.npy")))

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Take a vocabulary in place of whatever was in use."""
        self._vocabulary, self._words = vocabulary, None

    @contextmanager
    def forgetting_words(self) -> Iterator[None]:
        """Forget the words that texts bring meanwhile, so that prediction may go on for ever."""
        known = len(self.words)
        try:
            yield
        finally:
            self.words.truncate(known)

    def keep_words(self, state: Mapping[str, Any]) -> None:
        """Let the words of a trained model join the vocabulary, although the training texts may lack them.

        A model that starts from it has learned what they mean. Characters and the pieces of a transformer's tokenizer
        are no words.

        Args:
            state: of that model's data.
        """
        vocabulary = state["vocabulary"]
        kinds = {name in WORD_TOKENIZERS for name in (vocabulary["tokenizer"]["name"], self.tokenizer.name)}
        if kinds == {True} or vocabulary["tokenizer"] == self.tokenizer.describe():
            self._start_words = vocabulary["words"]

    def describe_start(self) -> str | None:
        """Identifies the words of the model that the new one starts from."""
        return fingerprint_of({"words": self._start_words}) if self._start_words else None

    # --- what is prepared ---

    def tokenise(self, rows: Rows, length: int) -> TokenStore:
        """The tokens of texts in a folder of the cache; cut there unless it is done.

        Args:
            rows: the texts.
            length: tokens of a text that a model reads. Some more are kept, so that other lengths need no other
                store.
        """
        kept = kept_tokens(length)
        more = {"tokens": kept} if kept > KEPT_TOKENS else {}
        fingerprint = fingerprint_of(
            {"rows": rows.fingerprint, "tokenizer": self.tokenizer.describe(), **more}
        )
        folder = self.cache / f"tokens-{fingerprint[:16]}"
        return TokenStore.build(rows.texts, self.tokenizer, folder, fingerprint, max_tokens=kept)

    def tokenise_now(self, rows: Rows, length: int) -> TokenStore:
        """The tokens of texts in memory, for a prediction."""
        return TokenStore.from_texts(rows.texts, self.tokenizer, max_tokens=kept_tokens(length))

    def prepare_vocabulary(
        self, stores: Sequence[TokenStore], counts: Mapping[str, int] | None = None
    ) -> Part:
        """Choose the words of tokenised texts and their vectors, unless it is done.

        Args:
            stores: the texts.
            counts: what is counted of each word in place of its occurrences.

        Returns:
            A folder that `open_vocabulary` opens.
        """
        options = self.options
        description = {
            "stores": [store.part[1] for store in stores],
            "vectors": contents_of(options.word_vectors),
            "path": options.word_vectors,
            **{name: options[name] for name in VOCABULARY_OPTIONS},
            **({"unit length": True} if options.normalize_vectors else {}),
            **({} if counts is None else {"counts": fingerprint_of(counts)}),
            **({} if (start := self.describe_start()) is None else {"start": start}),
            **({} if options.word_vectors is None else {"files": ["vectors", "has_vector"]}),
        }
        fingerprint = fingerprint_of(description)
        folder = self.cache / f"vocabulary-{fingerprint[:16]}"
        with lock(folder):
            if is_whole(folder, fingerprint):
                return folder.name, fingerprint
            if isinstance(self.tokenizer, TransformersTokenizer):
                vocabulary, found = Vocabulary.from_transformers(self.tokenizer), None
            else:
                vocabulary, found = choose_words(stores, options, self.tokenizer, counts, self._start_words)
            with new_folder(folder, fingerprint) as partial:
                (partial / "vocabulary.json").write_text(json.dumps(vocabulary.to_dict()))
                if found is not None:
                    table, has_vector = found
                    if options.normalize_vectors:
                        table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
                    np.save(partial / "vectors.npy", table)
                    np.save(partial / "has_vector.npy", has_vector)
        return folder.name, fingerprint

    def open_vocabulary(self, part: Sequence[str]) -> Vocabulary:
        """The vocabulary that `prepare_vocabulary` chose; its vectors, if any, are those in use from now on."""
        folder = self.cache / part[0]
        check_folder(folder, part[1])
        vectors = folder / "vectors.npy"
        self._vectors_file = vectors if vectors.exists() else None
        return Vocabulary.from_dict(json.loads((folder / "vocabulary.json").read_text()))


def kept_tokens(length: int) -> int:
    """How many tokens of a text a store keeps for a model that reads `length`; one more shows that it is cut."""
    return max(KEPT_TOKENS, length + 1)


def choose_words(
    stores: Sequence[TokenStore],
    options: Mapping[str, Any],
    tokenizer: Tokenizer,
    counts: Mapping[str, int] | None = None,
    more_words: Sequence[str] = (),
) -> tuple[Vocabulary, tuple[NDArray[np.float32], NDArray[np.bool_]] | None]:
    """The vocabulary of texts and further words, and its `initial_table` (None: no vector file)."""
    known = {word for store in stores for word in store.lexicon}.union(more_words)
    vectors = None
    if options["word_vectors"] is not None:
        vectors = read_vectors(options["word_vectors"], words=known, most_frequent=options["vector_words"])
    vocabulary = Vocabulary.from_stores(
        stores,
        tokenizer,
        min_count=options["min_count"],
        max_words=options["max_words"],
        extra_words=[*(() if vectors is None else vectors.words), *more_words],
        characters=options["characters"],
        counts=counts,
    )
    if vectors is None:
        return vocabulary, None
    log.info("%s", vectors.describe_coverage(stores))
    return vocabulary, initial_table(vocabulary, vectors, seed=0)
