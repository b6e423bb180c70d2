"""Pairs of texts to match, in lists: a question's candidates, a positive with drawn negatives, or a single pair."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.core.ragged import Ragged
from datamodules.core.storage import Part, fingerprint_of, prepared_folder
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.pairs import Pairs, read_pairs, read_quora, read_trec, read_wikiqa
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import stratified_split
from datamodules.corpora.table import read_identified
from datamodules.duplicates import DuplicateMarks, duplicate_codes, groups_to_split
from datamodules.matching.dataset import (
    Lists,
    MatchingDataset,
    MatchingOptions,
    MatchingSplit,
    foreign_texts,
    training_lists,
)
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.retrieval import Memory, Retriever, build_neighbors, open_neighbors
from datamodules.retrieval.folding import fold_hashes
from datamodules.text.tokens import count_tokens
from datamodules.text.vocabulary import Vocabulary


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
        return table.select_questions(rest), table.select_questions(chosen)

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
            parts["duplicates"] = DuplicateMarks.of(self.duplicate_keys(table), seen).prepare(self.cache)
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
        neighbors = open_neighbors(self.cache / part[0], part[1])
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
        if name == "train" and len(training_lists(split, self.options, self.seed)) == 0:
            missing = "no question has a positive and a candidate of a lower grade; set data.negatives=random"
            if not (pairs.target > 0).any():
                missing = "no pair has a label above 0; check data.label_column"
            raise InputError(f"{pairs.source}: {missing}")
        can_select = pairs.has_positive.any() if self._ranks else len(pairs) > 0
        if name == "validation" and not can_select:
            needed = "question of the validation pairs has a positive" if self._ranks else "pair is left"
            raise InputError(
                f"{pairs.source}: no {needed}; give a data.validation_file, or a larger data.validation_split"
            )
        if self._ranks:
            yield from self._describe_questions(split)

    def _describe_questions(self, split: MatchingSplit) -> Iterator[Message]:
        pairs = split.pairs
        without, single = int((~pairs.has_positive).sum()), int((pairs.lists.counts == 1).sum())
        questions = f"{len(pairs)} pairs of {pairs.num_questions} questions"
        yield logging.INFO, f"{questions}; {without} questions have no positive, {single} have one candidate"
        if not pairs.has_positive.any():
            yield (
                logging.WARNING,
                "no question has a positive, so there is no order to measure: MAP, MRR, NDCG, P@1 and AUC are omitted",
            )
        if empty := int(split.empty_questions.sum()):
            question = pairs.first.texts[int(pairs.question_row[split.empty_questions.argmax()])]
            yield (
                logging.WARNING,
                f"no candidate of {empty} questions has a word (the first is {question!r}); training skips them, and"
                " their ranking is a guess",
            )

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
            first_length=self.options.first_length,
            second_length=self.options.second_length,
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
        if training:
            lists = training_lists(split, self.options, self.seed)
        elif self._ranks:
            lists = Lists(split.pairs.lists)
        else:
            lists = Lists.single(np.arange(len(split.pairs)))
        return MatchingDataset(self.words.new_table(), self.spec, self.idf, split, lists, contents)


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
        raise InputError(
            f"{path}: a ranking with ids needs those of the questions and of the texts: name --question_column and"
            " --id_column; pairs to classify have no ranking"
        )
    if options.layout == "wikiqa":
        return read_wikiqa(path, labelled)
    if options.layout == "quora":
        return read_quora(path, labelled)
    if options.layout == "trec":
        raise InputError(f"{path}: give the columns of the pairs with --first_column and --second_column")
    return read_pairs(
        path,
        options.first_column,
        options.second_column,
        label_column=options.label_column if labelled else None,
        question_column=options.question_column if labelled or with_ids else None,
        id_column=options.id_column if labelled or with_ids else None,
        header=options.header,
        quotes=options.quotes,
        goal=options.chosen_goal,
    )


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
