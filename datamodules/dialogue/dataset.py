"""Batches of dialogues with their questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from datamodules.batch import DialogueBatch
from datamodules.core.arrays import find_sorted
from datamodules.core.storage import check_folder
from datamodules.corpora.dialogues import Dialogues, ragged, within
from datamodules.dialogue.reading import Reading
from datamodules.prepared import PreparedSplit
from datamodules.text.tokenization import Lexicon
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

#: Answers that are no choice: none of the dialogue's words, or not known.
NO_CHOICE, NO_ANSWER = -1, -100


@dataclass(frozen=True)
class DialogueSplit(PreparedSplit):
    """One table of dialogues, ready for batches."""

    dialogues: Dialogues
    turn_tokens: TokenStore
    question_tokens: TokenStore
    #: of each question; one token, or none where the answer is not known.
    answer_tokens: TokenStore
    reading: Reading
    #: cache folder, and folder name and fingerprint of each part; None for dialogues that came just now.
    origin: tuple[Path, Mapping[str, Any]] | None = None

    @classmethod
    def open(cls, cache: Path, parts: Mapping[str, Any]) -> DialogueSplit:
        """Map what was prepared.

        Raises:
            InputError: a part is missing or damaged.
        """
        folder = cls.folders(cache, parts)
        check_folder(*folder["dialogues"])
        tokens = (TokenStore.open(*folder[f"{name}_tokens"]) for name in ("turn", "question", "answer"))
        turns, questions, answers = tokens
        dialogues = Dialogues.load(folder["dialogues"][0], parts["source"])
        check_folder(*folder["reading"])
        reading = Reading.load(folder["reading"][0])
        return cls(dialogues, turns, questions, answers, reading, (cache, parts))


class Texts(NamedTuple):
    """Texts as numbers of words, each cut to what a model reads."""

    #: int64 [all words]: numbers from 1.
    words: NDArray[np.int64]
    #: int64 [n]: where each text starts in `words`, and how many words it has.
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, store: TokenStore, length: int, lexicon: Lexicon) -> Texts:
        """The first `length` words of each text, numbered by a lexicon that the stores of a split share."""
        numbers = np.array([0, *(1 + lexicon[word] for word in store.lexicon)], np.int64)
        counts = np.minimum(np.diff(store.offsets), length)
        words = numbers[1 + store.tokens[ragged(store.offsets[:-1], counts)]]
        return cls(words, np.cumsum(counts) - counts, counts)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The words of some texts, one text after another."""
        return self.words[ragged(self.starts[rows], self.counts[rows])]


class DialogueDataset(Dataset[DialogueBatch]):
    """Numbers of dialogues in, a finished batch out."""

    def __init__(
        self,
        split: DialogueSplit,
        vocabulary: Vocabulary,
        frequency: Sequence[int],
        max_length: int,
    ) -> None:
        """Bind a split to a vocabulary.

        Args:
            split: dialogues and their tokens.
            vocabulary: the words that a model knows.
            frequency: in how many training dialogues each of them is.
            max_length: words that are read of a turn or a question.
        """
        self.split = split
        lexicon = Lexicon()
        self.turns = Texts.of(split.turn_tokens, max_length, lexicon)
        self.questions = Texts.of(split.question_tokens, max_length, lexicon)
        answers = Texts.of(split.answer_tokens, 1, lexicon)
        self.answers = np.zeros(len(answers.counts), np.int64)
        self.answers[answers.counts > 0] = answers.words
        # By number of a word: its id, a number of its spelling, its frequency. Number 0 is padding.
        self.ids = np.concatenate([[vocabulary.pad_id], vocabulary.lookup(list(lexicon))]).astype(np.int64)
        self.unknown = self.ids == vocabulary.unk_id
        self.spellings = np.zeros(len(self.ids), np.int64)
        self.spellings[1:] = [
            spelling_of(word) if unknown else 0
            for word, unknown in zip(lexicon, self.unknown[1:].tolist(), strict=True)
        ]
        self.frequency = np.array(frequency, np.float32)[self.ids]
        self.num_words = len(vocabulary)
        self.question_counts = np.diff(split.dialogues.question_offsets)
        # Of each dialogue, the turns that any of its questions reads, in their order.
        self.kept = np.unique(split.reading.turns)
        bounds = np.searchsorted(self.kept, split.dialogues.turn_offsets)
        self.kept_starts, self.turn_counts = bounds[:-1], np.diff(bounds)
        self.reading_starts = np.cumsum(split.reading.counts) - split.reading.counts

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Words of each dialogue [n], as kept."""
        ends = np.concatenate([[0], np.cumsum(self.turns.counts[self.kept])])
        lengths: NDArray[np.int64] = ends[self.kept_starts + self.turn_counts] - ends[self.kept_starts]
        return lengths

    def __len__(self) -> int:
        return len(self.split.dialogues)

    def unanswerable(self) -> NDArray[np.int64]:
        """Rows of the questions whose answer is neither in the vocabulary nor in what is read of their dialogue."""
        missing = []
        for start in range(0, len(self), 256):
            batch = self.__getitems__(range(start, min(start + 256, len(self))))
            missing.append(batch.row[batch.answer == NO_CHOICE].numpy())
        return np.concatenate(missing)

    def __getitems__(self, indices: Sequence[int]) -> DialogueBatch:
        """Put a batch together; an index ~i (negative) is dialogue i as padding, with weight 0."""
        index = np.asarray(indices, np.int64)
        row = np.where(index < 0, ~index, index)
        counts = self.question_counts[row]
        questions = ragged(self.split.dialogues.question_offsets[row], counts)
        dialogue = np.repeat(np.arange(len(row)), counts)
        words = self._words_of(row)
        asked = self.questions.read(questions)
        distinct, position = np.unique(np.concatenate([[0], words.word, asked]), return_inverse=True)
        position = position.reshape(-1)
        word_position, question_position = position[1 : 1 + len(words.word)], position[1 + len(words.word) :]
        choice, own, answer = self._choices(words, word_position, self.answers[questions], dialogue)
        fields = {
            "word": self.ids[distinct],
            "spelling": self.spellings[distinct],
            "frequency": self.frequency[distinct],
            "text": padded(word_position, words.counts),
            "turn": padded(words.turn, words.counts),
            "place": padded(words.place, words.counts),
            "choice": padded(choice, words.counts),
            "own": own,
            "age": self._ages(row),
            "question": padded(question_position, self.questions.counts[questions]),
            "dialogue": dialogue,
            "readable": self._readable(row, questions, dialogue),
            "answer": answer,
            "weight": (index >= 0)[dialogue].astype(np.float32),
            "row": questions,
        }
        return DialogueBatch(**{name: torch.from_numpy(value) for name, value in fields.items()})

    def _ages(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many turns of the dialogue are later than each kept one [B, N]."""
        counts = self.turn_counts[row]
        last = np.repeat(self.split.dialogues.turn_offsets[row + 1] - 1, counts)
        return padded(last - self.kept[ragged(self.kept_starts[row], counts)], counts)

    def _readable(
        self, row: NDArray[np.int64], questions: NDArray[np.int64], dialogue: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which of the kept turns are read for each question [P, N]."""
        counts = self.split.reading.counts[questions]
        turns = self.split.reading.turns[ragged(self.reading_starts[questions], counts)]
        readable = np.zeros((len(questions), int(self.turn_counts[row].max())), bool)
        places = np.searchsorted(self.kept, turns) - np.repeat(self.kept_starts[row[dialogue]], counts)
        readable[np.repeat(np.arange(len(questions)), counts), places] = True
        return readable

    def _words_of(self, row: NDArray[np.int64]) -> _Words:
        """The words of some dialogues, one dialogue after another."""
        counts = self.turn_counts[row]
        turns = self.kept[ragged(self.kept_starts[row], counts)]
        sizes = self.turns.counts[turns]
        dialogue = np.repeat(np.repeat(np.arange(len(row)), counts), sizes)
        return _Words(
            self.turns.read(turns),
            dialogue,
            np.repeat(within(counts), sizes),
            within(sizes) + 1,
            np.bincount(dialogue, minlength=len(row)),
        )

    def _choices(
        self,
        words: _Words,
        position: NDArray[np.int64],
        answers: NDArray[np.int64],
        dialogue: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Number what can be answered.

        Args:
            words: of the dialogues.
            position: [words] each word's row in the batch's table.
            answers: [P] numbers of words, 0 = unknown.
            dialogue: [P] the dialogue of each question.

        Returns:
            The choice that each word is [words]; each dialogue's own words [B, X]; the choice that answers each
            question [P].
        """
        # A dialogue's own words are numbered 0, 1, ...: distinct pairs of dialogue and word, in order.
        is_own = self.unknown[words.word]
        pair = words.dialogue * len(self.ids) + words.word
        pairs, first = np.unique(pair[is_own], return_index=True)
        of = pairs // len(self.ids)
        sizes = np.bincount(of, minlength=len(words.counts))
        number = self.num_words + within(sizes)
        choice = self.ids[words.word]
        choice[is_own] = number[np.searchsorted(pairs, pair[is_own])]
        own = padded(position[is_own][first], sizes)
        answer = np.where(answers == 0, NO_ANSWER, self.ids[answers])
        wanted = dialogue * len(self.ids) + answers
        # Position -1, of a word that the dialogue does not have, reads the appended number.
        numbers = np.append(number, NO_CHOICE)[find_sorted(pairs, wanted)]
        unknown = (answers > 0) & self.unknown[answers]
        answer[unknown] = numbers[unknown]
        return choice, own, answer


class _Words(NamedTuple):
    """The words of a batch's dialogues, one after another; all int64."""

    #: [words] numbers of words, of dialogues, of turns in their dialogue, and places in their turn from 1.
    word: NDArray[np.int64]
    dialogue: NDArray[np.int64]
    turn: NDArray[np.int64]
    place: NDArray[np.int64]
    #: [B] words of each dialogue.
    counts: NDArray[np.int64]


def padded(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Consecutive pieces as rows [n, longest], at least one column, filled up with 0."""
    rows = np.zeros((len(counts), max(1, int(counts.max(initial=0)))), np.int64)
    rows[np.repeat(np.arange(len(counts)), counts), within(counts)] = values
    return rows


def spelling_of(word: str) -> int:
    """A number that stands for a spelling, the same everywhere; never 0."""
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1
