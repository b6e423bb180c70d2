"""Batches of dialogues with their questions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, override

from datamodules.batch import DialogueBatch, as_tensors
from datamodules.core.arrays import find_sorted
from datamodules.core.ragged import Ragged, consecutive, offsets_of
from datamodules.core.types import Message
from datamodules.corpora.dialogues import Dialogues
from datamodules.dataset import BatchDataset, Origin, PreparedSplit, rows_and_weights
from datamodules.retrieval.folding import text_hashes
from datamodules.text.tokenization import Lexicon
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

#: Answers that are not a choice: a word that is neither in the dialogue nor in the vocabulary; an unknown answer.
NO_CHOICE, NO_ANSWER = -1, -100


@dataclass(frozen=True)
class DialogueSplit(PreparedSplit):
    """One table of dialogues, ready for batches."""

    dialogues: Dialogues
    turn_tokens: TokenStore
    question_tokens: TokenStore
    #: of each question; one token, or none where the answer is unknown.
    answer_tokens: TokenStore
    #: the turns that are read for each question, as row numbers.
    reading: Ragged

    @classmethod
    @override
    def map_parts(cls, origin: Origin) -> Self:
        return cls(
            Dialogues.load(origin.folder("dialogues"), origin.source),
            origin.open("turn_tokens", TokenStore.open),
            origin.open("question_tokens", TokenStore.open),
            origin.open("answer_tokens", TokenStore.open),
            Ragged.load(origin.folder("reading")),
        )


class DialogueDataset(BatchDataset[DialogueBatch]):
    """Batches of dialogues with their questions."""

    def __init__(
        self, split: DialogueSplit, vocabulary: Vocabulary, frequency: Sequence[int], max_length: int
    ) -> None:
        """Bind a split to a vocabulary; `frequency` has the number of training dialogues with each of its words."""
        self.split = split
        lexicon = Lexicon()
        self.turns = first_words(split.turn_tokens, max_length, lexicon)
        self.questions = first_words(split.question_tokens, max_length, lexicon)
        answers = first_words(split.answer_tokens, 1, lexicon)
        self.answers = np.zeros(len(answers), np.int64)
        self.answers[answers.counts > 0] = answers.values
        # For the number of a word: its id, the hash of its spelling, its frequency. Number 0 is padding.
        self.ids = np.concatenate([[vocabulary.pad_id], vocabulary.lookup(list(lexicon))]).astype(np.int64)
        self.unknown = self.ids == vocabulary.unk_id
        self.spellings = np.zeros(len(self.ids), np.int64)
        self.spellings[1:] = np.where(self.unknown[1:], spellings_of(lexicon), 0)
        self.frequency = np.array(frequency, np.float32)[self.ids]
        self.num_words = len(vocabulary)
        self.question_counts = np.diff(split.dialogues.question_offsets)
        # The turns of each dialogue that are read for any of its questions, as rows in ascending order.
        kept = np.unique(split.reading.values)
        self.kept = Ragged(kept, np.searchsorted(kept, split.dialogues.turn_offsets))

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        """Number of words of each dialogue [n], as kept."""
        return np.diff(offsets_of(self.turns.counts[self.kept.values])[self.kept.offsets])

    def __len__(self) -> int:
        return len(self.split.dialogues)

    @override
    def messages(self) -> Iterator[Message]:
        rows = np.concatenate([batch.row[batch.answer == NO_CHOICE].numpy() for batch in self.batches(256)])
        table = self.split.dialogues
        if len(rows):
            first = table.questions.select(rows[:1])
            yield (
                logging.WARNING,
                f"{table.source}: {len(rows)} of {len(table.questions)} questions cannot be answered correctly: the"
                " answer is neither in the dialogue nor in the vocabulary (the first is"
                f" {first.label(0)!r}, {first.ids[0]})",
            )

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> DialogueBatch:
        row, weight = rows_and_weights(indices)
        rows = consecutive(self.split.dialogues.question_offsets[row], self.question_counts[row])
        questions, dialogue = rows.values, rows.list_numbers
        asked, turns = self.questions.take(questions), self.kept.take(row)
        by_turn = self.turns.take(turns.values)
        words = Ragged(by_turn.values, by_turn.offsets[turns.offsets])
        last = np.repeat(self.split.dialogues.turn_offsets[row + 1] - 1, turns.counts)
        distinct, position = np.unique(np.concatenate([[0], words.values, asked.values]), return_inverse=True)
        _, in_dialogue, in_question = np.split(position, [1, 1 + len(words.values)])
        choice, own, answer = self._choices(words, in_dialogue, self.answers[questions], dialogue)
        fields = {
            "word": self.ids[distinct],
            "spelling": self.spellings[distinct],
            "frequency": self.frequency[distinct],
            "text": Ragged(in_dialogue, words.offsets).padded(),
            "turn": Ragged(np.repeat(turns.positions, by_turn.counts), words.offsets).padded(),
            "place": Ragged(by_turn.positions + 1, words.offsets).padded(),
            "choice": Ragged(choice, words.offsets).padded(),
            "own": own,
            "age": Ragged(last - turns.values, turns.offsets).padded(),
            "question": Ragged(in_question, asked.offsets).padded(),
            "dialogue": dialogue,
            "readable": self._readable(row, questions, dialogue),
            "answer": answer,
            "weight": weight[dialogue],
            "row": questions,
        }
        return DialogueBatch(**as_tensors(fields))

    def _choices(
        self,
        words: Ragged,
        position: NDArray[np.int64],
        answers: NDArray[np.int64],
        dialogue: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Number the choices: each word's [words], those of each dialogue alone [B, X], each question's answer [P].

        `words` are those of each dialogue, and `position` [words] their rows in the batch's table; `answers` [P] are
        numbers of words, 0 = unknown; `dialogue` [P] is the dialogue of each question.
        """
        # A dialogue's own words are numbered 0, 1, ...: distinct pairs of dialogue and word, in order.
        is_own = self.unknown[words.values]
        pair = words.list_numbers * len(self.ids) + words.values
        pairs, first = np.unique(pair[is_own], return_index=True)
        sizes = np.bincount(pairs // len(self.ids), minlength=len(words))
        own = Ragged(position[is_own][first], offsets_of(sizes))
        number = self.num_words + own.positions
        choice = self.ids[words.values]
        choice[is_own] = number[np.searchsorted(pairs, pair[is_own])]
        answer = np.where(answers == 0, NO_ANSWER, self.ids[answers])
        wanted = dialogue * len(self.ids) + answers
        # Position -1, of a word that the dialogue does not have, reads the appended number.
        numbers = np.append(number, NO_CHOICE)[find_sorted(pairs, wanted)]
        unknown = (answers > 0) & self.unknown[answers]
        answer[unknown] = numbers[unknown]
        return choice, own.padded(), answer

    def _readable(
        self, row: NDArray[np.int64], questions: NDArray[np.int64], dialogue: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """bool [P, N]: the kept turns that are read for each question."""
        reading = self.split.reading.take(questions)
        readable = np.zeros((len(questions), int(self.kept.counts[row].max())), bool)
        starts = np.repeat(self.kept.offsets[row[dialogue]], reading.counts)
        readable[reading.list_numbers, np.searchsorted(self.kept.values, reading.values) - starts] = True
        return readable


def first_words(store: TokenStore, length: int, lexicon: Lexicon) -> Ragged:
    """The first `length` words of each text, numbered from 1 by a lexicon that the stores of a split share."""
    numbers = np.array([0, *(1 + lexicon[word] for word in store.lexicon)], np.int64)
    kept = consecutive(store.offsets[:-1], np.minimum(np.diff(store.offsets), length))
    return Ragged(numbers[1 + store.tokens[kept.values]], kept.offsets)


def spellings_of(words: Iterable[str]) -> NDArray[np.int64]:
    """A hash of the spelling of each word [n], the same on every machine; never 0."""
    hashes = text_hashes(words).view(np.int64)
    return np.where(hashes == 0, 1, hashes)
