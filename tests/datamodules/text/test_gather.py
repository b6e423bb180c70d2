import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.text.gather import TokenTable, bind, distinct_rows, gather
from datamodules.text.tokenization import make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from tests.sentence_folders import save_tokenizer

SPACES = make_tokenizer("whitespace", lowercase=False)
MAX_CHARS = 5


def random_texts(seed: int, n: int) -> list[str]:
    random = np.random.default_rng(seed)
    alphabet = list("abcdefgh\U0001f600é")
    words = ["".join(random.choice(alphabet, random.integers(1, 9))) for _ in range(60)]
    return [" ".join(random.choice(words, random.integers(0, 12))) for _ in range(n)]


def by_hand(
    groups: list[tuple[list[str], list[int], int]], vocabulary: Vocabulary
) -> tuple[list[int], list[list[int]], list[list[list[int]]]]:
    """The expected result of `gather`, from strings, in plain Python."""
    ids = {word: id for id, word in enumerate(vocabulary.words)}
    chars = {char: id for id, char in enumerate(vocabulary.characters or [])}
    seen: dict[Any, int] = {}
    word, char, texts = [vocabulary.pad_id], [[]], []
    for strings, rows, max_length in groups:
        group = []
        for row in rows:
            tokens = strings[row].split()[: max_length - len(vocabulary.prefix) - len(vocabulary.suffix)]
            named = [(ids.get(token, vocabulary.unk_id), token) for token in tokens]
            named = [(id, "") for id in vocabulary.prefix] + named + [(id, "") for id in vocabulary.suffix]
            text = []
            for id, token in named:
                key = token if vocabulary.characters else id
                if key not in seen:
                    seen[key] = len(word)
                    word.append(id)
                    char.append([chars.get(c, 1) for c in token[:MAX_CHARS]] if vocabulary.characters else [])
                text.append(seen[key])
            group.append(text)
        width = max([1, *map(len, group)])
        texts.append([text + [0] * (width - len(text)) for text in group])
    width = max(map(len, char))
    return word, [row + [0] * (width - len(row)) for row in char], texts


#: A table, its texts, the rows that are read and the length.
Group = tuple[TokenTable, list[str], NDArray[np.integer], int]


def check(vocabulary: Vocabulary, *groups: Group) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Compare a batch with `by_hand`; return its words and texts."""
    word, char, texts = gather(*((replace(table, length=length), rows) for table, _, rows, length in groups))
    read = [(strings, rows.tolist(), length) for _, strings, rows, length in groups]
    result = word.tolist(), char.tolist(), [text.tolist() for text in texts]
    assert result == by_hand(read, vocabulary)
    for array in (word, char, *texts):
        assert array.dtype == np.int64
        assert array.size == 0 or torch.from_numpy(array).data_ptr() == array.ctypes.data
    return word, texts


def make_tables(
    *corpora: list[str], characters: bool, min_count: int = 2
) -> tuple[list[TokenTable], Vocabulary]:
    stores = [TokenStore.from_texts(texts, SPACES) for texts in corpora]
    # The words of the first corpus only, so that others have unknown words and characters.
    vocabulary = Vocabulary.from_stores(stores[:1], SPACES, min_count=min_count, characters=characters)
    return bind(vocabulary, [(store, 9) for store in stores], MAX_CHARS), vocabulary


@pytest.mark.parametrize("characters", [True, False])
@pytest.mark.parametrize("max_length", [1, 4, 100])
@pytest.mark.parametrize("seed", range(3))
def test_gather_equals_plain_python(characters: bool, max_length: int, seed: int) -> None:
    texts, memories = random_texts(seed, 40), random_texts(seed + 100, 50)
    (queries, memory), vocabulary = make_tables(texts, memories, characters=characters)
    random = np.random.default_rng(seed)
    for _ in range(4):  # later batches find the stamps of earlier ones
        rows, memory_rows = random.integers(40, size=7), random.integers(50, size=19).astype(np.int32)
        check(vocabulary, (queries, texts, rows, max_length), (memory, memories, memory_rows, 6))


def test_empty_texts_and_empty_groups_are_padding() -> None:
    (table,), _ = make_tables(["", "a b", " "], characters=True, min_count=1)
    nothing = np.array([], dtype=np.int64)
    word, char, texts = gather((table, np.array([0, 2])), (table, nothing))
    assert word.tolist() == [0]
    assert char.shape == (1, 0)
    assert [group.tolist() for group in texts] == [[[0], [0]], []]
    assert texts[1].shape == (0, 1)
    mixed = gather((table, np.array([0, 1])))
    assert mixed[2][0].tolist() == [[0, 0], [1, 2]]


def test_special_tokens_surround_texts_and_count(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(save_tokenizer(tmp_path), False)
    vocabulary = Vocabulary.from_transformers(tokenizer)
    texts = ["the cat sat the", "", "dog the"]
    (table,) = bind(vocabulary, [(TokenStore.from_texts(texts, tokenizer), 9)])
    for max_length in (3, 5, 9):
        word, (text,) = check(vocabulary, (table, texts, np.arange(3), max_length))
    ids = word[text]
    assert ids.tolist() == [[2, 4, 5, 8, 4, 3], [2, 3, 0, 0, 0, 0], [2, 1, 4, 3, 0, 0]]
    with pytest.raises(InputError, match="max_length=2: must be at least 3"):
        gather((replace(table, length=2), np.array([0])))


def test_missing_rows_and_tables_of_other_vocabularies_are_refused() -> None:
    (table,), _ = make_tables(["a"], characters=True)
    (other,), _ = make_tables(["a"], characters=True)
    for row in (-1, 1):
        with pytest.raises(IndexError, match="with 1 rows"):
            gather((table, np.array([0, row])))
    with pytest.raises(ValueError, match="bound together"):
        gather((table, np.array([0])), (other, np.array([0])))


def work(table: TokenTable, seed: int) -> list[NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    return [gather((table, random.integers(300, size=16)))[0] for _ in range(30)]


def test_threads_and_forked_workers_do_not_disturb_each_other() -> None:
    (table,), _ = make_tables(random_texts(5, 300), characters=True)
    alone = [work(table, seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as threads:
        threaded = list(threads.map(partial(work, table), range(3)))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        forked = pool.starmap(work, [(table, seed) for seed in range(3)])
    for seed in range(3):
        for words in zip(alone[seed], threaded[seed], forked[seed], strict=True):
            assert words[0].tolist() == words[1].tolist() == words[2].tolist()


def test_distinct_rows() -> None:
    unique, inverse = distinct_rows(np.array([[7, 3, -1], [3, 9, 7], [-1, -1, -1]], dtype=np.int32))
    assert unique.tolist() == [3, 7, 9]
    assert inverse.tolist() == [[1, 0, 0], [0, 2, 1], [0, 0, 0]]
    assert (unique.dtype, inverse.dtype) == (np.int64, np.int64)
    unique, inverse = distinct_rows(np.array([[4, 4], [2, 4]]))
    assert (unique.tolist(), inverse.tolist()) == ([2, 4], [[1, 1], [0, 1]])
    for shape in ((2, 3), (2, 0), (0, 5)):
        unique, inverse = distinct_rows(np.full(shape, -1))
        assert unique.shape == (0,)
        assert inverse.tolist() == np.zeros(shape, dtype=int).tolist()
