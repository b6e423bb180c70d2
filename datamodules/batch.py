"""Batches and specs: everything that a model receives from its data, as NamedTuples.

Sizes: B texts (or queries, examples, dialogues), T tokens in a text, K memories of a text, M distinct memory texts in
the batch, S tokens in a memory text, U distinct words in the batch, L characters in a word.

A batch holds each distinct word and memory text once, so a model computes its vector once. Most have these fields:

- `word`: int64 [U], vocabulary ids of the distinct words; row 0 is padding.
- `char`: int64 [U, L], their character ids, 0 = padding; [U, 0] where the model reads no characters.
- `text`, `..._text`: int64 [texts, tokens], positions in `word`, 0 = padding.
- `weight`: float32 [rows], 1, or 0 for a row that pads a distributed evaluation.
- `row`: int64 [rows], row numbers in the table that the batch comes from.
- `is_duplicate`: bool [rows], True for duplicates of training rows or memories; None where rows are not compared.
- `..._string`: the texts themselves, one for each of `..._text`; None where the model reads none.

A spec has the sizes and labels that a network is built for: plain values, kept in checkpoints. `num_words` and
`num_chars` count padding and the unknown word or character; `num_chars` is 0 where batches carry no characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from datamodules.retrieval.memories.encoded_memory import EncodedMemory
    from datamodules.text.encodings import StoredEncodings


class BatchContents(NamedTuple):
    """Optional contents of batches; a model passes them whenever it requests batches."""

    #: add the texts as strings.
    strings: bool = False
    #: add the words of the memory texts.
    memory_texts: bool = True
    #: labels of the memory alone: classes after those of the spec.
    new_labels: tuple[str, ...] = ()
    #: vectors of the memory, which replace the words of the memory texts.
    encoded_memory: EncodedMemory | None = None
    #: vectors of the texts and of further memory texts by a frozen encoder, which replace their words.
    encoded_texts: StoredEncodings | None = None


class TextBatch(NamedTuple):
    """Texts to encode, and nothing about them."""

    word: Tensor
    char: Tensor
    text: Tensor
    string: list[str] | None = None


class ClassificationBatch(NamedTuple):
    """B texts to classify, each with its memories."""

    word: Tensor
    char: Tensor
    text: Tensor
    #: [M, S]: the distinct memory texts.
    memory_text: Tensor
    #: int64 [B, K]: rows of `memory_text`, 0 where `memory_mask` is False.
    memory: Tensor
    #: bool [B, K]: True where there is a memory. [B, 0] where the model runs without memories.
    memory_mask: Tensor
    #: float32 [B, K]: retrieval scores, 0 where there is no memory.
    memory_score: Tensor
    #: int64 [B, K]: the memories' classes, -100 where unknown or where there is no memory. Of sets, [B, K, L]: the
    #: labels of each, -100 after the last.
    memory_target: Tensor
    #: int64 [B]: classes; -100 = unknown (prediction), C = a label that the model does not know. Of sets, [B, C]: 1 for
    #: the labels of a text, 0 for others.
    target: Tensor
    weight: Tensor
    row: Tensor
    #: float32 [B, l] and [M, l]: encodings of the texts and of the memory texts by a frozen encoder; `word`, `char`,
    #: `text` and `memory_text` are then empty. None: the model encodes.
    text_vector: Tensor | None = None
    memory_vector: Tensor | None = None
    text_string: list[str] | None = None
    memory_string: list[str] | None = None
    is_duplicate: Tensor | None = None
    #: int64 [B]: number of a text's labels that the model does not know, of sets; None: a text has one label.
    unknown_labels: Tensor | None = None


class ClassificationSpec(NamedTuple):
    """Sizes and labels of texts to classify."""

    num_words: int
    num_chars: int
    labels: list[str]
    #: labels of the memories: the same list, or another task's labels, or none.
    memory_labels: list[str]
    #: maximum number of memories per text; 0 = the data has no memory.
    num_memories: int
    #: stands between the labels of a text, which are a set; None = a text has one label.
    label_separator: str | None = None


class MatchingBatch(NamedTuple):
    """P pairs of texts to score, in B lists of at most C: N distinct first texts and M distinct second texts."""

    word: Tensor
    char: Tensor
    #: float32 [U]: inverse document frequency of the words in the training texts; 0 for padding.
    idf: Tensor
    #: [N, T] and [M, S]: the distinct first texts (questions) and second texts (answers).
    first_text: Tensor
    second_text: Tensor
    #: int64 [P]: rows of `first_text` and of `second_text`.
    first: Tensor
    second: Tensor
    #: int64 [P]: list (query) of a pair, 0..B-1, and position in its list, 0..C-1; the pairs of a list are consecutive.
    query: Tensor
    place: Tensor
    #: float32 [P]: grades (0 = does not match); 0 or 1 for pairs to classify; nan = unknown (prediction).
    target: Tensor
    weight: Tensor
    #: -1 for pairs that are in no table.
    row: Tensor
    #: float32 [N, T, l] and [M, S, l]: token vectors of the texts by a frozen encoder. None: the model encodes.
    first_vector: Tensor | None = None
    second_vector: Tensor | None = None
    first_string: list[str] | None = None
    second_string: list[str] | None = None
    #: in a ranking of a question: its duplicates.
    is_duplicate: Tensor | None = None


class MatchingSpec(NamedTuple):
    """Sizes and goal of pairs."""

    num_words: int
    num_chars: int
    #: `ranking` orders a question's candidates; `classification` decides whether two texts match.
    goal: str
    #: vocabulary id of all words that the vocabulary lacks; two of them need not be the same word.
    unknown: int = 1
    #: ids of the tokens that a `transformers` tokenizer puts around every text; they are not words.
    special: tuple[int, ...] = ()

    @property
    def num_outputs(self) -> int:
        """Logits of a pair: its score, or one for "does not match" and one for "matches"."""
        return 1 if self.goal == "ranking" else 2


class DialogueBatch(NamedTuple):
    """B dialogues of at most N turns and L words in all, each once, with P questions of at most T words.

    A choice is a possible answer: the V words of the vocabulary, then at most X others of the question's own dialogue.
    """

    word: Tensor
    #: int64 [U]: hash of the spelling of a word that the vocabulary lacks, 0 for all others.
    spelling: Tensor
    #: float32 [U]: number of training dialogues with the word.
    frequency: Tensor
    #: int64 [B, L]: the words of a dialogue, turn after turn, positions in `word`, 0 = padding.
    text: Tensor
    #: int64 [B, L]: turn of a word, 0..N-1; undefined at padding.
    turn: Tensor
    #: int64 [B, L]: position of a word in its turn, from 1; 0 at padding.
    place: Tensor
    #: int64 [B, L]: choice of a word, 0..V+X-1; 0 at padding.
    choice: Tensor
    #: int64 [B, X]: the words that are choices of their dialogue alone, positions in `word`, 0 = padding.
    own: Tensor
    #: int64 [B, N]: number of later turns of the dialogue, 0 = the latest; undefined at padding.
    age: Tensor
    #: int64 [P, T]: the questions, positions in `word`, 0 = padding.
    question: Tensor
    #: int64 [P]: dialogue of a question, 0..B-1.
    dialogue: Tensor
    #: bool [P, N]: the turns that are read for a question.
    readable: Tensor
    #: int64 [P]: choices; -1: the answer is none of them; -100: unknown (prediction).
    answer: Tensor
    #: of the P questions, as `row`.
    weight: Tensor
    row: Tensor


class DialogueSpec(NamedTuple):
    """Sizes of dialogues."""

    #: V; padding is 0, and the unknown word 1.
    num_words: int
    #: turns of the longest training dialogue, as kept.
    num_turns: int


class ClickBatch(NamedTuple):
    """B queries to train on, each with a relevant document and others: N distinct queries and M distinct documents."""

    word: Tensor
    char: Tensor
    #: [N, T] and [M, S]: the distinct queries and documents.
    query_text: Tensor
    document_text: Tensor
    #: int64 [B]: rows of `query_text`, and of `document_text`: the relevant documents.
    query: Tensor
    positive: Tensor
    #: bool [B, M]: the documents that are compared in an example: the relevant one and its negatives.
    candidate: Tensor
    #: int64 [B]: judgement of an example.
    row: Tensor
    query_string: list[str] | None = None
    document_string: list[str] | None = None


class QueryBatch(NamedTuple):
    """Queries with their judgements, for which a collection of D documents is ranked: B queries."""

    queries: TextBatch
    #: int64 [J]: query (0..B-1) and document (0..D-1) of each judgement.
    judged_query: Tensor
    judged_document: Tensor
    #: float32 [J]: grades; 0 = judged to be irrelevant.
    grade: Tensor
    weight: Tensor
    row: Tensor
    #: bool [B, D]: the documents that are ranked for a query. None: all.
    candidate: Tensor | None = None
    #: int64 [B, H]: hits of a retriever, -1 = none, and float32 [B, H], their scores. None: nothing was retrieved.
    hit: Tensor | None = None
    hit_score: Tensor | None = None
    is_duplicate: Tensor | None = None


class ClickSpec(NamedTuple):
    """Sizes of queries and documents."""

    num_words: int
    num_chars: int
    #: letter trigrams of the training texts, see `datamodules.text.trigrams`; empty where batches carry no letters.
    trigrams: list[int]


def as_tensors(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Any]:
    """Arrays as tensors that share their memory: fields of a batch."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
