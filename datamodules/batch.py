"""What passes from the data modules to the models: NamedTuples of tensors, and of strings where a model asks for them.

B texts, T tokens in a text, K memories of a text, M distinct memory texts in the batch, S tokens in a
memory text, U distinct words in the batch, L characters in a word.

Words are deduplicated within a batch: texts hold positions in the table `word`/`chars` of the batch, so a
model computes a word's vector (a table row, a character LSTM) once, however often the word occurs.
Memory texts are deduplicated likewise. A NamedTuple (and not a dataclass) because Lightning and PyTorch
move and pin NamedTuples without being taught.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from datamodules.encodings import EncodedTexts
    from datamodules.retrieval.memories.encoded_memory import EncodedMemory


class BatchContents(NamedTuple):
    """What a model wants in its batches; the model passes it whenever it requests batches."""

    #: the texts as strings.
    strings: bool = False
    #: the words of the memory texts.
    memory_texts: bool = True
    #: labels that only the memory has: classes behind those of the spec.
    new_labels: tuple[str, ...] = ()
    #: vectors of the memory, which replace the words of the memory texts.
    encoded_memory: EncodedMemory | None = None
    #: vectors of the texts and of further memory texts by a frozen encoder, which replace their words.
    encoded_texts: EncodedTexts | None = None


class TextBatch(NamedTuple):
    """Texts to encode, and nothing about them: what `TextDataModule.cache_encodings` gives a frozen encoder."""

    #: int64 [U]: vocabulary ids of the distinct words of the batch; row 0 is padding.
    word: Tensor
    #: int64 [U, L]: their character ids, 0 = padding; [U, 0] where the model reads no characters.
    char: Tensor
    #: int64 [B, T]: positions in `word`, 0 = padding.
    text: Tensor


class ClassificationBatch(NamedTuple):
    """Texts to classify, each with its memories."""

    #: int64 [U]: vocabulary ids of the distinct words of the batch; row 0 is padding.
    word: Tensor
    #: int64 [U, L]: their character ids, 0 = padding; [U, 0] where the model reads no characters.
    char: Tensor
    #: int64 [B, T]: positions in `word`, 0 = padding.
    text: Tensor
    #: int64 [M, S]: the distinct memory texts, positions in `word`, 0 = padding.
    memory_text: Tensor
    #: int64 [B, K]: rows of `memory_text`, 0 where `memory_mask` is False.
    memory: Tensor
    #: bool [B, K]: True where there is a memory. [B, 0] where the model runs without memories.
    memory_mask: Tensor
    #: float32 [B, K]: retrieval scores, 0 where there is no memory.
    memory_score: Tensor
    #: int64 [B, K]: the memories' classes, -100 where unknown or where there is no memory.
    memory_target: Tensor
    #: int64 [B]: classes; -100 unknown (prediction), C = a label that the model does not know.
    target: Tensor
    #: float32 [B]: 1, or 0 for a row that pads a distributed evaluation.
    weight: Tensor
    #: int64 [B]: row numbers in the table that the texts come from.
    row: Tensor
    #: float32 [B, l] and [M, l]: encodings of the texts and of the memory texts that a frozen encoder made
    #: beforehand; `word`, `char`, `text` and `memory_text` are then empty. None: the model encodes.
    text_vector: Tensor | None = None
    memory_vector: Tensor | None = None
    #: [B] and [M] strings: the texts and the distinct memory texts themselves. None: the model reads none.
    text_string: list[str] | None = None
    memory_string: list[str] | None = None
    #: bool [B]: a duplicate of the row is in the memory or among the training rows. None: nothing is measured.
    is_duplicate: Tensor | None = None


class ClassificationSpec(NamedTuple):
    """What a network must know of its data before it can be built; plain values, kept in checkpoints."""

    #: vocabulary size, padding and the unknown word included.
    num_words: int
    #: number of characters, padding and the unknown one included; 0 where batches carry none.
    num_chars: int
    #: the classes.
    labels: list[str]
    #: what the memories are labelled with: the same list, or another task's labels, or nothing.
    memory_labels: list[str]
    #: memories a text at most; 0 = the data has no memory.
    num_memories: int


class MatchingBatch(NamedTuple):
    """Pairs of texts to score, in lists: a question's candidates, or one positive with its negatives.

    P pairs in B lists of at most C pairs, of N distinct first texts and M distinct second texts. Each distinct
    text is encoded once, in however many pairs it is.
    """

    #: int64 [U]: vocabulary ids of the distinct words of the batch; row 0 is padding.
    word: Tensor
    #: int64 [U, L]: their character ids, 0 = padding; [U, 0] where the model reads no characters.
    char: Tensor
    #: float32 [U]: inverse document frequency of the words in the training texts; 0 for padding.
    idf: Tensor
    #: int64 [N, T]: the distinct first texts (questions), positions in `word`, 0 = padding.
    first_text: Tensor
    #: int64 [M, S]: the distinct second texts (answers), likewise.
    second_text: Tensor
    #: int64 [P]: rows of `first_text`.
    first: Tensor
    #: int64 [P]: rows of `second_text`.
    second: Tensor
    #: int64 [P]: the list (the query's) that a pair is in, 0..B-1; the pairs of a list stand together.
    query: Tensor
    #: int64 [P]: a pair's place in its list, 0..C-1.
    place: Tensor
    #: float32 [P]: grades (0 = does not match); of pairs to classify 0 or 1; nan unknown (prediction).
    target: Tensor
    #: float32 [P]: 1, or 0 for a pair that pads a distributed evaluation.
    weight: Tensor
    #: int64 [P]: row numbers in the table that the pairs come from, -1 for pairs that are in no table.
    row: Tensor
    #: float32 [N, T, l] and [M, S, l]: token vectors of the texts that a frozen encoder made beforehand. None:
    #: the model encodes.
    first_vector: Tensor | None = None
    second_vector: Tensor | None = None
    #: [N] and [M] strings: the distinct texts themselves. None: the model reads none.
    first_string: list[str] | None = None
    second_string: list[str] | None = None
    #: bool [P]: a duplicate of the pair, or in a ranking of its question, is among the training rows. None: nothing is
    #: measured.
    is_duplicate: Tensor | None = None


class MatchingSpec(NamedTuple):
    """What a network must know of pairs of texts before it can be built; plain values, kept in checkpoints."""

    #: vocabulary size, padding and the unknown word included.
    num_words: int
    #: number of characters, padding and the unknown one included; 0 where batches carry none.
    num_chars: int
    #: `ranking`: a question's candidates are put in order; `classification`: a pair matches or does not.
    goal: str
    #: words kept of a first and of a second text.
    first_length: int
    second_length: int
    #: vocabulary id of all words that the vocabulary lacks; two of them need not be the same word.
    unknown: int = 1
    #: ids of the tokens that stand around every text (of a `transformers` tokenizer), which are no words.
    special: tuple[int, ...] = ()

    @property
    def num_outputs(self) -> int:
        """Logits of a pair: its score, or one for "does not match" and one for "matches"."""
        return 1 if self.goal == "ranking" else 2


class DialogueBatch(NamedTuple):
    """Dialogues, each with its questions: a dialogue is there once, however many questions it has.

    B dialogues of at most N turns and L words in all, P questions of at most T words. A choice is what can be
    answered: the V words of the vocabulary, then at most X words of the question's own dialogue that the vocabulary
    lacks.
    """

    #: int64 [U]: vocabulary ids of the distinct words of the batch; row 0 is padding.
    word: Tensor
    #: int64 [U]: a number made of the spelling of a word that the vocabulary lacks, 0 for all others.
    spelling: Tensor
    #: float32 [U]: how many training dialogues have the word.
    frequency: Tensor
    #: int64 [B, L]: the words of a dialogue, turn after turn, positions in `word`, 0 = padding.
    text: Tensor
    #: int64 [B, L]: the turn that a word is in, 0..N-1; anything at padding.
    turn: Tensor
    #: int64 [B, L]: a word's place in its turn, from 1; 0 at padding.
    place: Tensor
    #: int64 [B, L]: the choice that a word is, 0..V+X-1; 0 at padding.
    choice: Tensor
    #: int64 [B, X]: the words that are choices of their dialogue alone, positions in `word`, 0 = padding.
    own: Tensor
    #: int64 [B, N]: how many turns of the dialogue are later, 0 = the latest; anything at padding.
    age: Tensor
    #: int64 [P, T]: the questions, positions in `word`, 0 = padding.
    question: Tensor
    #: int64 [P]: the dialogue that a question is about, 0..B-1.
    dialogue: Tensor
    #: bool [P, N]: the turns that are read for a question.
    readable: Tensor
    #: int64 [P]: choices; -1: the answer is none of them; -100: unknown (prediction).
    answer: Tensor
    #: float32 [P]: 1, or 0 for a question that pads a distributed evaluation.
    weight: Tensor
    #: int64 [P]: row numbers in the table of questions.
    row: Tensor


class DialogueSpec(NamedTuple):
    """What a network must know of dialogues before it can be built; plain values, kept in checkpoints."""

    #: V: vocabulary size, padding (0) and the unknown word (1) included.
    num_words: int
    #: turns of the longest training dialogue, as kept.
    num_turns: int


class ClickBatch(NamedTuple):
    """Queries to train on, each with a document that answers it and others that compete with it.

    B examples, of N distinct queries and M distinct documents. Each distinct text is encoded once, in however many
    examples it is.
    """

    #: int64 [U]: vocabulary ids of the distinct words of the batch; row 0 is padding.
    word: Tensor
    #: int64 [U, L]: their character ids, 0 = padding; [U, 0] where the model reads no characters.
    char: Tensor
    #: int64 [N, T]: the distinct queries, positions in `word`, 0 = padding.
    query_text: Tensor
    #: int64 [M, S]: the distinct documents, likewise.
    document_text: Tensor
    #: int64 [B]: rows of `query_text`.
    query: Tensor
    #: int64 [B]: rows of `document_text`, the relevant documents.
    positive: Tensor
    #: bool [B, M]: the documents that are compared in an example: the relevant one and its negatives.
    candidate: Tensor
    #: int64 [B]: number of the judgement that an example is of.
    row: Tensor
    #: [N] and [M] strings: the texts themselves. None: the model reads none.
    query_string: list[str] | None = None
    document_string: list[str] | None = None


class DocumentBatch(NamedTuple):
    """Documents of a collection to encode: a block of B."""

    word: Tensor
    char: Tensor
    #: int64 [B, S]: positions in `word`, 0 = padding.
    text: Tensor
    #: int64 [B]: columns that the documents have in scores of the collection.
    row: Tensor
    #: [B] strings. None: the model reads none.
    string: list[str] | None = None


class QueryBatch(NamedTuple):
    """Queries that a collection of D documents is ranked for, with their judgements: B queries."""

    word: Tensor
    char: Tensor
    #: int64 [B, T]: positions in `word`, 0 = padding.
    text: Tensor
    #: int64 [J]: the query of each judgement, 0..B-1.
    judged_query: Tensor
    #: int64 [J]: the document of each judgement, 0..D-1.
    judged_document: Tensor
    #: float32 [J]: grades; 0 = judged to be irrelevant.
    grade: Tensor
    #: bool [B, D]: the documents that are ranked for a query. None: all.
    candidate: Tensor | None
    #: float32 [B]: 1, or 0 for a query that pads a distributed evaluation.
    weight: Tensor
    #: int64 [B]: row numbers in the table of queries.
    row: Tensor
    #: int64 [B, H]: documents that a retriever found, -1 = none, and float32 [B, H], its scores. None: it was not
    #: asked.
    hit: Tensor | None = None
    hit_score: Tensor | None = None
    #: [B] strings. None: the model reads none.
    string: list[str] | None = None
    #: bool [B]: a duplicate of the query is among the training queries. None: nothing is measured.
    is_duplicate: Tensor | None = None


class ClickSpec(NamedTuple):
    """What a network must know of queries and documents before it can be built; plain values, kept in checkpoints."""

    #: vocabulary size, padding and the unknown word included.
    num_words: int
    #: number of characters, padding and the unknown one included; 0 where batches carry none.
    num_chars: int
    #: letter trigrams of the training texts, see `datamodules.trigrams`; empty where batches carry no letters.
    trigrams: list[int]


def as_tensors(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Any]:
    """Arrays as tensors that share their memory: fields of a batch."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
