import pickle
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from datamodules.core.storage import build_folder
from datamodules.text.tokenization import Tokenizer, make_tokenizer
from datamodules.text.tokens import TokenStore, count_tokens

WORDS = make_tokenizer("words", lowercase=True)
TEXTS = ["The cat sat.", "", "A \ud800 and a \0, the\u2028cat!", "\udc00 \ud83d\ude00 \U0001f600"]
TEXTS += ["x" * 1_000_000]


WORDS_OF_TEXTS = [
    ["the", "cat", "sat", "."], [], ["a", "\ud800", "and", "a", "\0", ",", "the", "cat", "!"],
    ["\udc00", "\ud83d", "\ude00", "\U0001f600"], ["x" * 1_000_000],
]  # fmt: skip


def all_words(store: TokenStore) -> list[list[str]]:
    return [store.words(row) for row in range(len(store))]


def built(folder: Path, texts: Iterable[str], tokenizer: Tokenizer = WORDS, **options: int) -> TokenStore:
    build_folder(folder, "f", TokenStore.from_texts(texts, tokenizer, **options).save)
    return TokenStore.open(folder, "f")


def test_a_store_gives_back_every_token(tmp_path: Path) -> None:
    opened = built(tmp_path / "store", TEXTS)
    memory = TokenStore.from_texts(TEXTS, WORDS)
    for store in (opened, memory, pickle.loads(pickle.dumps(opened)), pickle.loads(pickle.dumps(memory))):
        assert all_words(store) == WORDS_OF_TEXTS
        assert store.lexicon == memory.lexicon
        assert (store.tokens.dtype, store.offsets.dtype) == (np.int32, np.int64)
    assert len(pickle.dumps(opened)) < 1000
    assert memory.lexicon[:5] == ["the", "cat", "sat", ".", "a"]


@pytest.mark.parametrize("texts", [["a b c d e", "a b", "", "f g h"], [], [""], ["", " "]])
def test_long_texts_are_shortened_and_there_may_be_none(tmp_path: Path, texts: list[str]) -> None:
    for store in (
        built(tmp_path / "s", texts, max_tokens=2),
        TokenStore.from_texts(texts, WORDS, max_tokens=2),
    ):
        assert all_words(store) == [text.split()[:2] for text in texts]
        assert store.lexicon == list(dict.fromkeys(" ".join(texts).split()))


@pytest.mark.parametrize("num_texts", [0, 2, 40, 80])
def test_counts_equal_plain_python(num_texts: int) -> None:
    random = np.random.default_rng(num_texts)
    offsets = np.cumsum([0, *random.integers(0, max(num_texts // 4, 1), num_texts)])
    tokens = random.integers(0, 12, offsets[-1]).astype(np.int32)
    texts, occurrences = count_tokens(tokens, offsets, 15)
    rows = [tokens[start:end].tolist() for start, end in pairwise(offsets)]
    assert texts.tolist() == [sum(token in row for row in rows) for token in range(15)]
    assert occurrences.tolist() == [sum(row.count(token) for row in rows) for token in range(15)]
    assert (texts.dtype, occurrences.dtype) == (np.int64, np.int64)
