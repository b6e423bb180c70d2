"""What the data modules prepare alike: rows, tokens, vocabulary and memory in folders of the cache.

Every result is a folder under a fingerprint of what it was made from. A plan names the folders: rank 0 writes
it in `prepare_data`, every rank reads it in `setup`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.corpora.table import Column, Rows, read_table
from datamodules.errors import InputError
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.memory import POINTER, IndexMemory, Memory, is_existing_index, open_memory
from datamodules.storage import check_folder, fingerprint_of, is_whole, lock, new_folder
from datamodules.text.tokenization import Tokenizer, TransformersTokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vectors import initial_table, read_vectors
from datamodules.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

#: Tokens that a store keeps of a text, unless a model reads more.
KEPT_TOKENS = 512

#: Options that decide which words are known.
VOCABULARY_OPTIONS = ("min_count", "max_words", "vector_words", "characters", "tokenizer", "lowercase")


def check_least(options: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Refuse options that are too small.

    Args:
        options: values of a data module's options; None is allowed.
        least: the smallest value of each option that is a number.

    Raises:
        InputError: names the option.
    """
    for name, smallest in least.items():
        if options[name] is not None and options[name] < smallest:
            raise InputError(f"data.{name}={options[name]}: must be {smallest} or more")


def file_state(path: str | Path | None) -> list[int] | None:
    """Size and time of a file: a changed file makes the prepared data anew."""
    if path is None or not Path(path).exists():
        return None
    stat = Path(path).stat()
    return [stat.st_size, stat.st_mtime_ns]


def are_whole(cache: Path, parts: Iterable[Sequence[str] | None]) -> bool:
    """False if a folder of a plan was deleted (it is made again); a damaged one raises.

    Args:
        cache: where the folders are.
        parts: name and fingerprint of each; None = a part that the data does not have.
    """
    return all(is_whole(cache / part[0], part[1]) for part in parts if part is not None)


def prepare_rows(rows: Rows, cache: Path) -> tuple[str, str]:
    """Write a table, unless it is there; returns name and fingerprint of its folder (with `rows.arrow`)."""
    folder = cache / f"rows-{rows.fingerprint[:16]}"
    with lock(folder):
        if not is_whole(folder, rows.fingerprint):
            with new_folder(folder, rows.fingerprint) as partial:
                rows.save(partial / "rows.arrow")
    return folder.name, rows.fingerprint


def kept_tokens(length: int) -> int:
    """How many tokens of a text a store keeps for a model that reads `length`; one more shows that it is cut."""
    return max(KEPT_TOKENS, length + 1)


def prepare_tokens(
    rows: Rows, tokenizer: Tokenizer, cache: Path, length: int = 0
) -> tuple[tuple[str, str], TokenStore]:
    """Tokenise texts, unless it is done; returns name and fingerprint of the folder, and the open store.

    Args:
        rows: the texts.
        tokenizer: what cuts them.
        cache: where the folder goes.
        length: tokens of a text that a model reads. Some more are kept, so that other lengths need no other
            store.
    """
    kept = kept_tokens(length)
    more = {"tokens": kept} if kept > KEPT_TOKENS else {}
    fingerprint = fingerprint_of({"rows": rows.fingerprint, "tokenizer": tokenizer.describe(), **more})
    folder = cache / f"tokens-{fingerprint[:16]}"
    store = TokenStore.build(rows.texts, tokenizer, folder, fingerprint, max_tokens=kept)
    return (folder.name, fingerprint), store


def given_memory(
    retriever: Retriever, given: str | None, text_column: Column | list[Column], label_column: Column | None
) -> Memory | Rows | None:
    """The memory that the user named, open; or the rows that it is to be built of; None if he named none.

    Args:
        retriever: back end and ranking; one that reads an index of the user's is its own memory.
        given: the option `memory`: a memory folder or a table.
        text_column: text of such a table.
        label_column: its label; None = its texts have none.
    """
    if is_existing_index(retriever):
        return IndexMemory(retriever)
    if given is None:
        return None
    if (Path(given) / POINTER).exists():
        return open_memory(given, retriever)
    if not given.startswith("hub:") and not Path(given).exists():
        raise InputError(
            f"data.memory={given}: no such memory folder or table; name the one to use, or build one with"
            " `zoo index`"
        )
    return read_table(given, text_column=text_column, label_column=label_column)


def memory_folder(rows: Rows, retriever: Retriever, cache: Path) -> Path:
    """Where the memory of these rows is or will be; `FolderMemory.build` builds it."""
    description = {
        "rows": rows.fingerprint,
        "back end": type(retriever).__name__,
        **retriever.ranking.describe(),
    }
    return cache / f"memory-{fingerprint_of(description)[:16]}"


def prepare_vocabulary(
    named: Sequence[tuple[str, str]],
    options: Mapping[str, Any],
    tokenizer: Tokenizer,
    cache: Path,
    *,
    stores: Sequence[TokenStore] | None = None,
    normalize_vectors: bool = False,
) -> tuple[str, str]:
    """Choose the words of tokenised texts and their vectors, unless it is done.

    Args:
        named: name and fingerprint of the folders of the texts.
        options: `VOCABULARY_OPTIONS` and `word_vectors` of the data module.
        tokenizer: what cut the texts.
        cache: where the folders are.
        stores: the tokenised texts, where they are open.
        normalize_vectors: give every word's vector the length 1.

    Returns:
        Name and fingerprint of a folder that `open_vocabulary` opens.
    """
    description = {
        "stores": [fingerprint for _, fingerprint in named],
        "vectors": file_state(options["word_vectors"]),
        "path": options["word_vectors"],
        **{name: options[name] for name in VOCABULARY_OPTIONS},
        **({"unit length": True} if normalize_vectors else {}),
    }
    fingerprint = fingerprint_of(description)
    folder = cache / f"vocabulary-{fingerprint[:16]}"
    with lock(folder):
        if is_whole(folder, fingerprint):
            return folder.name, fingerprint
        if isinstance(tokenizer, TransformersTokenizer):
            vocabulary, table = Vocabulary.from_transformers(tokenizer), None
        else:
            if stores is None:
                stores = [TokenStore.open(cache / name, mark) for name, mark in named]
            vocabulary, table = choose_words(stores, options, tokenizer)
        if table is not None and normalize_vectors:
            table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        with new_folder(folder, fingerprint) as partial:
            (partial / "vocabulary.json").write_text(json.dumps(vocabulary.to_dict()))
            if table is not None:
                np.save(partial / "vectors.npy", table)
    return folder.name, fingerprint


def choose_words(
    stores: Sequence[TokenStore], options: Mapping[str, Any], tokenizer: Tokenizer
) -> tuple[Vocabulary, NDArray[np.float32] | None]:
    """The vocabulary of texts, and what its word table starts from (None: no vector file)."""
    known = {word for store in stores for word in store.lexicon}
    vectors = None
    if options["word_vectors"] is not None:
        vectors = read_vectors(options["word_vectors"], words=known, most_frequent=options["vector_words"])
    vocabulary = Vocabulary.from_stores(
        stores,
        tokenizer,
        min_count=options["min_count"],
        max_words=options["max_words"],
        extra_words=() if vectors is None else vectors.words,
        characters=options["characters"],
    )
    if vectors is None:
        return vocabulary, None
    log.info("%s", vectors.coverage(stores))
    return vocabulary, initial_table(vocabulary, vectors, seed=0)


def open_vocabulary(cache: Path, part: Sequence[str]) -> tuple[Vocabulary, Path | None]:
    """The vocabulary that `prepare_vocabulary` chose, and the file of its vectors [num_words, d], if any."""
    folder = cache / part[0]
    check_folder(folder, part[1])
    vocabulary = Vocabulary.from_dict(json.loads((folder / "vocabulary.json").read_text()))
    vectors = folder / "vectors.npy"
    return vocabulary, vectors if vectors.exists() else None
