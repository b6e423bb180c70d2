"""Pairs of texts to match, in lists: a question's candidates, a positive with drawn negatives, or a single pair."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, MatchingBatch, MatchingSpec, as_tensors
from datamodules.core.errors import InputError
from datamodules.core.ragged import Ragged, offsets_of
from datamodules.core.storage import Part, fingerprint_of, prepared_folder
from datamodules.core.types import Message, PlainDict, Size
from datamodules.corpora.pairs import Goal, Pairs, read_pairs, read_quora, read_trec, read_wikiqa
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import stratified_split
from datamodules.corpora.table import read_identified
from datamodules.dataset import BatchDataset, PreparedSplit, Side, rows_and_weights
from datamodules.drawing import Matches, choose, key_of
from datamodules.duplicates import DuplicateMarks, duplicate_codes, groups_to_split
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import TableOptions
from datamodules.retrieval import Memory, Neighbors, Retriever, build_neighbors
from datamodules.retrieval.folding import fold_hashes
from datamodules.text.gather import distinct_rows, gather
from datamodules.text.tokens import TokenStore, count_tokens
from datamodules.text.vocabulary import Vocabulary

#: Content of a training list.
Batches: TypeAlias = Literal["pointwise", "pairwise", "listwise"]
#: Negatives of lists: all texts that match no other text of a list's question; or ranges of an array, one for each
#: list, with their starts and sizes.
Negatives: TypeAlias = Matches | tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class MatchingOptions(TableOptions):
    """Options of `MatchingDataModule`; splits take shares of the questions, not of the pairs.

    Attributes:
        goal: `ranking` orders a question's candidates (labels are grades from 0); `classification` decides whether two
            texts match (labels 0 and 1). None = classification for the layout `quora`, otherwise ranking.
        layout: a `table` with the columns below; the official `wikiqa` release; the `quora` release, or label, two
            questions and id without a header; or `trec` judgements (`query 0 document grade` or without the 0).
        first_column: name or number (from 0) of the first text (the question).
        second_column: name or number of the second text (the answer).
        question_column: name or number of an id of the question; None = pairs of equal first texts are one question.
        queries_file: with `trec`, the queries of all splits, in one file or several: .jsonl with `id` (or `_id`) and
            `text`, or .tsv with id and text and no header.
        documents_file: with `trec`, the documents, in the same formats. All of them are then the memory.
        document_column: name or number of their text, or several, which are joined; None = `text`, or second of a .tsv.
        batches: a training list: `pointwise` a pair, `pairwise` a positive with negatives, `listwise` all candidates of
            a question. None = pairwise to rank, pointwise to classify.
        negatives: the question's `own` candidates of a lower grade; or other questions' `random` texts, or `retrieved`
            ones from the memory, which also join a listwise list. Known positives are excluded, with duplicates.
        num_negatives: maximum number of negatives in a list.
        candidates: texts that validation and test rank: the question's `own` candidates, or also those `retrieved` from
            the memory, with grade 0; the scores do not count what the retrieval misses.
        num_candidates: number of hits that are `retrieved`.
        first_length: number of words kept of a first text.
        second_length: number of words kept of a second text.
        memory_text_column: text of the memory table; without one, the training's second texts or the documents are it.
    """

    goal: Goal | None = None
    layout: Literal["table", "wikiqa", "quora", "trec"] = "table"
    first_column: Column = "first"
    second_column: Column = "second"
    question_column: Column | None = None
    queries_file: str | list[str] | None = None
    documents_file: str | None = None
    document_column: Column | list[Column] | None = None
    batches: Batches | None = None
    negatives: Literal["own", "random", "retrieved"] = "own"
    num_negatives: Size = 4
    candidates: Literal["own", "retrieved"] = "own"
    num_candidates: Size = 50
    first_length: Size = 40
    second_length: Size = 80
    memory_text_column: Column | list[Column] | None = "text"
    normalize_vectors: bool = True
    batch_size: Size = 32

    files: ClassVar[tuple[str, ...]] = (*TableOptions.files, "queries_file", "documents_file")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen_goal == "classification":
            if self.layout == "trec" or self.candidates != "own":
                raise InputError("data.goal=classification: pairs have no candidates; set goal=ranking")
            if self.batches not in (None, "pointwise"):
                raise InputError(f"data.batches={self.batches}: pairs to classify are pointwise; omit it")
        if self.chosen_batches == "pointwise" and self.negatives != "own":
            raise InputError(f"data.negatives={self.negatives}: pointwise draws none; set batches=pairwise")
        for name in ("validation_split", "test_split"):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise InputError(f"data.{name}={share}: give a share between 0 and 1")

    @property
    def chosen_goal(self) -> Goal:
        """The goal, after the default of the layout."""
        return self.goal or ("classification" if self.layout == "quora" else "ranking")

    @property
    def chosen_batches(self) -> Batches:
        """The content of a training list, after the default of the goal."""
        return self.batches or ("pairwise" if self.chosen_goal == "ranking" else "pointwise")


@dataclass(frozen=True)
class MatchingSplit(PreparedSplit):
    """One table of pairs, ready for batches."""

    pairs: Pairs
    first_tokens: TokenStore
    second_tokens: TokenStore
    #: for each question, retrieved texts that do not match: rows of the second texts.
    pool: Ragged | None = None

    @property
    def is_duplicate(self) -> NDArray[np.bool_] | None:
        """bool [P]: pairs that scores without duplicates skip; None where nothing is measured."""
        if self.duplicates is None:
            return None
        marks = self.duplicates.is_duplicate  # of pairs to classify, or of questions to rank
        return marks if len(marks) == len(self.pairs) else marks[self.pairs.question]

    @property
    def empty_questions(self) -> NDArray[np.bool_]:
        """bool [questions]: True where no candidate has a word."""
        has_words = np.diff(self.second_tokens.offsets)[self.pairs.second_row] > 0
        return ~np.isin(np.arange(self.pairs.num_questions), self.pairs.question[has_words])


def training_lists(split: MatchingSplit, options: MatchingOptions) -> tuple[Ragged, Negatives | None]:
    """The lists that a model can learn from, as rows of the table, and their negatives; None = none are drawn.

    Own negatives are rows of the table as well, others are rows of the second texts.
    """
    pairs = split.pairs
    if options.chosen_batches == "pointwise":
        return Ragged(np.arange(len(pairs)), np.arange(len(pairs) + 1)), None
    usable = ~split.empty_questions
    draws = options.negatives != "own"
    if options.chosen_batches == "listwise":
        highest, lowest = np.zeros(pairs.num_questions), np.full(pairs.num_questions, np.inf)
        np.maximum.at(highest, pairs.question, pairs.target)
        np.minimum.at(lowest, pairs.question, pairs.target)
        # Candidates of one grade alone have no order.
        questions = np.flatnonzero(usable & (highest > 0) & ((lowest < highest) | draws))
        return pairs.lists.take(questions), foreign_negatives(split, questions) if draws else None
    positives = np.flatnonzero((pairs.target > 0) & usable[pairs.question])
    if not draws:
        positives, negatives = own_negatives(pairs, positives)
    else:
        if split.pool is not None:
            positives = positives[split.pool.counts[pairs.question[positives]] > 0]
        negatives = foreign_negatives(split, pairs.question[positives])
    return Ragged(positives, np.arange(len(positives) + 1)), negatives


def own_negatives(pairs: Pairs, positives: NDArray[np.int64]) -> tuple[NDArray[np.int64], Negatives]:
    """The positives (row numbers) whose question has candidates of a lower grade, and these pairs."""
    # In a question's candidates by rising grade, those below a grade are the first ones.
    grade = np.unique(pairs.target, return_inverse=True)[1]
    key = pairs.question.astype(np.int64) * len(pairs) + grade
    order = np.argsort(key, kind="stable")
    start = pairs.lists.offsets[pairs.question[positives]]
    size = np.searchsorted(key[order], key[positives]) - start
    kept = size > 0
    return positives[kept], (order, start[kept], size[kept])


def foreign_negatives(split: MatchingSplit, question: NDArray[np.integer]) -> Negatives:
    """The retrieved texts of each list's question, or all that do not match it."""
    pairs, pool = split.pairs, split.pool
    if pool is None:
        return Matches.of(pairs.second.texts, pairs.num_questions, pairs.question, pairs.second_row)
    return np.asarray(pool.values), pool.offsets[question], pool.counts[question]


def foreign_texts(pairs: Pairs, hits: NDArray[np.int64], excluded: NDArray[np.bool_]) -> Ragged:
    """The distinct hits [questions, k] (-1 = none) that duplicate no text of the question's `excluded` pairs [P]."""
    question, row = pairs.question[excluded], pairs.second_row[excluded]
    own = Matches.of(pairs.second.texts, len(hits), question, row)
    # One number for a question and a text.
    keys = np.where(hits >= 0, np.arange(len(hits))[:, None] * len(own.codes) + own.codes[hits], -1)
    kept = np.zeros(hits.size, bool)
    kept[np.unique(keys, return_index=True)[1]] = True
    kept = kept.reshape(hits.shape) & own.are_foreign(hits)
    return Ragged(hits[kept], offsets_of(kept.sum(axis=1)))


class MatchingDataset(BatchDataset[MatchingBatch]):
    """Batches of lists of pairs."""

    is_redrawn = True

    def __init__(
        self,
        data: MatchingDataModule,
        split: MatchingSplit,
        contents: BatchContents,
        lists: Ragged,
        negatives: Negatives | None = None,
    ) -> None:
        """Bind lists of a split, see `training_lists`, to the vocabulary in use."""
        self.options, self.seed, self.idf, self.split = data.options, data.seed, data.idf, split
        self.lists, self.negatives = lists, negatives
        self.is_duplicate, pairs = split.is_duplicate, split.pairs
        first, second = data.words.bind(data.texts_of(split))
        self.first = Side(pairs.first.texts, first, contents)
        self.second = Side(pairs.second.texts, second, contents)

    def __len__(self) -> int:
        return len(self.lists)

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        """Number of words of each list [n]: of its longest first and its longest second text together, as kept."""
        lists, first, second, _ = self._members(epoch, np.arange(len(self)))
        longest = np.zeros(len(self), np.int64)
        for side, rows in ((self.first, first), (self.second, second)):
            longest += np.maximum.reduceat(side.tokens.sizes[rows], lists.offsets[:-1])
        return longest

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> MatchingBatch:
        """Build a batch of one epoch: i + e n is list i as drawn in epoch e (see `LengthBucketSampler`)."""
        given, weight = rows_and_weights(indices)
        epoch, numbers = np.divmod(given, len(self))
        lists, first_row, second_row, target = self._members(int(epoch[0]), numbers)
        firsts, first = distinct_rows(first_row)
        seconds, second = distinct_rows(second_row)
        word, char, texts = gather((self.first.tokens, firsts), (self.second.tokens, seconds))
        arrays: dict[str, NDArray[np.generic]] = {
            "word": word,
            "char": char,
            "idf": self.idf[word],
            "first_text": texts[0],
            "second_text": texts[1],
            "first": first,
            "second": second,
            "query": lists.list_numbers,
            "place": lists.positions,
            "target": target,
            "weight": weight[lists.list_numbers],
            "row": lists.values,
        }
        if self.is_duplicate is not None:  # all pairs are then the table's
            arrays["is_duplicate"] = self.is_duplicate[lists.values]
        batch = MatchingBatch(
            **as_tensors(arrays),
            first_string=self.first.strings(firsts),
            second_string=self.second.strings(seconds),
        )
        if (encoded := self.first.encodings) is None or (others := self.second.encodings) is None:
            return batch
        return batch._replace(
            first_vector=encoded.padded(firsts, batch.first_text.shape[1]),
            second_vector=others.padded(seconds, batch.second_text.shape[1]),
        )

    def _members(
        self, epoch: int, numbers: NDArray[np.int64]
    ) -> tuple[Ragged, NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """The P pairs of some lists: rows of the table, -1 for drawn pairs that are in none; and for each pair [P].

        These are its rows of the first and of the second texts, and its target.
        """
        pairs, rows = self.split.pairs, self.lists.take(numbers)
        first = pairs.first_row[rows.values].astype(np.int64)
        second = pairs.second_row[rows.values].astype(np.int64)
        target = pairs.target[rows.values]
        if self.negatives is None:
            return rows, first, second, target
        key, count = key_of(self.seed, epoch), self.options.num_negatives
        if isinstance(self.negatives, Matches):
            question = pairs.question[rows.values[rows.offsets[:-1]]].astype(np.int64)
            drawn = self.negatives.draw(key, numbers, question, count)
        else:
            pool, start, size = self.negatives
            drawn = choose(key, numbers, pool, start[numbers], size[numbers], count)
        query, seconds = np.nonzero(drawn >= 0)[0], drawn[drawn >= 0]
        targets, drawn_rows = np.zeros(len(seconds), np.float32), np.full(len(seconds), -1)
        if self.options.negatives == "own":
            drawn_rows, targets = seconds, pairs.target[seconds]
            seconds = pairs.second_row[seconds].astype(np.int64)
        # Drawn pairs have the first text of their list, and follow the list's own pairs.
        order = np.argsort(np.concatenate([rows.list_numbers, query]), kind="stable")
        first = np.concatenate([first, first[rows.offsets[query]]])[order]
        second = np.concatenate([second, seconds])[order]
        target = np.concatenate([target, targets])[order]
        row = np.concatenate([rows.values, drawn_rows])[order]
        return Ragged(row, offsets_of(rows.counts + (drawn >= 0).sum(axis=1))), first, second, target


class MatchingDataModule(DataModule[MatchingOptions, Pairs, MatchingSplit]):
    """Pairs of texts to rank or to classify.

    Args:
        retriever: back end and ranking: EmbeddedRetriever, ElasticsearchRetriever, DenseRetriever, ...

    Example:
        >>> data = MatchingDataModule(
        ...     layout="wikiqa", train_file="WikiQA-train.tsv", validation_file="WikiQA-dev.tsv"
        ... )
    """

    options_type = MatchingOptions
    spec_type = MatchingSpec
    split_type = MatchingSplit
    length_options: ClassVar = {"first_tokens": "first_length", "second_tokens": "second_length"}
    any_ranking = True

    def __init__(self, retriever: Retriever = DEFAULT_RETRIEVER, **options: Any) -> None:
        super().__init__(MatchingOptions(**options), retriever)
        self._ranks = self.options.chosen_goal == "ranking"
        self.monitor = "val/map" if self._ranks else "val/accuracy"

    @override
    def read_splits(self, names: Sequence[str]) -> dict[str, Pairs]:
        options = self.options
        if options.layout != "trec":
            return {name: read_pair_table(options.file_of(name), options) for name in names}
        files, documents = options.queries_file, self._read_documents()
        if files is None:
            raise InputError("data.layout=trec: name data.queries_file")
        queries = read_identified(files)
        return {name: read_trec(options.file_of(name), queries, documents) for name in names}

    def _read_documents(self) -> Rows:
        """Read the documents of a test collection (layout `trec`)."""
        if self.options.documents_file is None:
            raise InputError("data.layout=trec: name data.queries_file and data.documents_file")
        return read_identified(self.options.documents_file, self.options.document_column)

    @override
    def split_off(self, table: Pairs, part: int | float) -> tuple[Pairs, Pairs]:
        # By question. Those with a positive are distributed evenly: only these count.
        kinds = np.where(table.has_positive, "with a positive", "without").tolist()
        keys = None if self._ranks else self.duplicate_keys(table)
        groups = groups_to_split(question_groups(table, keys))
        rest, chosen = stratified_split(kinds, part, self.options.split_seed, groups)
        return table.select(rest), table.select(chosen)

    @override
    def duplicate_keys(self, table: Pairs) -> NDArray[np.uint64]:
        # Of each question to rank, or of each pair to classify, independent of the order of its texts.
        first = fold_hashes(table.first.texts)
        if self._ranks:
            return first[table.question_row]
        firsts, seconds = first[table.first_row], fold_hashes(table.second.texts)[table.second_row]
        # The factor distinguishes a pair from another pair of the same sum.
        lower = np.minimum(firsts, seconds) * np.uint64(0x9E3779B97F4A7C15)
        return lower + np.maximum(firsts, seconds)

    @property
    @override
    def has_memory(self) -> bool:
        return self._ranks  # candidates of questions to rank are retrieved from it

    @property
    @override
    def retrieves(self) -> bool:
        return "retrieved" in (self.options.negatives, self.options.candidates)

    @override
    def own_memory(self, tables: Mapping[str, Pairs]) -> Rows | None:
        if "train" not in tables:
            return None
        return self._read_documents() if self.options.layout == "trec" else tables["train"].second

    @override
    def memory_columns(self) -> PlainDict:
        return {"text_column": self.options.memory_text_column, "label_column": None}

    @override
    def prepare_split(
        self, name: str, table: Pairs, seen: NDArray[np.uint64] | None, memory: Memory | None
    ) -> dict[str, Part]:
        options, training = self.options, name == "train"
        parts: dict[str, Part] = {}
        if not training:
            # A memory of texts to rank reveals no label.
            marks = DuplicateMarks.of(self.duplicate_keys(table), seen)
            parts["duplicates"] = prepared_folder(self.cache, "marks", marks.fingerprint, marks.save)
        if memory is not None and (options.negatives if training else options.candidates) == "retrieved":
            exclude_all = not training or options.chosen_batches == "listwise"
            table, foreign, neighbors = self._retrieve(table, memory, exclude_all)
            if training:
                description = {"pairs": table.fingerprint, "neighbors": neighbors, "listwise": exclude_all}
                parts["pool"] = prepared_folder(self.cache, "pool", fingerprint_of(description), foreign.save)
            else:
                table = table.with_pairs(foreign.list_numbers, foreign.values)
        return {
            **parts,
            "pairs": prepared_folder(self.cache, "pairs", table.fingerprint, table.save),
            "first_tokens": self.words.tokenize(table.first, options.first_length).part,
            "second_tokens": self.words.tokenize(table.second, options.second_length).part,
        }

    def _retrieve(self, pairs: Pairs, memory: Memory, exclude_all: bool) -> tuple[Pairs, Ragged, str]:
        """Pairs with hits as second texts, the foreign hits of each question, and the fingerprint of the neighbors."""
        part = build_neighbors(pairs.first, memory, self.options.num_candidates, False, self.cache)
        neighbors = Neighbors.open(self.cache / part[0], part[1])
        pairs, rows_of = pairs.with_second_texts(neighbors.memories.texts[:])
        hits = np.append(rows_of, -1)[neighbors.rows[pairs.question_row]]
        excluded = np.ones(len(pairs), bool) if exclude_all else pairs.target > 0
        return pairs, foreign_texts(pairs, hits, excluded), part[1]

    def split_of(self, pairs: Pairs) -> MatchingSplit:
        """A split in memory, for prediction."""
        first = self.words.tokenize_now(pairs.first, self.options.first_length)
        return MatchingSplit(pairs, first, self.words.tokenize_now(pairs.second, self.options.second_length))

    @override
    def describe_split(self, name: str, split: MatchingSplit) -> Iterator[Message]:
        pairs = split.pairs
        if name == "train" and len(training_lists(split, self.options)[0]) == 0:
            missing = "no question has a positive and a candidate of a lower grade; set data.negatives=random"
            if not (pairs.target > 0).any():
                missing = "no pair has a label above 0; check data.label_column"
            raise InputError(f"{pairs.source}: {missing}")
        can_select = pairs.has_positive.any() if self._ranks else len(pairs) > 0
        if name == "validation" and not can_select:
            needed = "question of the validation pairs has a positive" if self._ranks else "pair is left"
            advice = "give a data.validation_file, or a larger data.validation_split"
            raise InputError(f"{pairs.source}: no {needed}; {advice}")
        if self._ranks:
            yield from self._describe_questions(split)

    def _describe_questions(self, split: MatchingSplit) -> Iterator[Message]:
        pairs = split.pairs
        without, single = int((~pairs.has_positive).sum()), int((pairs.lists.counts == 1).sum())
        questions = f"{len(pairs)} pairs of {pairs.num_questions} questions"
        yield logging.INFO, f"{questions}; {without} questions have no positive, {single} have one candidate"
        if not pairs.has_positive.any():
            problem = "no question has a positive, so there is no order to measure"
            yield logging.WARNING, f"{problem}: MAP, MRR, NDCG, P@1 and AUC are omitted"
        if empty := int(split.empty_questions.sum()):
            question = pairs.first.texts[int(pairs.question_row[split.empty_questions.argmax()])]
            problem = f"no candidate of {empty} questions has a word (the first is {question!r})"
            yield logging.WARNING, f"{problem}; training skips them, and their ranking is a guess"

    @override
    def learn(self, train: MatchingSplit, vocabulary: Vocabulary, memory: Memory | None) -> PlainDict:
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
            unknown=vocabulary.unk_id,
            special=(*vocabulary.prefix, *vocabulary.suffix),
        )

    @property
    def idf(self) -> NDArray[np.float32]:
        """float32 [num_words]: ln((n + 1) / (d + 1)) for a word that d of the n distinct training texts have.

        The unknown word has ln(n + 1); padding and the special tokens of a `transformers` tokenizer have 0.
        """
        vocabulary = self.words.vocabulary
        frequency = np.array(self.facts["document_frequency"], np.int64)
        idf: NDArray[np.float32] = np.log((self.facts["num_texts"] + 1) / (frequency + 1)).astype(np.float32)
        idf[[vocabulary.pad_id, *vocabulary.prefix, *vocabulary.suffix]] = 0
        return idf

    @override
    def dataset(
        self, split: MatchingSplit, contents: BatchContents = BatchContents(), training: bool = False
    ) -> MatchingDataset:
        # Pairs to classify are lists of one in training, too.
        if self._ranks and not training:
            return MatchingDataset(self, split, contents, split.pairs.lists)
        return MatchingDataset(self, split, contents, *training_lists(split, self.options))


def read_pair_table(
    path: str, options: MatchingOptions, labelled: bool = True, with_ids: bool = False
) -> Pairs:
    """Read a table of any layout but `trec`; without `labelled`, labels and ids may be missing (prediction).

    With `with_ids`, an `InputError` is raised for a table whose questions and texts have no ids.
    """
    if with_ids and (
        options.chosen_goal == "classification"
        or (options.layout == "table" and None in (options.question_column, options.id_column))
    ):
        problem = "a ranking with ids needs those of the questions and of the texts"
        advice = "name --question_column and --id_column; pairs to classify have no ranking"
        raise InputError(f"{path}: {problem}: {advice}")
    if options.layout == "wikiqa":
        return read_wikiqa(path, labelled)
    if options.layout == "quora":
        return read_quora(path, labelled)
    if options.layout == "trec":
        raise InputError(f"{path}: give the columns of the pairs with --first_column and --second_column")
    label = options.label_column if labelled else None
    ids = (options.question_column, options.id_column) if labelled or with_ids else (None, None)
    columns = options.first_column, options.second_column, label, *ids
    return read_pairs(path, *columns, options.header, options.quotes, options.chosen_goal)


def question_groups(table: Pairs, keys: NDArray[np.uint64] | None) -> NDArray[np.int64]:
    """int64 [questions]: equal for questions that are duplicates or, by the `keys` of pairs, share one's duplicate."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    # Questions are linked to the code of their text, and to those of their pairs.
    question, code = np.arange(table.num_questions), duplicate_codes(table.first.texts)[table.question_row]
    if keys is not None:
        of_pairs = np.unique(keys, return_inverse=True)[1] + code.max(initial=-1) + 1
        question, code = np.append(question, table.question), np.append(code, of_pairs)
    size = table.num_questions + int(code.max(initial=-1)) + 1
    links = coo_matrix((np.ones(len(code), bool), (question, code + table.num_questions)), shape=(size, size))
    return connected_components(links, directed=False)[1][: table.num_questions]
