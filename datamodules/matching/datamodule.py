"""Pairs of texts to match: what is their own beside the skeleton of `datamodules.base`.

The unit is the list: all candidates of a question where a model is evaluated; in training a pair alone
(pointwise), a positive with negatives that are drawn anew in every epoch (pairwise), or all candidates
(listwise).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import MatchingSpec
from datamodules.core.errors import InputError
from datamodules.core.storage import Part, fingerprint_of, prepared_folder
from datamodules.corpora.pairs import Pairs
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.duplicates import CopyMarks, Message
from datamodules.matching.dataset import Lists, MatchingDataset, MatchingSplit
from datamodules.matching.negatives import foreign_texts
from datamodules.matching.tables import PairTables
from datamodules.options import check_choices, check_least
from datamodules.retrieval import build_neighbors, open_neighbors
from datamodules.sampling import ListSampler
from datamodules.text.counts import count_tokens
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary

#: What a training list holds.
Batches: TypeAlias = Literal["pointwise", "pairwise", "listwise"]
#: Where negatives come from, and the candidates that a model is evaluated on.
NegativesFrom: TypeAlias = Literal["own", "random", "retrieved"]
CandidatesFrom: TypeAlias = Literal["own", "retrieved"]


class MatchingDataModule(PairTables, TextDataModule[Pairs, MatchingSplit]):
    """Pairs of texts to rank or to classify.

    Example:
        >>> data = MatchingDataModule(
        ...     layout="wikiqa", train_file="WikiQA-train.tsv", validation_file="WikiQA-dev.tsv"
        ... )
    """

    spec_type = MatchingSpec
    files = (*TextDataModule.files, "queries_file", "documents_file")
    fact_names = ("num_texts", "document_frequency")
    sampler_type = ListSampler
    split_options = (*TextDataModule.split_options, "test_split")
    any_ranking = True

    def __init__(
        self,
        *,
        batches: Batches | None = None,
        negatives: NegativesFrom = "own",
        num_negatives: int = 4,
        candidates: CandidatesFrom = "own",
        num_candidates: int = 50,
        keep_questions_without_positive: bool = False,
        first_length: int = 40,
        second_length: int = 80,
        memory_text_column: Column | list[Column] = "text",
        normalize_vectors: bool = True,
        batch_size: int = 32,
        **shared: Any,
    ) -> None:
        """Describe the data; nothing is read yet.

        A table is a .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file, a folder saved by `datasets`, or
        `hub:NAME[:SPLIT]`. `validation_split` is a share of the questions, not of the pairs.

        Args:
            batches: what a training list is: `pointwise` a pair, `pairwise` a positive with negatives,
                `listwise` all candidates of a question. None = pairwise to rank, pointwise to classify.
            negatives: where negatives come from: the question's `own` candidates of a lower grade, `random` ones
                from other questions, or `retrieved` ones, which the retriever finds in the memory for the
                question. The latter two join a listwise list as well. Known positives and copies of them are
                left out.
            num_negatives: negatives of a list at most.
            candidates: what is ranked in validation and test: the question's `own` candidates, or also those
                that are `retrieved` from the memory, with grade 0. So retrieval's misses don't count: the
                figures are those of the order.
            num_candidates: hits that are `retrieved`.
            keep_questions_without_positive: count such questions as 0 in the means instead of leaving them out.
            first_length: words kept of a first text.
            second_length: words kept of a second text.
            memory_text_column: text of the memory table. Without a memory of the user's, candidates are retrieved
                from the distinct second texts of the training pairs, or from the documents.
            normalize_vectors: give each word vector the length 1.
            batch_size: lists a training batch of one device.
            **shared: options of `PairTables` and `TextDataModule`: tables, memory, words, batches.
        """
        super().__init__(
            memory_text_column=memory_text_column,
            normalize_vectors=normalize_vectors,
            batch_size=batch_size,
            **shared,
        )
        options = self.options
        least = ("num_negatives", "num_candidates", "first_length", "second_length")
        check_least(options, dict.fromkeys(least, 1))
        choices = {
            "batches": (None, "pointwise", "pairwise", "listwise"),
            "negatives": ("own", "random", "retrieved"),
            "candidates": ("own", "retrieved"),
        }
        check_choices(options, choices)
        ranks = options.goal == "ranking"
        if not ranks and batches not in (None, "pointwise"):
            raise InputError(f"data.batches={batches}: pairs to classify are pointwise; leave the option out")
        if not ranks and candidates != "own":
            raise InputError(
                "data.goal=classification: pairs to classify have no candidates; set goal=ranking"
            )
        self.batches: Batches = batches or ("pairwise" if ranks else "pointwise")
        if self.batches == "pointwise" and negatives != "own":
            raise InputError(f"data.negatives={negatives}: pointwise batches draw none; set batches=pairwise")
        self.monitor = "val/map" if ranks else "val/accuracy"

    @property
    @override
    def has_test_table(self) -> bool:
        return self.options.test_file is not None or self.options.test_split is not None

    @override
    def is_split_off(self, name: str) -> bool:
        return self.options[f"{name}_file"] is None

    # --- memory ---

    @property
    @override
    def has_memory(self) -> bool:
        # Questions to rank find candidates there.
        return bool(self.options.goal == "ranking")

    @property
    @override
    def retrieves(self) -> bool:
        return "retrieved" in (self.options.negatives, self.options.candidates)

    @override
    def own_memory(self, tables: Mapping[str, Pairs]) -> Rows | None:
        # The documents of a collection, or the distinct second texts of the training pairs.
        if "train" not in tables:
            return None
        return self.collection[1] if self.options.layout == "trec" else tables["train"].second

    @override
    def close_memory(self) -> None:
        # A collection that was read for it goes as well.
        super().close_memory()
        self._collection = None

    @override
    def memory_columns(self) -> dict[str, Any]:
        return {"text_column": self.options.memory_text_column, "label_column": None}

    # --- splits ---

    @override
    def prepare_split(self, name: str, table: Pairs) -> MatchingSplit:
        # Retrieved candidates become pairs, retrieved negatives a pool.
        training, pool, pool_part, keys = name == "train", None, None, self.copy_keys(table)
        if self.options["negatives" if training else "candidates"] == "retrieved":
            table, pool, neighbors = self._retrieve(table, everything=not training or self._listwise)
            if training:
                pool_part = self._prepare_pool(pool, table, neighbors)
            else:
                questions = np.repeat(np.arange(table.num_questions), np.diff(pool[1]))
                table, pool = table.with_pairs(questions, pool[0]), None
        pairs = prepared_folder(self.cache, "pairs", table.fingerprint, table.save)
        first = self.tokenise(table.first, self.options.first_length)
        second = self.tokenise(table.second, self.options.second_length)
        parts = {
            "source": table.source,
            "pairs": pairs,
            "first_tokens": first.part,
            "second_tokens": second.part,
        }
        if pool_part is not None:
            parts["pool"] = pool_part
        copies = None
        if not training:
            # A memory of texts to rank gives away no label.
            copies = self.mark(keys)
            parts["copies"] = self.prepare_marks(copies)
        split = MatchingSplit(table, first, second, pool, (self.cache, parts), copies)
        self._check(name, split)
        return split

    @override
    def copies_of(self, split: MatchingSplit) -> CopyMarks | None:
        return split.copies

    @property
    def _listwise(self) -> bool:
        return self.batches == "listwise"

    def _retrieve(
        self, pairs: Pairs, everything: bool
    ) -> tuple[Pairs, tuple[NDArray[np.int64], NDArray[np.int64]], str]:
        """Hits of each question that are none of its own texts.

        Args:
            pairs: the table.
            everything: leave out all texts of the question, not only its positives.

        Returns:
            The pairs with the hits among the second texts; the hits, question by question, with offsets; and
            the neighbours' fingerprint.
        """
        folder, mark = build_neighbors(
            pairs.first, self.opened_memory, self.options.num_candidates, False, self.cache
        )
        store = open_neighbors(folder, mark)
        pairs, rows_of = pairs.with_second_texts(store.memories.texts[:])
        # A question's first text is that of its first pair.
        rows, offsets = pairs.lists
        hits = np.append(rows_of, -1)[store.rows[pairs.first_row[rows[offsets[:-1]]]]]
        left_out = np.ones(len(pairs), bool) if everything else pairs.target > 0
        return pairs, foreign_texts(pairs, hits, left_out), mark

    def _prepare_pool(
        self, pool: tuple[NDArray[np.int64], NDArray[np.int64]], pairs: Pairs, neighbors: str
    ) -> Part:
        description = {"pairs": pairs.fingerprint, "neighbors": neighbors, "listwise": self._listwise}

        def save(folder: Any) -> None:
            np.save(folder / "rows.npy", pool[0])
            np.save(folder / "offsets.npy", pool[1])

        return prepared_folder(self.cache, "pool", fingerprint_of(description), save)

    def _check(self, name: str, split: MatchingSplit) -> None:
        """Refuse training pairs of which nothing can be learned, and a validation that can't choose an epoch."""
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
        if name == "validation" and self.options.goal == "ranking" and not pairs.has_positive.any():
            raise InputError(
                f"{pairs.source}: no question of the validation pairs has a positive, so no epoch would be better"
                " than another; give a data.validation_file whose questions have one, or a larger"
                " data.validation_split"
            )

    @override
    def open_split(self, parts: Mapping[str, Any]) -> MatchingSplit:
        return MatchingSplit.open(self.cache, parts)

    def split_of(self, pairs: Pairs) -> MatchingSplit:
        """A split in memory, for pairs that come now (prediction)."""
        first = self.tokenise_now(pairs.first, self.options.first_length)
        return MatchingSplit(pairs, first, self.tokenise_now(pairs.second, self.options.second_length))

    @override
    def texts_of(self, split: MatchingSplit) -> list[tuple[TokenStore, int]]:
        options = self.options
        return [(split.first_tokens, options.first_length), (split.second_tokens, options.second_length)]

    @override
    def text_lengths(self) -> dict[str, int]:
        return {name: self.options[name] for name in ("first_length", "second_length")}

    @override
    def describe_split(self, name: str, split: MatchingSplit) -> Iterator[Message]:
        pairs = split.pairs
        if self.options.goal == "ranking":
            single = int((np.diff(pairs.lists[1]) == 1).sum())
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
                    " P@1 and AUC are left out",
                )
            if empty := int(split.empty_questions.sum()):
                rows, offsets = pairs.lists
                row = rows[offsets[int(split.empty_questions.argmax())]]
                question = pairs.first.texts[int(pairs.first_row[row])]
                yield (
                    logging.WARNING,
                    f"{pairs.source}: no candidate of {empty} questions has a word (the first is {question!r});"
                    " training leaves them out, and to rank them is to guess",
                )
        for side, (tokens, length) in zip(("first", "second"), self.texts_of(split), strict=True):
            if cut := int((np.diff(tokens.offsets) > length - self.special_tokens).sum()):
                yield (
                    logging.INFO,
                    f"{pairs.source}: {cut} of {len(tokens)} distinct {side} texts are cut to"
                    f" data.{side}_length={length} words",
                )

    # --- what a checkpoint needs ---

    @override
    def learn(self, train: MatchingSplit, vocabulary: Vocabulary) -> dict[str, Any]:
        # In how many of the distinct training texts each word of the vocabulary occurs.
        frequency = np.zeros(len(vocabulary), np.int64)
        stores = [train.first_tokens, train.second_tokens]
        for store in stores:
            texts, _ = count_tokens(store.tokens, store.offsets, len(store.lexicon))
            np.add.at(frequency, vocabulary.lookup(store.lexicon), texts)
        frequency[vocabulary.unk_id] = 0
        return {"num_texts": sum(map(len, stores)), "document_frequency": frequency.tolist()}

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: Mapping[str, Any]) -> MatchingSpec:
        return MatchingSpec(
            num_words=len(vocabulary),
            num_chars=len(vocabulary.characters or ()),
            goal=self.options.goal,
            first_length=self.options.first_length,
            second_length=self.options.second_length,
            unknown=vocabulary.unk_id,
            special=(*vocabulary.prefix, *vocabulary.suffix),
        )

    @property
    def idf(self) -> NDArray[np.float32]:
        """float32 [num_words]: ln((n + 1) / (d + 1)) for a word that d of the n distinct training texts have.

        So a word of every text has 0, and one of none, such as the unknown word, ln(n + 1). Padding and the
        special tokens that a `transformers` tokenizer puts around each text have 0.
        """
        vocabulary = self.vocabulary
        frequency = np.array(self._facts["document_frequency"], np.int64)
        idf: NDArray[np.float32] = np.log((self._facts["num_texts"] + 1) / (frequency + 1)).astype(np.float32)
        idf[[vocabulary.pad_id, *vocabulary.prefix, *vocabulary.suffix]] = 0
        return idf

    # --- batches ---

    @override
    def dataset(self, split: MatchingSplit) -> MatchingDataset:
        # All candidates of a question together; a pair to classify alone.
        classify = self.options.goal == "classification"
        lists = Lists.single(np.arange(len(split.pairs))) if classify else Lists.of_questions(split.pairs)
        return MatchingDataset(self, split, lists, self.idf)

    @override
    def training_dataset(self, split: MatchingSplit) -> MatchingDataset:
        return MatchingDataset(self, split, self._training_lists(split), self.idf)

    def _training_lists(self, split: MatchingSplit) -> Lists:
        options = self.options
        return Lists.to_train_on(split, self.batches, options.negatives, options.num_negatives, self.seed)
