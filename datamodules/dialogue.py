"""Dialogues with questions, each answered by one word of its dialogue."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, DialogueBatch, DialogueSpec, as_tensors
from datamodules.core.arrays import find_sorted
from datamodules.core.errors import InputError
from datamodules.core.ragged import Ragged, consecutive, offsets_of
from datamodules.core.storage import Part, fingerprint_of, prepared_folder
from datamodules.core.types import Message, PlainDict, Size
from datamodules.corpora.dialogues import Dialogues, read_dialogues, read_hmn4qa
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.dataset import BatchDataset, PreparedSplit, rows_and_weights
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import FileOptions
from datamodules.retrieval import EmbeddedRetriever, Memory, Retriever, is_existing_index
from datamodules.retrieval.base import TermRetriever
from datamodules.retrieval.folding import text_hashes
from datamodules.retrieval.memories.versions import index_of
from datamodules.text.tokenization import Lexicon, WordTokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

#: Answers that are not a choice: a word that is neither in the dialogue nor in the vocabulary; an unknown answer.
NO_CHOICE, NO_ANSWER = -1, -100
#: Turns of this age and older count as equally old for a model that reads any turn of a long dialogue.
OLDEST = 1024


@dataclass(frozen=True, kw_only=True)
class DialogueOptions(FileOptions):
    """Options of `DialogueDataModule`.

    Attributes:
        layout: `hmn4qa`, the published files, or a `table` (.jsonl, also .gz or .xz, .parquet, a folder saved by
            `datasets`, `hub:NAME[:SPLIT]`) with a list of turns, a question or several, and as many answers.
        turns_column: name or number of the list of turns.
        question_column: name or number of the question, or of a list of questions.
        answer_column: name or number of the answer, or of as many answers; each is one token.
        vocabulary_files: tables whose words join the vocabulary whatever their count, with vectors as they were drawn;
            the validation and the test table in the paper.
        max_turns: number of turns of a dialogue that are read for a question.
        turns_kept: turns that are read of longer dialogues: the `latest`, or those `retrieved` for the question.
        max_length: number of words kept of a turn or a question.
        tokenizer: `whitespace`, or `words` (Unicode words and punctuation); both split a question mark off a word.
        lowercase: fold case before words are looked up; answers are then in lower case.
        min_count: words in fewer training dialogues are distinguished by their spelling.
    """

    layout: Literal["table", "hmn4qa"] = "table"
    turns_column: Column = "turns"
    question_column: Column = "question"
    answer_column: Column = "answer"
    vocabulary_files: str | list[str] | None = None
    max_turns: Size = 256
    turns_kept: Literal["latest", "retrieved"] = "latest"
    max_length: Size = 64
    tokenizer: WordTokenizer = "whitespace"
    lowercase: bool | None = False
    min_count: Size = 2

    files: ClassVar[tuple[str, ...]] = (*FileOptions.files, "vocabulary_files")
    test_files: ClassVar[tuple[str, ...]] = ("test_file",)


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


class DialogueDataset(BatchDataset[DialogueBatch]):
    """Batches of dialogues with their questions."""

    def __init__(self, data: DialogueDataModule, split: DialogueSplit) -> None:
        """Bind a split to the vocabulary in use."""
        self.split, vocabulary, max_length = split, data.words.vocabulary, data.options.max_length
        lexicon = Lexicon()
        self.turns = first_words(split.turn_tokens, max_length, lexicon)
        self.questions = first_words(split.question_tokens, max_length, lexicon)
        self.answers = first_words(split.answer_tokens, 1, lexicon).padded()[:, 0]
        # For the number of a word: its id, the hash of its spelling, its frequency. Number 0 is padding.
        self.ids = np.concatenate([[vocabulary.pad_id], vocabulary.lookup(list(lexicon))]).astype(np.int64)
        self.unknown = self.ids == vocabulary.unk_id
        self.spellings = np.where(self.unknown, np.append(0, spellings_of(lexicon)), 0)
        self.frequency = np.array(data.facts["frequency"], np.float32)[self.ids]
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
            problem = f"{len(rows)} of {len(table.questions)} questions cannot be answered correctly"
            reason = "the answer is neither in the dialogue nor in the vocabulary"
            example = f"the first is {first.label(0)!r}, {first.ids[0]}"
            yield logging.WARNING, f"{table.source}: {problem}: {reason} ({example})"

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
        self, words: Ragged, row: NDArray[np.int64], answers: NDArray[np.int64], dialogue: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Number the choices: each word's [words], those of each dialogue alone [B, X], each question's answer [P].

        `words` are those of each dialogue, and `row` [words] their rows in the batch's table; `answers` [P] are
        numbers of words, 0 = unknown; `dialogue` [P] is the dialogue of each question.
        """
        # A dialogue's own words are numbered 0, 1, ...: distinct pairs of dialogue and word, in order.
        is_own = self.unknown[words.values]
        pair = words.list_numbers * len(self.ids) + words.values
        pairs, first = np.unique(pair[is_own], return_index=True)
        sizes = np.bincount(pairs // len(self.ids), minlength=len(words))
        own = Ragged(row[is_own][first], offsets_of(sizes))
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


class DialogueDataModule(DataModule[DialogueOptions, Dialogues, DialogueSplit]):
    """Dialogues, each with questions that one of its words answers, which the vocabulary may lack.

    Args:
        retriever: ranks the turns of long dialogues where `turns_kept` is `retrieved`.

    Example:
        >>> data = DialogueDataModule(layout="hmn4qa", train_file="train.txt", validation_file="dev.txt")
    """

    options_type = DialogueOptions
    spec_type = DialogueSpec
    split_type = DialogueSplit
    length_options = dict.fromkeys(("turn_tokens", "question_tokens", "answer_tokens"), "max_length")
    #: Mean probability of the right answer: it still distinguishes epochs when hardly any error is left.
    monitor = "val/probability"

    def __init__(self, retriever: Retriever = DEFAULT_RETRIEVER, **options: Any) -> None:
        super().__init__(DialogueOptions(**options), retriever)
        if is_existing_index(retriever):
            raise InputError("data.retriever.index: has no turns of these dialogues; omit it")

    @property
    @override
    def uses_retriever(self) -> bool:
        return self.options.turns_kept == "retrieved"

    @override
    def read_splits(self, names: Sequence[str]) -> dict[str, Dialogues]:
        return {name: self.read(self.options.files_of(name)) for name in names}

    def read(self, files: str | list[str], answers: bool = True) -> Dialogues:
        """One table, or several as one; without `answers`, answers may be missing."""
        options, names = self.options, [files] if isinstance(files, str) else files
        if options.layout == "hmn4qa":
            tables = [read_hmn4qa(file) for file in names]
        else:
            answer = options.answer_column if answers else None
            columns = options.turns_column, options.question_column, answer, options.id_column
            tables = [read_dialogues(file, *columns) for file in names]
        return tables[0] if len(tables) == 1 else Dialogues.concat(tables)

    @override
    def strata(self, table: Dialogues) -> list[str]:
        return ["dialogue"] * len(table)

    @override
    def prepare_split(
        self, name: str, table: Dialogues, seen: NDArray[np.uint64] | None, memory: Memory | None
    ) -> dict[str, Part]:
        options = self.options
        reading = {
            "dialogues": table.fingerprint,
            "ranking": self.retriever.describe_ranking() if self.uses_retriever else None,
            "max_turns": options.max_turns,
            "turns_kept": options.turns_kept,
        }
        tokens = zip(self.length_options, self._tokenize(table, self.words.tokenize), strict=True)

        def save_reading(folder: Path) -> None:
            self._reading(table).save(folder)

        return {
            "dialogues": prepared_folder(self.cache, "dialogues", table.fingerprint, table.save),
            **{name: store.part for name, store in tokens},
            "reading": prepared_folder(self.cache, "reading", fingerprint_of(reading), save_reading),
        }

    def split_of(self, table: Dialogues) -> DialogueSplit:
        """A split in memory, for prediction."""
        return DialogueSplit(table, *self._tokenize(table, self.words.tokenize_now), self._reading(table))

    def _tokenize(
        self, table: Dialogues, tokenize: Callable[[Rows, int], TokenStore]
    ) -> tuple[TokenStore, TokenStore, TokenStore]:
        """The tokens of turns, questions and answers."""
        known = [table.questions.label(row) or "" for row in range(len(table.questions))]
        texts = table.turns, table.questions, Rows.from_lists(known, source=table.source)
        turns, questions, answers = (tokenize(rows, self.options.max_length) for rows in texts)
        _check_answers(table, answers)
        return turns, questions, answers

    def _reading(self, table: Dialogues) -> Ragged:
        """The turns that are read for each question."""
        return turns_to_read(table, self.options.max_turns, self.retriever if self.uses_retriever else None)

    @override
    def describe_split(self, name: str, split: DialogueSplit) -> Iterator[Message]:
        table, options = split.dialogues, self.options
        number, turns = len(table), np.diff(table.turn_offsets)
        kinds = f"{number} dialogues of {turns.min()} to {turns.max()} turns"
        yield logging.INFO, f"{kinds}, {len(table.questions)} questions"
        if long := int((turns > options.max_turns).sum()):
            problem = f"{long} of {number} dialogues have more than data.max_turns={options.max_turns} turns"
            yield logging.WARNING, f"{problem}; the {options.turns_kept} ones are read for each question"

    @override
    def count_words(self, train: DialogueSplit) -> Mapping[str, int]:
        counts = _dialogues_with(train)
        files = self.options.vocabulary_files
        if files is not None:
            for tokens in self._tokenize(self.read(files), self.words.tokenize_now):
                for word in tokens.lexicon:
                    counts[word] = max(counts[word], self.options.min_count)
        return counts

    @override
    def learn(self, train: DialogueSplit, vocabulary: Vocabulary, memory: Memory | None) -> PlainDict:
        counts = _dialogues_with(train)
        turns, options = np.diff(train.dialogues.turn_offsets), self.options
        limit = OLDEST if options.turns_kept == "retrieved" else options.max_turns
        num_turns = int(min(turns.max(), limit))
        return {"frequency": [counts[word] for word in vocabulary.words], "num_turns": num_turns}

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: PlainDict) -> DialogueSpec:
        return DialogueSpec(len(vocabulary), facts["num_turns"])

    @override
    def dataset(
        self, split: DialogueSplit, contents: BatchContents = BatchContents(), training: bool = False
    ) -> DialogueDataset:
        return DialogueDataset(self, split)


def _check_answers(table: Dialogues, tokens: TokenStore) -> None:
    """Raise an `InputError` for answers of several tokens, or of none."""
    counts = np.diff(tokens.offsets)
    known = ~np.asarray(table.questions.table.column("label").is_null().to_numpy(), bool)
    wrong = np.flatnonzero(known & (counts != 1))
    if len(wrong):
        question = table.questions.select(wrong[:1])
        problem = f"the answer {question.label(0)!r} has {counts[wrong[0]]} tokens"
        advice = "an answer is one token of the dialogue (see data.tokenizer)"
        raise InputError(f"{question.ids[0]}: {problem}; {advice}")


def _dialogues_with(split: DialogueSplit) -> Counter[str]:
    """Word -> number of dialogues that have it in turns, questions or answers."""
    table, numbers = split.dialogues, dict[str, int]()
    pairs: list[NDArray[np.int64]] = []
    for tokens, offsets in (
        (split.turn_tokens, table.turn_offsets),
        (split.question_tokens, table.question_offsets),
        (split.answer_tokens, table.question_offsets),
    ):
        number = np.array([numbers.setdefault(word, len(numbers)) for word in tokens.lexicon], np.int64)
        dialogue = np.repeat(np.arange(len(table)), np.diff(tokens.offsets[offsets]))
        pairs.append(np.unique(number[tokens.tokens] * len(table) + dialogue))
    words = np.unique(np.concatenate(pairs)) // len(table)
    return Counter(dict(zip(numbers, np.bincount(words, minlength=len(numbers)).tolist(), strict=True)))


def turns_to_read(table: Dialogues, k: int, retriever: Retriever | None) -> Ragged:
    """The k turns that are read for each question [Q], as row numbers in ascending order.

    They are the latest of the dialogue; with a retriever, those that rank highest for the question, or else the latest.
    """
    dialogue = np.repeat(np.arange(len(table)), np.diff(table.question_offsets))
    starts, ends = table.turn_offsets[dialogue], table.turn_offsets[dialogue + 1]
    counts = np.minimum(ends - starts, k)
    latest, long = consecutive(ends - counts, counts), np.flatnonzero(ends - starts > k)
    if retriever is None or len(long) == 0:
        return latest
    if isinstance(retriever, TermRetriever):
        # Both back ends rank alike, and a server need not keep an index that is searched once.
        retriever = EmbeddedRetriever(**asdict(retriever.ranking))
    with TemporaryDirectory() as folder:
        retriever.index(table.turns, *index_of(Path(folder), table.fingerprint, retriever))
        results = search_within(retriever, table.questions.texts.take(long), k, starts[long], ends[long])
        retriever.close()
    turns = np.split(latest.values, latest.offsets[1:-1])
    for row, hits in zip(long.tolist(), results, strict=True):
        others = np.setdiff1d(np.arange(starts[row], ends[row]), hits)[::-1]
        turns[row] = np.sort(np.concatenate([hits, others[: k - len(hits)]]))
    return Ragged(np.concatenate(turns), latest.offsets)


def search_within(
    retriever: Retriever, texts: Sequence[str], k: int, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The at most k best rows of n queries among the rows `starts` [n] to `ends` [n] (excluded) of a collection."""
    results: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(texts)
    # Back ends rank whole collections, so the number of hits grows until k are inside or there are no more.
    waiting, size = list(range(len(texts))), 4 * k
    while waiting:
        rows = retriever.search([texts[query] for query in waiting], size).rows.astype(np.int64)
        unfinished = []
        for query, hits in zip(waiting, rows, strict=True):
            results[query] = hits[(hits >= starts[query]) & (hits < ends[query])][:k]
            if len(results[query]) < k and hits[-1] >= 0:
                unfinished.append(query)
        waiting, size = unfinished, 4 * size
    return results
