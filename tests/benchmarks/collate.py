"""Batches from rows: examples per CPU second, compared with a collate function in plain Python.

64 texts a batch, each with 5 memories of 40 words, drawn from 50,000 words by Zipf's law, up to 16
characters a word. The peer returns the same values the usual way: lists, dictionaries and
`torch.nn.utils.rnn.pad_sequence`. Both are timed in turns, in CPU seconds of this process.

    python tests/benchmarks/collate.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from datamodules.text.gather import TextGroup, WordTable, distinct_rows, gather
from datamodules.text.tokenization import make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

BATCH, MEMORIES, WORDS, MAX_CHARS, VOCABULARY = 64, 5, 40, 16, 50_000


def make_texts(random: np.random.Generator, n: int) -> list[str]:
    """Texts of 40 words by Zipf's law; frequent words are short."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    spelling = np.random.default_rng(0)
    words = [
        "".join(spelling.choice(letters, 2 + int(spelling.poisson(np.log10(10 + rank))))) + str(rank)
        for rank in range(VOCABULARY)
    ]
    share = 1 / np.arange(1, VOCABULARY + 1)
    drawn = random.choice(VOCABULARY, size=(n, WORDS), p=share / share.sum())
    return [" ".join(words[word] for word in row) for row in drawn]


def plain_collate(
    query_rows: list[int],
    memory_rows: list[list[int]],
    query_words: list[list[str]],
    memory_words: list[list[str]],
    word_ids: dict[str, int],
    char_ids: dict[str, int],
) -> tuple[Tensor, ...]:
    """The same batch from lists of words."""
    rows = sorted({row for row_list in memory_rows for row in row_list})
    row_position = {row: position for position, row in enumerate(rows)}
    memory = torch.tensor([[row_position[row] for row in row_list] for row_list in memory_rows])
    position: dict[str, int] = {}
    padded = []
    for texts in ([query_words[row] for row in query_rows], [memory_words[row] for row in rows]):
        numbered = []
        for text in texts:
            for word in text[:WORDS]:
                if word not in position:
                    position[word] = len(position) + 1
            numbered.append(torch.tensor([position[word] for word in text[:WORDS]]))
        padded.append(pad_sequence(numbered, batch_first=True))
    word = torch.tensor([0, *(word_ids.get(word, 1) for word in position)])
    spelled = [torch.tensor([char_ids.get(char, 1) for char in word[:MAX_CHARS]]) for word in position]
    char = pad_sequence([torch.zeros(0, dtype=torch.int64), *spelled], batch_first=True)
    return word, char, padded[0], padded[1], memory


def cpu_seconds(work: Callable[[int], Any], batches: range) -> float:
    start = time.process_time()
    for batch in batches:
        work(batch)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--memory-texts", type=int, default=120_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    random = np.random.default_rng(1)
    spaces = make_tokenizer("whitespace", lowercase=False)
    query_texts, memory_texts = (make_texts(random, n) for n in (arguments.texts, arguments.memory_texts))
    stores = [TokenStore.from_texts(texts, spaces) for texts in (query_texts, memory_texts)]
    all_rows = random.integers(len(memory_texts), size=(len(query_texts), MEMORIES))
    # As in a collection of news, a few memories serve many texts.
    all_rows[:, 0] //= 100
    order = random.permutation(len(query_texts))
    word_lists = [[text.split() for text in texts] for texts in (query_texts, memory_texts)]

    for characters in (True, False):
        vocabulary = Vocabulary.from_stores(stores, spaces, min_count=2, characters=characters)
        words = WordTable(vocabulary, MAX_CHARS)
        queries, memories = (words.add(store) for store in stores)
        word_ids = {word: id for id, word in enumerate(vocabulary.words)}
        char_ids = {char: id for id, char in enumerate(vocabulary.characters or [])}

        def gathered(batch: int) -> tuple[Tensor, ...]:
            rows = order[batch * BATCH : (batch + 1) * BATCH]
            unique, inverse = distinct_rows(all_rows[rows])
            groups = [TextGroup(queries, rows, WORDS), TextGroup(memories, unique, WORDS)]  # noqa: B023
            batch_of_words = gather(groups)
            return tuple(
                map(
                    torch.from_numpy,
                    (batch_of_words.word, batch_of_words.char, *batch_of_words.texts, inverse),
                )
            )

        def plain(batch: int) -> tuple[Tensor, ...]:
            rows = order[batch * BATCH : (batch + 1) * BATCH]
            return plain_collate(
                rows.tolist(),
                all_rows[rows].tolist(),
                *word_lists,
                word_ids,  # noqa: B023
                char_ids,  # noqa: B023
            )

        if characters:
            for field, expected in zip(gathered(0), plain(0), strict=True):
                assert torch.equal(field, expected), "the peer must return the same batch"
        else:
            gathered(0)

        batches = range(len(query_texts) // BATCH)
        few = range(10)
        rates = []
        for _ in range(arguments.rounds):
            fast = len(batches) * BATCH / cpu_seconds(gathered, batches)
            slow = len(few) * BATCH / cpu_seconds(plain, few)
            rates.append((fast, slow, fast / slow))
        fast, slow, ratio = np.median(np.array(rates), axis=0)
        if characters:
            print(f"with characters: {fast:,.0f} examples a CPU second; plain Python lists + pad_sequence "
                  f"{slow:,.0f}; ratio {ratio:.1f}")  # fmt: skip
        else:
            print(f"without characters: {fast:,.0f} examples a CPU second")


if __name__ == "__main__":
    main()
