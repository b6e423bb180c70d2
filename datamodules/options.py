"""Options of the data modules: dataclasses without behavior, one for each part of a data module."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from datamodules.core.errors import InputError
from datamodules.core.types import Count, PlainDict, Size, check_fields
from datamodules.corpora.records import Column

#: Unicode words and punctuation.
DEFAULT_TOKENIZER = "words"
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of every data module: splits, words, batches and the cache.

    Attributes:
        validation_split: share of the training table that is split off (0.1), or, of labelled texts, rows per class.
        split_seed: seed of that split; independent of the training's seed.
        tokenizer: `words` (Unicode words and punctuation; on the command line, the tokenizer of the model's
            `transformer`), `whitespace`, `characters`, or a `transformers` tokenizer by name or folder.
        lowercase: fold case before words are looked up; None = yes; as published for a `transformers` tokenizer.
        min_count: words that occur less often in the training texts are unknown words.
        batch_size: rows in a training batch of one device: texts, lists of pairs, dialogues, or examples of queries.
        eval_batch_size: rows in an evaluation batch; None = as in training, or a multiple where rows are small.
        num_workers: processes that build batches; 0 = the training process.
        cache_dir: folder for prepared data; None = $ZOO_CACHE_DIR or ~/.cache/memory-zoo.
    """

    validation_split: int | float = 0.1
    split_seed: Count = 0
    tokenizer: str = DEFAULT_TOKENIZER
    lowercase: bool | None = None
    min_count: Size = 1
    batch_size: Size = 64
    eval_batch_size: Size | None = None
    num_workers: Count = 0
    cache_dir: str | None = None

    #: options that name files, folders or tables, or lists of them.
    files: ClassVar[tuple[str, ...]] = ()
    #: those of `files` whose lists hold names and not files.
    name_lists: ClassVar[tuple[str, ...]] = ()
    #: the files that a test is read from, or split off from.
    test_files: ClassVar[tuple[str, ...]] = ()
    #: the option that names the table of a split.
    table_option: ClassVar[str] = "{split}_file"
    #: size of an evaluation batch over that of a training batch, unless `eval_batch_size` is given.
    eval_batches: ClassVar[int] = 1
    #: options that do not change what is prepared.
    unprepared: ClassVar[tuple[str, ...]] = ("batch_size", "eval_batch_size", "num_workers", "cache_dir")
    #: options that decide which rows a split takes: a model trained with other values has seen some of these rows.
    splitting: ClassVar[tuple[str, ...]] = ("split_seed", "validation_split", "test_split")

    def __post_init__(self) -> None:
        check_fields(self, "data.")

    def to_dict(self) -> PlainDict:
        """All options as plain values."""
        return asdict(self)

    @property
    def tables(self) -> dict[str, str | list[str] | None]:
        """The tables that are named for `train`, `validation` and `test`; None where none is."""
        return {split: getattr(self, self.table_option.format(split=split)) for split in SPLITS}

    def files_of(self, split: str) -> list[str]:
        """The tables that are named for a split; raises an `InputError` if none is."""
        if (table := self.tables[split]) is None:
            option = self.table_option.format(split=split)
            can_split = split == "test" and hasattr(self, "test_split")
            hint = ", or a part of the training table with data.test_split" if can_split else ""
            raise InputError(f"data.{option}: name a table{hint}")
        return [table] if isinstance(table, str) else table

    def file_of(self, split: str) -> str:
        """The only table that is named for a split; raises an `InputError` if there is none, or several."""
        files = self.files_of(split)
        if len(files) != 1:
            raise InputError(f"data.{self.table_option.format(split=split)}: name a table, not {len(files)}")
        return files[0]

    @property
    def split_shares(self) -> dict[str, int | float]:
        """The parts of the training table that are split off, in this order, for splits without a table."""
        without_table = [split for split in ("test", "validation") if self.tables[split] is None]
        parts = {split: getattr(self, f"{split}_split", None) for split in without_table}
        return {split: part for split, part in parts.items() if part is not None}

    def is_split_off(self, split: str) -> bool:
        """Return True if the rows of a split come from the training table."""
        return split in self.split_shares


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Options of texts with a memory: of their word vectors, of the characters of words, and of the memory.

    Attributes:
        word_vectors: file of pre-trained GloVe or word2vec vectors (text, plain, .gz, .xz, .zip).
        normalize_vectors: scale each of these vectors to length 1.
        characters: pass the characters of words to the model.
        memory: a table (with `memory_text_column`), or a folder that `zoo index` built; None = the training texts, or
            the index that the retriever names.
        memory_text_column: text of the memory table; None = as in the training table.
    """

    word_vectors: str | None = None
    normalize_vectors: bool = False
    characters: bool = False
    memory: str | None = None
    memory_text_column: Column | list[Column] | None = None

    #: characters kept per word.
    max_characters: ClassVar[int] = 16


@dataclass(frozen=True, kw_only=True)
class FileOptions(DataOptions):
    """Options of data with a table for each split.

    A table is a .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file, a saved dataset, or `hub:NAME[:SPLIT]`.

    Attributes:
        train_file: the table to train on; for dialogues, one or several.
        validation_file: the table for validation; None = rows are split off the training table.
        test_file: the table for the test.
        id_column: name or number of an id; None = row numbers, or for dialogues, equal turns are the same dialogue.
    """

    train_file: str | list[str] | None = None
    validation_file: str | list[str] | None = None
    test_file: str | list[str] | None = None
    id_column: Column | None = None

    files: ClassVar[tuple[str, ...]] = ("train_file", "validation_file", "test_file")


@dataclass(frozen=True, kw_only=True)
class TableOptions(MemoryOptions, FileOptions):
    """Options of data in tables, with word vectors and a memory.

    Attributes:
        test_split: share (or rows per class) split off the training table for the test, before validation; None = none.
        label_column: name or number of the label; numbers start at 0.
        header: whether CSV files have a header line; None detects it.
        quotes: whether fields may be enclosed in double quotes; None = in CSV files, not in TSV files.
    """

    test_split: int | float | None = None
    label_column: Column = "label"
    header: bool | None = None
    quotes: bool | None = None

    files: ClassVar[tuple[str, ...]] = (*FileOptions.files, "memory", "word_vectors")
    test_files: ClassVar[tuple[str, ...]] = ("test_file", "train_file")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_split is not None and self.test_file is not None:
            raise InputError("data.test_split and data.test_file: give one of them")


@dataclass(frozen=True, kw_only=True)
class TextOptions(TableOptions):
    """Options of data whose rows are single texts with memories.

    Attributes:
        text_column: name or number (from 0) of the text, or several, which are joined.
        num_memories: K, memories per text; 0 = none.
        max_length: number of words kept of a text.
        memory_max_length: number of words kept of a memory text; None = `max_length`.
    """

    text_column: Column | list[Column] = "text"
    num_memories: Count = 20
    max_length: Size = 128
    memory_max_length: Size | None = None
