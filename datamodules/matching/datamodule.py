"""Pairs of texts to match.

The unit of a batch is a list: all candidates of a question in an evaluation; in training a single pair (pointwise), a
positive with negatives that are drawn in every epoch (pairwise), or all candidates (listwise).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.core.ragged import Ragged
from datamodules.core.storage import Part, fingerprint_of, prepared_folder
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.duplicates import DuplicateMarks
from datamodules.matching.dataset import Lists, MatchingDataset, MatchingSplit
from datamodules.matching.negatives import foreign_texts
from datamodules.matching.tables import PairTableOptions, PairTables
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import MemoryOptions, VectorOptions, check_choice, check_least
from datamodules.prepared import Origin
from datamodules.retrieval import Retriever, build_neighbors, open_neighbors
from datamodules.text.counts import count_tokens
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

#: Content of a training list.
Batches: TypeAlias = Literal["pointwise", "pairwise", "listwise"]
#: Source of the negatives, and of the candidates in an evaluation.
NegativesFrom: TypeAlias = Literal["own", "random", "retrieved"]
CandidatesFrom: TypeAlias = Literal["own", "retrieved"]

#: Retrieved texts by question: rows of the second texts, and each question's start.
Pool: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class MatchingOptions(MemoryOptions, VectorOptions, PairTableOptions):
    """Options of `MatchingDataModule`.

    A table is a .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file, a folder saved by `datasets`, or
    `hub:NAME[:SPLIT]`. `validation_split` is a share of the questions, not of the pairs.

    Attributes:
        batches: a training list: `pointwise` a pair, `pairwise` a positive with negatives, `listwise` all candidates of
            a question. None = pairwise to rank, pointwise to classify.
        negatives: source of the negatives: the question's `own` candidates of a lower grade, `random` ones from other
            questions, or `retrieved` ones, which the retriever finds in the memory for the question. The latter two
            join a listwise list as well. Known positives and their duplicates are excluded.
        num_negatives: maximum number of negatives in a list.
        candidates: texts that validation and test rank: the question's `own` candidates, or also those `retrieved` from
            the memory, with grade 0. Misses of the retrieval do not count: the scores measure the order.
        num_candidates: number of hits that are `retrieved`.
        keep_questions_without_positive: count such questions as 0 in the means instead of skipping them.
        first_length: number of words kept of a first text.
        second_length: number of words kept of a second text.
        memory_text_column: text of the memory table. Without a memory of the user's, candidates are retrieved from the
            distinct second texts of the training pairs, or from the documents.
        normalize_vectors: scale each word vector to length 1.
        batch_size: lists in a training batch of one device.
    """

    batches: Batches | None = None
    negatives: NegativesFrom = "own"
    num_negatives: int = 4
    candidates: CandidatesFrom = "own"
    num_candidates: int = 50
    keep_questions_without_positive: bool = False
    first_length: int = 40
    second_length: int = 80
    memory_text_column: Column | list[Column] | None = "text"
    normalize_vectors: bool = True
    batch_size: int = 32

    files: ClassVar[tuple[str, ...]] = (
        "train_file",
        "validation_file",
        "test_file",
        "queries_file",
        "documents_file",
        "memory",
        "word_vectors",
    )
    test_files: ClassVar[tuple[str, ...]] = ("test_file", "train_file")

    def __post_init__(self) -> None:
        PairTableOptions.__post_init__(self)
        VectorOptions.__post_init__(self)
        check_least(self, 1, "num_negatives", "num_candidates", "first_length", "second_length")
        check_choice(self, "batches", (None, "pointwise", "pairwise", "listwise"))
        check_choice(self, "negatives", ("own", "random", "retrieved"))
        check_choice(self, "candidates", ("own", "retrieved"))
        if self.chosen_goal == "classification":
            if self.batches not in (None, "pointwise"):
                raise InputError(
                    f"data.batches={self.batches}: pairs to classify are pointwise; omit the option"
                )
            if self.candidates != "own":
                raise InputError(
                    "data.goal=classification: pairs to classify have no candidates; set goal=ranking"
                )
        if self.chosen_batches == "pointwise" and self.negatives != "own":
            raise InputError(
                f"data.negatives={self.negatives}: pointwise batches draw none; set batches=pairwise"
            )

    @property
    def chosen_batches(self) -> Batches:
        """The content of a training list, after the default of the goal."""
        return self.batches or ("pairwise" if self.chosen_goal == "ranking" else "pointwise")


class MatchingDataModule(DataModule[MatchingOptions, Pairs, MatchingSplit]):
    """Pairs of texts to rank or to classify.

    Example:
        >>> data = MatchingDataModule(
        ...     layout="wikiqa", train_file="WikiQA-train.tsv", validation_file="WikiQA-dev.tsv"
        ... )
    """

    options_type = MatchingOptions
    spec_type = MatchingSpec
    any_ranking = True

    def __init__(self, retriever: Retriever = DEFAULT_RETRIEVER, **options: Any) -> None:
        """Describe the data; nothing is read yet.

        Args:
            retriever: back end and ranking: EmbeddedRetriever, ElasticsearchRetriever, DenseRetriever, ...
            **options: fields of `MatchingOptions`.
        """
        checked = MatchingOptions(**options)
        super().__init__(checked, checked, checked, retriever)
        self.monitor = "val/map" if checked.chosen_goal == "ranking" else "val/accuracy"
        self.pair_tables = PairTables(checked, self.duplicates)

    # --- tables ---

    @property
    @override
    def tables(self) -> dict[str, str | None]:
        options = self.options
        return {
            "train": options.train_file,
            "validation": options.validation_file,
            "test": options.test_file,
        }

    @override
    def is_split_off(self, name: str) -> bool:
        return super().is_split_off(name) or (name == "test" and self.options.test_split is not None)

    @override
    def read_tables(self, wanted: Sequence[str]) -> dict[str, Pairs]:
        return self.pair_tables.read_tables(wanted)

    @override
    def duplicate_keys(self, table: Pairs) -> NDArray[np.uint64]:
        return self.pair_tables.duplicate_keys(table)

    # --- memory ---

    @property
    @override
    def has_memory(self) -> bool:
        # Candidates of questions to rank are retrieved from it.
        return self.options.chosen_goal == "ranking"

    @property
    @override
    def retrieves(self) -> bool:
        return "retrieved" in (self.options.negatives, self.options.candidates)

    @override
    def own_memory(self, tables: Mapping[str, Pairs]) -> Rows | None:
        # The documents of a collection, or the distinct second texts of the training pairs.
        if "train" not in tables:
            return None
        return self.pair_tables.collection[1] if self.options.layout == "trec" else tables["train"].second

    @override
    def release_memory(self) -> None:
        super().release_memory()
        self.pair_tables.release_collection()

    @override
    def memory_columns(self) -> PlainDict:
        return {"text_column": self.options.memory_text_column, "label_column": None}

    # --- splits ---

    @override
    def prepare_split(self, name: str, table: Pairs, seen: NDArray[np.uint64] | None) -> MatchingSplit:
        # Retrieved candidates become pairs, retrieved negatives a pool.
        training, pool, parts = name == "train", None, dict[str, Part]()
        keys = self.duplicate_keys(table)
        if (self.options.negatives if training else self.options.candidates) == "retrieved":
            table, pool, neighbors = self._retrieve(table, exclude_all=not training or self._is_listwise)
            if training:
                parts["pool"] = self._prepare_pool(pool, table, neighbors)
            else:
                table, pool = table.with_pairs(pool.list_numbers, pool.values), None
        first = self.words.tokenize(table.first, self.options.first_length)
        second = self.words.tokenize(table.second, self.options.second_length)
        parts |= {
            "pairs": prepared_folder(self.cache, "pairs", table.fingerprint, table.save),
            "first_tokens": first.part,
            "second_tokens": second.part,
        }
        marks = None
        if not training:
            # A memory of texts to rank reveals no label.
            marks = DuplicateMarks.of(keys, seen)
            parts["duplicates"] = self.duplicates.prepare_marks(marks)
        origin = Origin(self.cache, parts, table.source)
        split = MatchingSplit(table, first, second, pool, origin, marks)
        self._check(name, split)
        return split

    @property
    def _is_listwise(self) -> bool:
        return self.options.chosen_batches == "listwise"

    def _retrieve(self, pairs: Pairs, exclude_all: bool) -> tuple[Pairs, Ragged, str]:
        """Hits of each question that are none of its own texts.

        Args:
            pairs: the table.
            exclude_all: exclude all texts of the question, not only its positives.

        Returns:
            The pairs with the hits among the second texts; the hits of each question; and the fingerprint of the
            neighbors.
        """
        assert self.memory is not None
        folder, fingerprint = build_neighbors(
            pairs.first, self.memory.opened, self.options.num_candidates, False, self.cache
        )
        store = open_neighbors(folder, fingerprint)
        pairs, rows_of = pairs.with_second_texts(store.memories.texts[:])
        hits = np.append(rows_of, -1)[store.rows[pairs.question_row]]
        excluded = np.ones(len(pairs), bool) if exclude_all else pairs.target > 0
        return pairs, foreign_texts(pairs, hits, excluded), fingerprint

    def _prepare_pool(self, pool: Ragged, pairs: Pairs, neighbors: str) -> Part:
        description = {"pairs": pairs.fingerprint, "neighbors": neighbors, "listwise": self._is_listwise}
        return prepared_folder(self.cache, "pool", fingerprint_of(description), pool.save)

    def _check(self, name: str, split: MatchingSplit) -> None:
        """Refuse training pairs without anything to learn, and a validation that cannot select an epoch."""
        pairs = split.pairs
        if name == "train" and len(self._training_lists(split)) == 0:
            missing = (
                "no pair has a label above 0; check data.label_column"
                if not (pairs.target > 0).any()
                else "no question has both a positive and a candidate of a lower grade; set data.negatives=random"
            )
            raise InputError(f"{pairs.source}: {missing}")
        if name == "validation" and len(pairs) == 0:
            raise InputError(
                f"{pairs.source}: no question is left for validation; give more questions, a larger"
                " data.validation_split, or a data.validation_file"
            )
        if name == "validation" and self.options.chosen_goal == "ranking" and not pairs.has_positive.any():
            raise InputError(
                f"{pairs.source}: no question of the validation pairs has a positive, so no epoch would be better"
                " than another; give a data.validation_file whose questions have one, or a larger"
                " data.validation_split"
            )

    @override
    def open_split(self, origin: Origin) -> MatchingSplit:
        return MatchingSplit.open(origin)

    def split_of(self, pairs: Pairs) -> MatchingSplit:
        """A split in memory, for prediction."""
        first = self.words.tokenize_now(pairs.first, self.options.first_length)
        return MatchingSplit(pairs, first, self.words.tokenize_now(pairs.second, self.options.second_length))

    @override
    def texts_of(self, split: MatchingSplit) -> list[tuple[TokenStore, int]]:
        options = self.options
        return [(split.first_tokens, options.first_length), (split.second_tokens, options.second_length)]

    @override
    def lengths_by_option(self) -> dict[str, int]:
        return {"first_length": self.options.first_length, "second_length": self.options.second_length}

    @override
    def describe_split(self, name: str, split: MatchingSplit) -> Iterator[Message]:
        pairs = split.pairs
        if self.options.chosen_goal == "ranking":
            single = int((pairs.lists.counts == 1).sum())
            without = int((~pairs.has_positive).sum())
            yield (
                logging.INFO,
                f"{pairs.source}: {len(pairs)} pairs of {pairs.num_questions} questions; {without} questions have"
                f" no positive, {single} have one candidate",
            )
            if not pairs.has_positive.any() and not self.options.keep_questions_without_positive:
                yield (
                    logging.WARNING,
                    f"{pairs.source}: no question has a positive, so there is no order to measure: MAP, MRR, NDCG,"
                    " P@1 and AUC are omitted",
                )
            if empty := int(split.empty_questions.sum()):
                question = pairs.first.texts[int(pairs.question_row[split.empty_questions.argmax()])]
                yield (
                    logging.WARNING,
                    f"{pairs.source}: no candidate of {empty} questions has a word (the first is {question!r});"
                    " training skips them, and their ranking is a guess",
                )
        for side, (tokens, length) in zip(("first", "second"), self.texts_of(split), strict=True):
            if cut := int((np.diff(tokens.offsets) > length - self.words.special_tokens).sum()):
                yield (
                    logging.INFO,
                    f"{pairs.source}: {cut} of {len(tokens)} distinct {side} texts are cut to"
                    f" data.{side}_length={length} words",
                )

    # --- facts for the model ---

    @override
    def learn(self, train: MatchingSplit, vocabulary: Vocabulary) -> PlainDict:
        # For each word of the vocabulary, the number of distinct training texts that have it.
        frequency = np.zeros(len(vocabulary), np.int64)
        stores = [train.first_tokens, train.second_tokens]
        for store in stores:
            texts, _ = count_tokens(store.tokens, store.offsets, len(store.lexicon))
            np.add.at(frequency, vocabulary.lookup(store.lexicon), texts)
        frequency[vocabulary.unk_id] = 0
        return {"num_texts": sum(map(len, stores)), "document_frequency": frequency.tolist()}

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: PlainDict) -> MatchingSpec:
        return MatchingSpec(
            num_words=len(vocabulary),
            num_chars=len(vocabulary.characters or ()),
            goal=self.options.chosen_goal,
            first_length=self.options.first_length,
            second_length=self.options.second_length,
            unknown=vocabulary.unk_id,
            special=(*vocabulary.prefix, *vocabulary.suffix),
        )

    @property
    def idf(self) -> NDArray[np.float32]:
        """float32 [num_words]: ln((n + 1) / (d + 1)) for a word that d of the n distinct training texts have.

        A word of every text has 0, and a word of none, such as the unknown word, ln(n + 1). Padding and the special
        tokens that a `transformers` tokenizer puts around each text have 0.
        """
        vocabulary = self.words.vocabulary
        frequency = np.array(self.facts["document_frequency"], np.int64)
        idf: NDArray[np.float32] = np.log((self.facts["num_texts"] + 1) / (frequency + 1)).astype(np.float32)
        idf[[vocabulary.pad_id, *vocabulary.prefix, *vocabulary.suffix]] = 0
        return idf

    # --- batches ---

    @override
    def dataset(
        self, split: MatchingSplit, contents: BatchContents = BatchContents(), training: bool = False
    ) -> MatchingDataset:
        if training:
            lists = self._training_lists(split)
        elif self.options.chosen_goal == "classification":
            lists = Lists.single(np.arange(len(split.pairs)))
        else:
            lists = Lists.of_questions(split.pairs)
        return MatchingDataset(self.words.table, self.spec, self.idf, split, lists, contents)

    def _training_lists(self, split: MatchingSplit) -> Lists:
        options = self.options
        return Lists.to_train_on(
            split, options.chosen_batches, options.negatives, options.num_negatives, self.seed
        )
