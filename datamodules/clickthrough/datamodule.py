"""Queries and clicked documents: what is their own beside the skeleton of `datamodules.base`.

In training, the unit is a query with a document that answers it and n documents that do not. A model is measured by
how it ranks documents for a query: the judged ones, or the whole collection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClickSpec
from datamodules.clickthrough.dataset import ClickDataset, ClickSplit, Found, RankingDataset
from datamodules.clickthrough.negatives import SOURCES, HardPool, Negatives, NegativesFrom, Relevant
from datamodules.clickthrough.tables import ClickTables
from datamodules.core.errors import InputError, excerpt
from datamodules.core.storage import is_whole, prepared_folder
from datamodules.corpora.judgements import Judgements
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.duplicates import CopyMarks, Message
from datamodules.options import check_choices, check_least
from datamodules.retrieval import FolderMemory, Memory, build_neighbors, is_memory, open_neighbors
from datamodules.sampling import LengthBucketSampler, ListSampler
from datamodules.text.tokenization import WORD_TOKENIZERS
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.trigrams import distinct_trigrams

log = logging.getLogger(__name__)

#: What is ranked for a query in validation and test.
Evaluate: TypeAlias = Literal["collection", "judged"]


class ClickthroughDataModule(ClickTables, TextDataModule[Judgements, ClickSplit]):
    """Queries, documents, and which documents were clicked, or judged to answer a query.

    Example:
        >>> data = ClickthroughDataModule(
        ...     corpus_file="corpus.jsonl", train_queries="queries.jsonl", train_judgements="qrels/train.tsv"
        ... )
    """

    spec_type = ClickSpec
    monitor = "val/ndcg@10"
    files = (
        "corpus_file",
        *(f"{name}_{what}" for name in ("train", "validation", "test") for what in ("queries", "judgements")),
        "memory",
        "word_vectors",
    )
    test_files = ("test_queries", "test_judgements", "corpus_file")
    fact_names = ("trigrams",)
    any_ranking = True

    def __init__(
        self,
        *,
        negatives: NegativesFrom | list[NegativesFrom] = "in_batch",
        num_negatives: int = 4,
        positives_per_query: int = 4,
        num_hits: int = 0,
        skip_hits: int = 0,
        highest_hit_score: float | None = None,
        evaluate: Evaluate = "collection",
        query_length: int = 16,
        document_length: int = 32,
        tokenizer: str = "whitespace",
        characters: bool = True,
        max_characters: int = 32,
        batch_size: int = 128,
        eval_batch_size: int | None = 256,
        **shared: Any,
    ) -> None:
        """Describe the data; nothing is read yet.

        Args:
            negatives: which documents a relevant one competes with: `random` ones of the collection; those `in_batch`,
                other examples' documents; `retrieved` ones, which the retriever ranks high for the query; or several
                of these. What is known to answer the query, and copies of it, is left out.
            num_negatives: n, documents that are drawn for an example; of random and retrieved ones half each.
            positives_per_query: examples of a query in an epoch at most; another choice in every epoch, documents of
                grade g with weight 2^g - 1.
            num_hits: documents that the retriever is asked for, for `retrieved` negatives and for models that mix its
                scores with theirs. 0 = it is not asked.
            skip_hits: of the hits that nobody judged relevant, leave out the first so many as negatives.
            highest_hit_score: as negatives, leave out hits whose score is above this share of that of the query's best
                relevant hit. None = no limit.
            evaluate: rank the whole `collection` for each query, or its `judged` documents.
            query_length: words kept of a query.
            document_length: words kept of a document.
            tokenizer: see `WordPart`; the published models cut texts at white space.
            characters: give the model the letters of words.
            max_characters: letters kept of a word.
            batch_size: examples a training batch of one device.
            eval_batch_size: queries a batch otherwise, and documents a block.
            **shared: options of `ClickTables` and `TextDataModule`: files, retriever, words, batches.
        """
        super().__init__(
            tokenizer=tokenizer,
            characters=characters,
            max_characters=max_characters,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            **shared,
        )
        least = {"num_hits": 0, "skip_hits": 0} | dict.fromkeys(
            ("num_negatives", "positives_per_query", "query_length", "document_length"), 1
        )
        check_least(self.options, least)
        check_choices(self.options, {"evaluate": ("collection", "judged"), "tokenizer": WORD_TOKENIZERS})
        self.sources: list[NegativesFrom] = [negatives] if isinstance(negatives, str) else list(negatives)
        if not self.sources or any(source not in SOURCES for source in self.sources):
            raise InputError(f"data.negatives={negatives}: use one or several of {', '.join(SOURCES)}")
        if "retrieved" in self.sources and num_hits == 0:
            raise InputError("data.negatives=retrieved: say how many hits to draw from with data.num_hits")
        if highest_hit_score is not None and not highest_hit_score > 0:
            raise InputError(f"data.highest_hit_score={highest_hit_score}: must be above 0")
        self._negatives: Negatives | None = None

    # --- tables ---

    @property
    @override
    def has_training_table(self) -> bool:
        return self.options.train_judgements is not None

    @property
    @override
    def has_validation_table(self) -> bool:
        return self.options.validation_judgements is not None

    @property
    @override
    def has_test_table(self) -> bool:
        return self.options.test_judgements is not None

    @override
    def wanted_splits(self) -> list[str]:
        # What is retrieved is in the corpus: no training query is needed for it.
        function = self.trainer.state.fn if self.trainer is not None else None
        if function == TrainerFn.VALIDATING and self.has_validation_table:
            return ["validation"]
        return super().wanted_splits()

    @classmethod
    @override
    def options_after_training(
        cls, state: Mapping[str, Any], command: str, given: Mapping[str, str]
    ) -> dict[str, Any]:
        options = {**state["options"], "retriever": state["retriever"]}
        return {**options, "test_queries": None, "test_judgements": None} if command == "test" else options

    # --- memory: the collection ---

    @property
    @override
    def has_memory(self) -> bool:
        return True

    @property
    @override
    def retrieves(self) -> bool:
        return bool(self.options.num_hits > 0)

    @override
    def own_memory(self, tables: Mapping[str, Judgements]) -> Rows | None:
        return self.documents

    @override
    def memory_columns(self) -> dict[str, Any]:
        return {"text_column": self.options.document_column or "text", "label_column": None}

    @override
    def close_memory(self) -> None:
        super().close_memory()
        self._documents = None  # from here on, it is mapped

    # --- splits ---

    @override
    def text_lengths(self) -> dict[str, int]:
        return {name: self.options[name] for name in ("query_length", "document_length")}

    @override
    def prepare_split(self, name: str, table: Judgements) -> ClickSplit:
        queries = self.tokenise(table.queries, self.options.query_length)
        documents = self.tokenise(table.documents, self.options.document_length)
        parts = {
            "source": table.source,
            "judgements": prepared_folder(self.cache, "judgements", table.fingerprint, table.save),
            "documents": prepare_rows(table.documents, self.cache),
            "query_tokens": queries.part,
            "document_tokens": documents.part,
        }
        found = copies = None
        if self.retrieves:
            folder, mark = build_neighbors(
                table.queries, self.opened_memory, self.options.num_hits, False, self.cache
            )
            found, parts["found"] = (
                Found.of(open_neighbors(folder, mark), table.documents),
                (folder.name, mark),
            )
        if name != "train":
            # A collection of documents gives away no judgement.
            copies = self.mark(self.copy_keys(table))
            parts["copies"] = self.prepare_marks(copies)
        split = ClickSplit(table, queries, documents, found, (self.cache, parts), copies)
        self._check(name, split)
        return split

    def _check(self, name: str, split: ClickSplit) -> None:
        """Refuse queries of which nothing can be learned, and a validation that can't choose an epoch."""
        table = split.judgements
        if name in ("train", "validation") and not table.has_relevant.any():
            raise InputError(
                f"{table.source}: no query has a document with a grade above 0; name other judgements"
            )
        if name == "train":
            negatives = self._new_negatives(split)
            if negatives.relevant.answers_all.all():
                raise InputError(
                    f"{table.source}: every document answers every query, so no negatives are left; give a corpus with"
                    " other documents"
                )
            if negatives.pool is not None and not negatives.pool.sizes.any():
                raise InputError(
                    f"{table.source}: no retrieved negatives are left for any query; raise data.num_hits or"
                    " data.highest_hit_score, or lower data.skip_hits"
                )

    @override
    def open_split(self, parts: Mapping[str, Any]) -> ClickSplit:
        return ClickSplit.open(self.cache, parts)

    def split_of(
        self,
        queries: Rows,
        documents: Rows,
        document_tokens: TokenStore | None = None,
        memory: Memory | None = None,
    ) -> ClickSplit:
        """A split in memory, for queries that come now (prediction).

        Args:
            queries: the queries.
            documents: the collection.
            document_tokens: its tokens, if they are known.
            memory: where the retriever finds documents; None = it is not asked.
        """
        if document_tokens is None:
            document_tokens = self.tokenise_now(documents, self.options.document_length)
        query_tokens = self.tokenise_now(queries, self.options.query_length)
        found = None
        if memory is not None:
            hits = memory.search(queries.texts[:], self.options.num_hits)
            found = Found.of(hits, documents)
        return ClickSplit(Judgements.unjudged(queries, documents), query_tokens, document_tokens, found)

    def collection(self, memory: Memory | None = None) -> Rows:
        """The documents that predictions rank: the corpus of the training, or the rows of a memory.

        Raises:
            InputError: the corpus is gone.
        """
        if memory is None and self.memory_rows is None and is_memory(self.memory_location):
            memory = self.open_memory()  # of a model that was exported, or whose memory has grown
        if memory is not None:
            if not isinstance(memory, FolderMemory):
                raise InputError(
                    "an index of your own: its texts are not ours; name a memory folder, or none"
                )
            return memory.rows
        if self.memory_rows is not None and is_whole(Path(self.memory_rows[0]), self.memory_rows[1]):
            return Rows.load(Path(self.memory_rows[0]) / "rows.arrow")
        return self.documents

    @override
    def copies_of(self, split: ClickSplit) -> CopyMarks | None:
        return split.copies

    @override
    def texts_of(self, split: ClickSplit) -> list[tuple[TokenStore, int]]:
        options = self.options
        return [(split.query_tokens, options.query_length), (split.document_tokens, options.document_length)]

    @override
    def describe_split(self, name: str, split: ClickSplit) -> Iterator[Message]:
        table, options = split.judgements, self.options
        number = len(table.queries)
        yield (
            logging.INFO,
            f"{table.source}: {len(table)} judgements of {number} queries; {len(table.documents)} documents",
        )
        if without := int((~table.has_relevant).sum()):
            yield (
                logging.INFO,
                f"{table.source}: {without} of {number} queries have no relevant document; they are left out",
            )
        if empty := int(split.empty_queries.sum()):
            first = table.queries.texts[int(split.empty_queries.argmax())]
            yield (
                logging.WARNING,
                f"{table.source}: {empty} of {number} queries have no word (the first is {excerpt(first)!r}); training"
                " leaves them out, and all documents are equally good for them",
            )
        if name == "train":
            yield from self._describe_negatives(split)
        for side, (tokens, length) in zip(("query", "document"), self.texts_of(split), strict=True):
            if cut := int((np.diff(tokens.offsets) > length).sum()):
                yield (
                    logging.INFO,
                    f"{table.source}: {cut} of {len(tokens)} texts are cut to data.{side}_length={length} words",
                )
        if options.num_hits and name != "train" and (split.found is not None):
            none = int((split.found.document < 0).all(axis=1).sum())
            if none:
                yield (
                    logging.INFO,
                    f"{table.source}: the retriever finds nothing for {none} of {number} queries",
                )

    def _describe_negatives(self, split: ClickSplit) -> Iterator[Message]:
        source, number = split.judgements.source, len(split.judgements.queries)
        negatives = self._new_negatives(split)
        if everything := int(negatives.relevant.answers_all.sum()):
            yield (
                logging.WARNING,
                f"{source}: every document answers {everything} of {number} queries, which have no negatives",
            )
        if negatives.pool is not None and (none := int((negatives.pool.sizes == 0).sum())):
            yield (
                logging.WARNING,
                f"{source}: no retrieved negatives are left for {none} of {number} queries; they get random ones",
            )

    # --- negatives ---

    def _new_negatives(self, split: ClickSplit) -> Negatives:
        options, relevant = self.options, Relevant.of(split.judgements)
        pool = None
        if "retrieved" in self.sources:
            assert split.found is not None
            pool = HardPool.of(*split.found, relevant, options.skip_hits, options.highest_hit_score)
        return Negatives(relevant, self.sources, options.num_negatives, self.seed, pool)

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self._negatives = None  # of the queries that were open before

    @property
    def negatives(self) -> Negatives:
        """What the training data draws from; after `setup`."""
        if self._negatives is None:
            self._negatives = self._new_negatives(self.split("train"))
        return self._negatives

    def set_negatives(self, documents: NDArray[np.int64], scores: NDArray[np.float32] | None = None) -> None:
        """Draw `retrieved` negatives from other documents from now on: of a model that is being trained.

        Documents that answer a query are left out, and `skip_hits` and `highest_hit_score` hold for these as well.
        Workers of a loader have their own copy: make the loader anew (`reload_dataloaders_every_n_epochs`), or train
        with `num_workers=0`.

        Args:
            documents: [Q, K] rows of the collection for each training query, best first, -1 where there are fewer.
            scores: [Q, K] their scores, if `highest_hit_score` is to be used.
        """
        options, negatives = self.options, self.negatives
        negatives.pool = HardPool.of(
            documents, scores, negatives.relevant, options.skip_hits, options.highest_hit_score
        )

    # --- what a checkpoint needs ---

    @override
    def learn(self, train: ClickSplit, vocabulary: Vocabulary) -> dict[str, Any]:
        if not self.options.characters:
            return {"trigrams": []}
        words = sorted({word for tokens, _ in self.texts_of(train) for word in tokens.lexicon})
        char = vocabulary.char_table(words, self.options.max_characters).astype(np.int64)
        return {"trigrams": distinct_trigrams(torch.from_numpy(char), len(vocabulary.characters or ()))}

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: Mapping[str, Any]) -> ClickSpec:
        characters = vocabulary.characters or ()
        return ClickSpec(len(vocabulary), len(characters), facts["trigrams"])

    # --- batches ---

    @override
    def dataset(self, split: ClickSplit) -> RankingDataset:
        return RankingDataset(self, split, self.options.evaluate == "judged")

    @override
    def training_dataset(self, split: ClickSplit) -> ClickDataset:
        return ClickDataset(self, split, self.options.positives_per_query, self.negatives)

    @override
    def new_sampler(self, dataset: Any, training: bool, **options: Any) -> LengthBucketSampler:
        # Positives are drawn anew in every epoch, queries to rank are what they are.
        kind = ListSampler if training else LengthBucketSampler
        return kind(dataset.lengths, training=training, **options)
