"""Queries with the documents that were clicked or judged for them.

In training, the unit is a query with a document that answers it and n documents that do not. A model is measured by its
ranking of documents for a query: the judged ones, or the whole collection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, ClickSpec
from datamodules.clickthrough.dataset import (
    ClickDataset,
    ClickSplit,
    ClickTexts,
    DocumentHits,
    RankingDataset,
)
from datamodules.clickthrough.negatives import SOURCES, HardPool, Negatives, NegativesFrom, Relevant
from datamodules.clickthrough.tables import CollectionOptions, CollectionTables, duplicate_keys
from datamodules.core.errors import InputError, excerpt
from datamodules.core.storage import Part, is_whole, prepared_folder
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.judgements import Judgements
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.duplicates import DuplicateMarks
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import MemoryOptions, VectorOptions, check_choice, check_least
from datamodules.prepared import Origin
from datamodules.retrieval import (
    FolderMemory,
    Memory,
    Retriever,
    build_neighbors,
    is_memory,
    open_neighbors,
)
from datamodules.text.tokenization import WORD_TOKENIZERS
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.trigrams import distinct_trigrams

#: Documents that validation and test rank for a query.
Evaluate: TypeAlias = Literal["collection", "judged"]


@dataclass(frozen=True, kw_only=True)
class ClickthroughOptions(MemoryOptions, VectorOptions, CollectionOptions):
    """Options of `ClickthroughDataModule`.

    Attributes:
        negatives: documents that a relevant one competes with: `random` ones of the collection; those `in_batch`, other
            examples' documents; `retrieved` ones, which the retriever ranks high for the query; or several of these.
            Documents that are known to answer the query, and their duplicates, are excluded.
        num_negatives: n, documents that are drawn for an example; half each of random and retrieved ones.
        positives_per_query: maximum number of examples of a query in an epoch; another choice in every epoch, documents
            of grade g with weight 2^g - 1.
        num_hits: number of documents that the retriever returns, for `retrieved` negatives and for models that mix its
            scores with theirs. 0 = nothing is retrieved.
        skip_hits: exclude this number of first hits without a relevance judgement from the negatives.
        highest_hit_score: exclude hits from the negatives whose score is above this share of the score of the query's
            best relevant hit. None = no limit.
        evaluate: rank the whole `collection` for each query, or its `judged` documents.
        query_length: number of words kept of a query.
        document_length: number of words kept of a document.
        tokenizer: `whitespace` or `words`; the published models split texts at white space.
        characters: pass the letters of words to the model.
        max_characters: number of letters kept per word.
        batch_size: examples in a training batch of one device.
        eval_batch_size: queries in an evaluation batch, and documents in a block.
    """

    negatives: NegativesFrom | list[NegativesFrom] = "in_batch"
    num_negatives: int = 4
    positives_per_query: int = 4
    num_hits: int = 0
    skip_hits: int = 0
    highest_hit_score: float | None = None
    evaluate: Evaluate = "collection"
    query_length: int = 16
    document_length: int = 32
    tokenizer: str = "whitespace"
    characters: bool = True
    max_characters: int = 32
    batch_size: int = 128
    eval_batch_size: int | None = 256

    files: ClassVar[tuple[str, ...]] = (
        "corpus_file",
        *(f"{name}_{what}" for name in ("train", "validation", "test") for what in ("queries", "judgements")),
        "memory",
        "word_vectors",
    )
    test_files: ClassVar[tuple[str, ...]] = ("test_queries", "test_judgements", "corpus_file")

    def __post_init__(self) -> None:
        CollectionOptions.__post_init__(self)
        VectorOptions.__post_init__(self)
        check_least(self, 0, "num_hits", "skip_hits")
        check_least(self, 1, "num_negatives", "positives_per_query", "query_length", "document_length")
        check_choice(self, "evaluate", ("collection", "judged"))
        check_choice(self, "tokenizer", WORD_TOKENIZERS)
        if not self.sources or any(source not in SOURCES for source in self.sources):
            raise InputError(f"data.negatives={self.negatives}: use one or several of {', '.join(SOURCES)}")
        if "retrieved" in self.sources and self.num_hits == 0:
            raise InputError(
                "data.negatives=retrieved: set the number of hits to draw from with data.num_hits"
            )
        if self.highest_hit_score is not None and not self.highest_hit_score > 0:
            raise InputError(f"data.highest_hit_score={self.highest_hit_score}: must be above 0")

    @property
    def sources(self) -> list[NegativesFrom]:
        """The sources of negatives."""
        return [self.negatives] if isinstance(self.negatives, str) else self.negatives


class ClickthroughDataModule(DataModule[ClickthroughOptions, Judgements, ClickSplit]):
    """Queries, documents, and which documents were clicked, or judged to answer a query.

    Example:
        >>> data = ClickthroughDataModule(
        ...     corpus_file="corpus.jsonl", train_queries="queries.jsonl", train_judgements="qrels/train.tsv"
        ... )
    """

    options_type = ClickthroughOptions
    spec_type = ClickSpec
    monitor = "val/ndcg@10"
    any_ranking = True

    def __init__(self, retriever: Retriever = DEFAULT_RETRIEVER, **options: Any) -> None:
        """Describe the data; nothing is read yet.

        Args:
            retriever: back end and ranking: EmbeddedRetriever, ElasticsearchRetriever, DenseRetriever, ...
            **options: fields of `ClickthroughOptions`.
        """
        checked = ClickthroughOptions(**options)
        super().__init__(checked, checked, checked, retriever)
        self.collection_tables = CollectionTables(checked, self.duplicates)
        self._negatives: Negatives | None = None

    # --- tables ---

    @property
    @override
    def tables(self) -> dict[str, str | None]:
        options = self.options
        return {
            "train": options.train_judgements,
            "validation": options.validation_judgements,
            "test": options.test_judgements,
        }

    @override
    def read_tables(self, wanted: Sequence[str]) -> dict[str, Judgements]:
        return self.collection_tables.read_tables(wanted)

    @override
    def duplicate_keys(self, table: Judgements) -> NDArray[np.uint64]:
        return duplicate_keys(table)

    # --- memory: the collection ---

    @property
    @override
    def retrieves(self) -> bool:
        return self.options.num_hits > 0

    @property
    @override
    def memory_needs_training(self) -> bool:
        return False  # it is made of the corpus

    @override
    def own_memory(self, tables: Mapping[str, Judgements]) -> Rows | None:
        return self.collection_tables.documents

    @override
    def memory_columns(self) -> PlainDict:
        return {"text_column": self.options.document_column or "text", "label_column": None}

    @override
    def release_memory(self) -> None:
        super().release_memory()
        self.collection_tables.release_documents()

    def collection(self, memory: Memory | None = None) -> Rows:
        """The documents that predictions rank: the corpus of the training, or the rows of a memory.

        Raises:
            InputError: the corpus is not there.
        """
        location = None if self.memory is None else self.memory.location
        if memory is None and location is not None and location.rows is None and is_memory(location.path):
            assert self.memory is not None
            memory = self.memory.open()  # of a model that was exported, or whose memory has grown
        if memory is not None:
            if not isinstance(memory, FolderMemory):
                raise InputError(
                    "the texts of an index of your own are not available here; name a memory folder, or none"
                )
            return memory.rows
        if (
            location is not None
            and location.rows is not None
            and is_whole(Path(location.rows[0]), location.rows[1])
        ):
            return Rows.load(Path(location.rows[0]) / "rows.arrow")
        return self.collection_tables.documents

    # --- splits ---

    @property
    def lengths(self) -> tuple[int, int]:
        """Number of words kept of a query and of a document."""
        return self.options.query_length, self.options.document_length

    @override
    def lengths_by_option(self) -> dict[str, int]:
        return dict(zip(("query_length", "document_length"), self.lengths, strict=True))

    @override
    def prepare_split(self, name: str, table: Judgements, seen: NDArray[np.uint64] | None) -> ClickSplit:
        query_length, document_length = self.lengths
        queries = self.words.tokenize(table.queries, query_length)
        documents = self.words.tokenize(table.documents, document_length)
        parts: dict[str, Part] = {
            "judgements": prepared_folder(self.cache, "judgements", table.fingerprint, table.save),
            "documents": prepare_rows(table.documents, self.cache),
            "query_tokens": queries.part,
            "document_tokens": documents.part,
        }
        hits = marks = None
        if self.memory is not None and self.retrieves:
            folder, fingerprint = build_neighbors(
                table.queries, self.memory.opened, self.options.num_hits, False, self.cache
            )
            parts["hits"] = folder.name, fingerprint
            hits = DocumentHits.of(open_neighbors(folder, fingerprint), table.documents)
        if name != "train":
            # A collection of documents reveals no judgement.
            marks = DuplicateMarks.of(self.duplicate_keys(table), seen)
            parts["duplicates"] = self.duplicates.prepare_marks(marks)
        origin = Origin(self.cache, parts, table.source)
        split = ClickSplit(table, queries, documents, hits, origin, marks)
        self._check(name, split)
        return split

    def _check(self, name: str, split: ClickSplit) -> None:
        """Refuse queries without anything to learn, and a validation that cannot select an epoch."""
        table = split.judgements
        if name in ("train", "validation") and not table.has_relevant.any():
            raise InputError(
                f"{table.source}: no query has a document with a grade above 0; name other judgements"
            )
        if name == "train":
            negatives = self._new_negatives(split)
            if negatives.relevant.answers_all.all():
                raise InputError(
                    f"{table.source}: every document answers every query, so there are no negatives; give a corpus with"
                    " other documents"
                )
            if negatives.pool is not None and not negatives.pool.sizes.any():
                raise InputError(
                    f"{table.source}: no query has a retrieved negative; raise data.num_hits or data.highest_hit_score,"
                    " or lower data.skip_hits"
                )

    @override
    def open_split(self, origin: Origin) -> ClickSplit:
        return ClickSplit.open(origin)

    def split_of(
        self,
        queries: Rows,
        documents: Rows,
        document_tokens: TokenStore | None = None,
        memory: Memory | None = None,
    ) -> ClickSplit:
        """A split in memory, for prediction.

        Args:
            queries: the queries.
            documents: the collection.
            document_tokens: its tokens, if they are known.
            memory: to retrieve documents from; None = nothing is retrieved.
        """
        query_length, document_length = self.lengths
        if document_tokens is None:
            document_tokens = self.words.tokenize_now(documents, document_length)
        query_tokens = self.words.tokenize_now(queries, query_length)
        hits = None
        if memory is not None:
            hits = DocumentHits.of(memory.search(queries.texts[:], self.options.num_hits), documents)
        return ClickSplit(Judgements.unjudged(queries, documents), query_tokens, document_tokens, hits)

    @override
    def texts_of(self, split: ClickSplit) -> list[tuple[TokenStore, int]]:
        return list(zip((split.query_tokens, split.document_tokens), self.lengths, strict=True))

    @override
    def describe_split(self, name: str, split: ClickSplit) -> Iterator[Message]:
        table = split.judgements
        number = len(table.queries)
        yield (
            logging.INFO,
            f"{table.source}: {len(table)} judgements of {number} queries; {len(table.documents)} documents",
        )
        if without := int((~table.has_relevant).sum()):
            yield (
                logging.INFO,
                f"{table.source}: {without} of {number} queries have no relevant document; they are skipped",
            )
        if empty := int(split.empty_queries.sum()):
            first = table.queries.texts[int(split.empty_queries.argmax())]
            yield (
                logging.WARNING,
                f"{table.source}: {empty} of {number} queries have no word (the first is {excerpt(first)!r}); training"
                " skips them, and all documents are equally good for them",
            )
        if name == "train":
            yield from self._describe_negatives(split)
        for side, (tokens, length) in zip(("query", "document"), self.texts_of(split), strict=True):
            if cut := int((np.diff(tokens.offsets) > length).sum()):
                yield (
                    logging.INFO,
                    f"{table.source}: {cut} of {len(tokens)} texts are cut to data.{side}_length={length} words",
                )
        if name != "train" and split.hits is not None:
            without = int((split.hits.document < 0).all(axis=1).sum())
            if without:
                yield (
                    logging.INFO,
                    f"{table.source}: the retriever finds no document for {without} of {number} queries",
                )

    def _describe_negatives(self, split: ClickSplit) -> Iterator[Message]:
        source, number = split.judgements.source, len(split.judgements.queries)
        negatives = self._new_negatives(split)
        if all_relevant := int(negatives.relevant.answers_all.sum()):
            yield (
                logging.WARNING,
                f"{source}: every document answers {all_relevant} of {number} queries, which have no negatives",
            )
        if negatives.pool is not None and (empty := int((negatives.pool.sizes == 0).sum())):
            yield (
                logging.WARNING,
                f"{source}: {empty} of {number} queries have no retrieved negatives; they get random ones",
            )

    # --- negatives ---

    def _new_negatives(self, split: ClickSplit) -> Negatives:
        options, relevant = self.options, Relevant.of(split.judgements)
        pool = None
        if "retrieved" in options.sources:
            assert split.hits is not None
            pool = HardPool.of(*split.hits, relevant, options.skip_hits, options.highest_hit_score)
        return Negatives(relevant, options.sources, options.num_negatives, self.seed, pool)

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self._negatives = None  # they belong to the queries that were open before

    @property
    def negatives(self) -> Negatives:
        """The negatives of the training data; after `setup`."""
        if self._negatives is None:
            self._negatives = self._new_negatives(self.split("train"))
        return self._negatives

    def set_negatives(self, documents: NDArray[np.int64], scores: NDArray[np.float32] | None = None) -> None:
        """Draw `retrieved` negatives from other documents from now on, such as those of a model in training.

        Documents that answer a query are excluded, and `skip_hits` and `highest_hit_score` apply. Workers of a loader
        have copies of their own: make the loader again (`reload_dataloaders_every_n_epochs`), or train with
        `num_workers=0`.

        Args:
            documents: [Q, K] rows of the collection for each training query, best first, -1 where there are fewer.
            scores: [Q, K] their scores, if `highest_hit_score` is to be used.
        """
        options, negatives = self.options, self.negatives
        negatives.pool = HardPool.of(
            documents, scores, negatives.relevant, options.skip_hits, options.highest_hit_score
        )

    # --- facts for the model ---

    @override
    def learn(self, train: ClickSplit, vocabulary: Vocabulary) -> PlainDict:
        if not self.options.characters:
            return {"trigrams": []}
        words = sorted({word for tokens, _ in self.texts_of(train) for word in tokens.lexicon})
        char = vocabulary.char_table(words, self.options.max_characters).astype(np.int64)
        return {"trigrams": distinct_trigrams(torch.from_numpy(char), len(vocabulary.characters or ()))}

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: PlainDict) -> ClickSpec:
        characters = vocabulary.characters or ()
        return ClickSpec(len(vocabulary), len(characters), facts["trigrams"])

    # --- batches ---

    @override
    def dataset(
        self, split: ClickSplit, contents: BatchContents = BatchContents(), training: bool = False
    ) -> ClickDataset | RankingDataset:
        texts = ClickTexts(self.words.table, split, self.lengths, contents)
        if training:
            return ClickDataset(texts, self.options.positives_per_query, self.negatives)
        return RankingDataset(texts, self.options.evaluate == "judged")

    def ranking_dataset(self, split: ClickSplit, contents: BatchContents) -> RankingDataset:
        """Queries for which the whole collection is ranked, whatever the option `evaluate`."""
        return RankingDataset(ClickTexts(self.words.table, split, self.lengths, contents), only_judged=False)
