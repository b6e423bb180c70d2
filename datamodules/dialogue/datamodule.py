"""Dialogues with questions: what is their own beside the skeleton of `datamodules.base`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import DialogueBatch, DialogueSpec
from datamodules.core.errors import InputError
from datamodules.core.ragged import Ragged
from datamodules.core.storage import fingerprint_of, prepared_folder
from datamodules.corpora.dialogue_readers import read_dialogues, read_hmn4qa
from datamodules.corpora.dialogues import Dialogues
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.dialogue.dataset import DialogueDataset, DialogueSplit
from datamodules.dialogue.reading import latest_turns, retrieved_turns
from datamodules.duplicates import Message
from datamodules.options import check_choices, check_least
from datamodules.retrieval import EmbeddedRetriever, Retriever, is_existing_index
from datamodules.retrieval.base import Ranking
from datamodules.text.tokenization import WORD_TOKENIZERS
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

#: A table, or several that are joined.
Files: TypeAlias = str | list[str]
Layout: TypeAlias = Literal["table", "hmn4qa"]
TurnsKept: TypeAlias = Literal["latest", "retrieved"]

#: Turns this long ago and longer are equally old for a model that reads any turn of a long dialogue.
OLDEST = 1024


class DialogueDataModule(TextDataModule[Dialogues, DialogueSplit]):
    """Dialogues, each with questions that one of its words answers.

    Words that the vocabulary lacks are told apart by their spelling, so they can be answers.

    Example:
        >>> data = DialogueDataModule(layout="hmn4qa", train_file="train.txt", validation_file="dev.txt")
    """

    spec_type = DialogueSpec
    #: The mean probability of the right answer: it still tells epochs apart when hardly an error is left.
    monitor = "val/probability"
    files = (*TextDataModule.files, "vocabulary_files")
    fact_names = ("frequency", "num_turns")

    def __init__(
        self,
        *,
        layout: Layout = "table",
        train_file: Files | None = None,
        validation_file: Files | None = None,
        test_file: Files | None = None,
        turns_column: Column = "turns",
        question_column: Column = "question",
        answer_column: Column = "answer",
        id_column: Column | None = None,
        vocabulary_files: Files | None = None,
        max_turns: int = 256,
        turns_kept: TurnsKept = "latest",
        max_length: int = 64,
        tokenizer: str = "whitespace",
        lowercase: bool | None = False,
        min_count: int = 2,
        **shared: Any,
    ) -> None:
        """Describe the data; nothing is read yet.

        Args:
            layout: `hmn4qa`, the published files, or a `table` (.jsonl, also .gz or .xz, .parquet, a folder saved by
                `datasets`, `hub:NAME[:SPLIT]`) whose records have a list of turns, a question and its answer, or
                lists of questions and answers.
            train_file: the table to train on, or several.
            validation_file: the same for validation; without it, dialogues are split off the training table.
            test_file: the same for the test.
            turns_column: name or number of the list of turns.
            question_column: of the question, or of a list of questions.
            answer_column: of the answer, or of as many answers; each is one token.
            id_column: of an id of the dialogue; without one, equal turns are the same dialogue.
            vocabulary_files: tables whose words join the vocabulary whatever their count; the paper names the
                validation and the test table here. Their vectors stay as they were drawn.
            max_turns: turns of a dialogue that are read for a question.
            turns_kept: which ones, where a dialogue has more: the `latest`, or those `retrieved` for the question
                from among them all.
            max_length: words kept of a turn or a question.
            tokenizer: `whitespace`, or `words` (Unicode words and punctuation). A question mark at the end of a word
                is always a token of its own.
            lowercase: fold case before words are looked up; answers are then in lower case.
            min_count: words that fewer training dialogues have are told by their spelling.
            **shared: options of `TextDataModule`: words, retriever, batches (`batch_size` counts dialogues).
        """
        super().__init__(
            train_file=train_file,  # type: ignore[arg-type]
            validation_file=validation_file,  # type: ignore[arg-type]
            test_file=test_file,  # type: ignore[arg-type]
            tokenizer=tokenizer,
            lowercase=lowercase,
            min_count=min_count,
            **shared,
        )
        self._check_options()

    def _check_options(self) -> None:
        check_least(self.options, {"max_turns": 1, "max_length": 1})
        choices = {
            "layout": ("table", "hmn4qa"),
            "turns_kept": ("latest", "retrieved"),
            "tokenizer": WORD_TOKENIZERS,
        }
        check_choices(self.options, choices)
        if is_existing_index(self.retriever):
            raise InputError("data.retriever.index: holds no turns of these dialogues; leave it out")
        if self.options.characters or self.options.word_vectors is not None:
            raise InputError("data.characters, data.word_vectors: of no use for dialogues; leave them out")

    # --- tables ---

    @override
    def read_tables(self, wanted: Sequence[str]) -> dict[str, Dialogues]:
        options = self.options
        files = {name: options[f"{name}_file"] for name in ("train", "validation", "test")}
        needed = ["train" if name == "validation" and files[name] is None else name for name in wanted]
        if missing := [name for name in needed if files[name] is None]:
            raise InputError(f"data.{missing[0]}_file: name a table of dialogues")
        tables = {name: self.read(files[name]) for name in dict.fromkeys(needed)}
        if files["validation"] is None and "validation" in wanted:
            table = tables["train"]
            train, validation = self.split_off(["dialogue"] * len(table), table)
            tables |= {"train": table.select(train), "validation": table.select(validation)}
        return {name: tables[name] for name in wanted}

    def read(self, files: Files, answers: bool = True) -> Dialogues:
        """One table, or several as one; without `answers`, they need not be there."""
        options, tables = self.options, []
        for file in [files] if isinstance(files, str) else files:
            if options.layout == "hmn4qa":
                tables.append(read_hmn4qa(file))
            else:
                answer = options.answer_column if answers else None
                columns = options.turns_column, options.question_column, answer, options.id_column
                tables.append(read_dialogues(file, *columns))
        return tables[0] if len(tables) == 1 else Dialogues.concat(tables)

    # --- memory: a dialogue is its own ---

    @property
    @override
    def has_memory(self) -> bool:
        return False

    @property
    @override
    def retrieves(self) -> bool:
        return False

    @override
    def memory_columns(self) -> dict[str, Any]:
        return {}

    @override
    def own_memory(self, tables: Mapping[str, Any]) -> Rows | None:
        return None

    # --- splits ---

    @override
    def text_lengths(self) -> dict[str, int]:
        return {"max_length": self.options.max_length}

    @override
    def prepare_split(self, name: str, table: Dialogues) -> DialogueSplit:
        turns, questions, answers = (self.tokenise(rows, self.options.max_length) for rows in _texts(table))
        _check_answers(table, answers)
        parts = {
            "source": table.source,
            "dialogues": prepared_folder(self.cache, "dialogues", table.fingerprint, table.save),
            "turn_tokens": turns.part,
            "question_tokens": questions.part,
            "answer_tokens": answers.part,
        }
        mark = self._reading_mark(table)
        folder = self.cache / f"turns-{mark[:16]}"
        reading = self._read_turns(table, self.retriever, folder, mark)
        parts["reading"] = prepared_folder(self.cache, "reading", mark, reading.save)
        return DialogueSplit(table, turns, questions, answers, reading, (self.cache, parts))

    def _reading_mark(self, table: Dialogues) -> str:
        """Fingerprint of what is read for each question."""
        options = {name: self.options[name] for name in ("max_turns", "turns_kept")}
        ranking = self.retriever.ranking.describe() if self.options.turns_kept == "retrieved" else None
        return fingerprint_of({"dialogues": table.fingerprint, "ranking": ranking, **options})

    def _read_turns(self, table: Dialogues, retriever: Retriever, folder: Path, mark: str) -> Ragged:
        if self.options.turns_kept == "latest":
            return latest_turns(table, self.options.max_turns)
        return retrieved_turns(table, self.options.max_turns, retriever, folder, mark)

    @override
    def open_split(self, parts: Mapping[str, Any]) -> DialogueSplit:
        return DialogueSplit.open(self.cache, parts)

    def split_of(self, table: Dialogues) -> DialogueSplit:
        """A split in memory, for dialogues that come now (prediction)."""
        turns, questions, answers = (
            self.tokenise_now(rows, self.options.max_length) for rows in _texts(table)
        )
        _check_answers(table, answers)
        ranking = self.retriever.ranking
        # Both back ends rank alike: a server need not keep an index of what is asked once.
        retriever = EmbeddedRetriever(**asdict(ranking)) if isinstance(ranking, Ranking) else self.retriever
        with TemporaryDirectory() as folder:
            reading = self._read_turns(table, retriever, Path(folder) / "turns", self._reading_mark(table))
        return DialogueSplit(table, turns, questions, answers, reading)

    @override
    def texts_of(self, split: DialogueSplit) -> list[tuple[TokenStore, int]]:
        stores = (split.turn_tokens, split.question_tokens, split.answer_tokens)
        return [(tokens, self.options.max_length) for tokens in stores]

    @override
    def describe_split(self, name: str, split: DialogueSplit) -> Iterator[Message]:
        table, options = split.dialogues, self.options
        turns = np.diff(table.turn_offsets)
        yield (
            logging.INFO,
            f"{table.source}: {len(table)} dialogues of {turns.min()} to {turns.max()} turns,"
            f" {len(table.questions)} questions",
        )
        if long := int((turns > options.max_turns).sum()):
            yield (
                logging.WARNING,
                f"{table.source}: {long} of {len(table)} dialogues have more than data.max_turns={options.max_turns}"
                f" turns; for each question, the {options.turns_kept} ones are read",
            )

    # --- words ---

    @override
    def count_words(self, train: DialogueSplit) -> Mapping[str, int]:
        counts = _dialogues_with(train)
        files = self.options.vocabulary_files
        if files is not None:
            for tokens, _ in self.texts_of(self.split_of(self.read(files))):
                for word in tokens.lexicon:
                    counts[word] = max(counts[word], self.options.min_count)
        return counts

    @override
    def learn(self, train: DialogueSplit, vocabulary: Vocabulary) -> dict[str, Any]:
        counts = _dialogues_with(train)
        turns, options = np.diff(train.dialogues.turn_offsets), self.options
        limit = OLDEST if options.turns_kept == "retrieved" else options.max_turns
        return {
            "frequency": [counts[word] for word in vocabulary.words],
            "num_turns": int(min(turns.max(), limit)),
        }

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: Mapping[str, Any]) -> DialogueSpec:
        return DialogueSpec(len(vocabulary), facts["num_turns"])

    # --- batches ---

    @override
    def dataset(self, split: DialogueSplit) -> DialogueDataset:
        return DialogueDataset(split, self.vocabulary, self._facts["frequency"], self.options.max_length)

    @override
    def _loader(self, dataset: DialogueDataset, training: bool) -> DataLoader[DialogueBatch]:
        rows, table = dataset.unanswerable(), dataset.split.dialogues
        if len(rows):
            first = table.questions.select(rows[:1])
            log.warning(
                "%s: %d of %d questions can't be answered right: the answer is neither in the dialogue nor in the"
                " vocabulary (the first is %r, %s)",
                table.source,
                len(rows),
                len(table.questions),
                first.label(0),
                first.ids[0],
            )
        return super()._loader(dataset, training)


def _texts(table: Dialogues) -> tuple[Rows, Rows, Rows]:
    """Turns, questions and answers; "" where an answer is not known."""
    questions = table.questions
    answers = [questions.label(row) or "" for row in range(len(questions))]
    return table.turns, questions, Rows.from_lists(answers, source=table.source)


def _check_answers(table: Dialogues, tokens: TokenStore) -> None:
    """Refuse answers of several tokens, or of none."""
    counts = np.diff(tokens.offsets)
    known = ~np.asarray(table.questions.table.column("label").is_null().to_numpy(), bool)
    wrong = np.flatnonzero(known & (counts != 1))
    if len(wrong):
        question = table.questions.select(wrong[:1])
        raise InputError(
            f"{question.ids[0]}: the answer {question.label(0)!r} has {counts[wrong[0]]} tokens; an answer is one"
            " token of the dialogue (see data.tokenizer)"
        )


def _dialogues_with(split: DialogueSplit) -> Counter[str]:
    """In how many dialogues each word is: in turns, questions or answers."""
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
