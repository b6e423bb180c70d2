"""Queries with the documents that were clicked or judged for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, ClickSpec
from datamodules.clickthrough.dataset import (
    ClickDataset,
    ClickSplit,
    Negatives,
    NegativesFrom,
    RankingDataset,
    document_hits,
    hard_pool,
    relevant_documents,
)
from datamodules.core.errors import InputError, excerpt
from datamodules.core.storage import Part, prepared_folder
from datamodules.core.types import Count, Message, PlainDict, Size
from datamodules.corpora.judgements import Judgements, read_judgements
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.corpora.table import id_column_of, read_identified
from datamodules.dataset import Side
from datamodules.duplicates import DuplicateMarks
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import DataOptions, MemoryOptions, VectorOptions
from datamodules.retrieval import FolderMemory, Memory, Retriever, build_neighbors
from datamodules.retrieval.folding import fold_hashes
from datamodules.text.tokenization import WordTokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.trigrams import distinct_trigrams
from datamodules.text.vocabulary import Vocabulary

#: A file, or several that are joined.
Files: TypeAlias = str | list[str] | None


@dataclass(frozen=True, kw_only=True)
class ClickthroughOptions(MemoryOptions, VectorOptions, DataOptions):
    """Options of `ClickthroughDataModule`.

    Attributes:
        corpus_file: the documents: .jsonl or .parquet with `id` (or `_id`) and text, or .tsv of both, without a header.
        train_queries: the queries to train on, in the same formats; one file or several.
        train_judgements: lines `query 0 document grade` (TREC), `query document grade` (BEIR, TSV), .jsonl or .parquet.
        validation_queries: the queries for validation; None = the training queries' file.
        validation_judgements: None = a share of the training queries is split off (`validation_split`).
        test_queries: the queries for the test.
        test_judgements: the judgements for the test.
        query_column: name or number of a query's text; None = `text`, or the second column of a .tsv.
        document_column: name or number of a document's text, or several, which are joined; None = as for queries.
        negatives: documents that a relevant one competes with: `random` ones, other examples' (`in_batch`), `retrieved`
            ones that the retriever ranks high, or several of these; never documents that are known to be relevant.
        num_negatives: n, documents that are drawn for an example; half each of random and retrieved ones.
        positives_per_query: maximum number of examples of a query in an epoch, drawn with weight 2^grade - 1.
        num_hits: number of documents that the retriever returns, for `retrieved` negatives and for models that mix its
            scores with theirs; 0 = nothing is retrieved.
        skip_hits: exclude this number of first hits without a relevance judgement from the negatives.
        evaluate: rank the whole `collection` for each query, or its `judged` documents.
        query_length: number of words kept of a query.
        document_length: number of words kept of a document.
        tokenizer: `whitespace` or `words`; the published models split texts at white space.
        eval_batch_size: queries in an evaluation batch, and documents in a block.
    """

    corpus_file: str | None = None
    train_queries: Files = None
    train_judgements: str | None = None
    validation_queries: Files = None
    validation_judgements: str | None = None
    test_queries: Files = None
    test_judgements: str | None = None
    query_column: Column | None = None
    document_column: Column | list[Column] | None = None
    negatives: NegativesFrom | list[NegativesFrom] = "in_batch"
    num_negatives: Size = 4
    positives_per_query: Size = 4
    num_hits: Count = 0
    skip_hits: Count = 0
    evaluate: Literal["collection", "judged"] = "collection"
    query_length: Size = 16
    document_length: Size = 32
    tokenizer: WordTokenizer = "whitespace"
    characters: bool = True
    batch_size: int = 128
    eval_batch_size: Size | None = 256

    files: ClassVar[tuple[str, ...]] = (
        "corpus_file",
        "train_queries",
        "train_judgements",
        "validation_queries",
        "validation_judgements",
        "test_queries",
        "test_judgements",
        "memory",
        "word_vectors",
    )
    test_files: ClassVar[tuple[str, ...]] = ("test_queries", "test_judgements", "corpus_file")
    table_option: ClassVar[str] = "{split}_judgements"
    max_characters: ClassVar[int] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources or any(source not in get_args(NegativesFrom) for source in self.sources):
            named = ", ".join(get_args(NegativesFrom))
            raise InputError(f"data.negatives={self.negatives}: use one or several of {named}")
        if "retrieved" in self.sources and self.num_hits == 0:
            raise InputError("data.negatives=retrieved: set data.num_hits to the number of hits to draw from")

    @override
    def idle_options(self) -> Iterator[tuple[str, str]]:
        yield from super().idle_options()
        if set(self.sources) == {"in_batch"} and self.num_negatives != type(self).num_negatives:
            yield "num_negatives", "none is drawn with data.negatives=in_batch"
        if "retrieved" not in self.sources and self.skip_hits:
            yield "skip_hits", "no hit is a negative without data.negatives=retrieved"

    @property
    def sources(self) -> list[NegativesFrom]:
        """The sources of negatives."""
        return [self.negatives] if isinstance(self.negatives, str) else self.negatives


class ClickthroughDataModule(DataModule[ClickthroughOptions, Judgements, ClickSplit]):
    """Queries, and documents that were clicked or judged to answer them, which a model ranks.

    Args:
        retriever: back end and ranking: EmbeddedRetriever, ElasticsearchRetriever, DenseRetriever, ...

    Example:
        >>> data = ClickthroughDataModule(
        ...     corpus_file="corpus.jsonl", train_queries="queries.jsonl", train_judgements="qrels/train.tsv"
        ... )
    """

    options_type = ClickthroughOptions
    spec_type = ClickSpec
    split_type = ClickSplit
    monitor = "val/ndcg@10"
    length_options: ClassVar = {"query_tokens": "query_length", "document_tokens": "document_length"}
    any_ranking = True

    def __init__(self, retriever: Retriever = DEFAULT_RETRIEVER, **options: Any) -> None:
        super().__init__(ClickthroughOptions(**options), retriever)

    @override
    def read_splits(self, names: Sequence[str]) -> dict[str, Judgements]:
        documents, tables = self._read_documents(), {}
        for name in names:
            judgements, files = self.options.file_of(name), getattr(self.options, f"{name}_queries")
            if files is None and name == "validation":
                files = self.options.train_queries
            if files is None:
                raise InputError(f"data.{name}_queries: name a file")
            queries = read_identified(files, self.options.query_column)
            tables[name] = read_judgements(judgements, queries, documents)
        return tables

    def _read_documents(self) -> Rows:
        """Read the documents that are to be ranked: the corpus, or those of a trained model."""
        if self.options.corpus_file is not None:
            return read_identified(self.options.corpus_file, self.options.document_column)
        if self.memory is None or self.memory.pointer is None:
            raise InputError("data.corpus_file: name the documents that are to be ranked")
        return self.collection()

    @override
    def strata(self, table: Judgements) -> list[str]:
        # Queries with a relevant document are distributed evenly: only these count.
        return ["with a relevant document" if relevant else "without" for relevant in table.has_relevant]

    @override
    def duplicate_keys(self, table: Judgements) -> NDArray[np.uint64]:
        return fold_hashes(table.queries.texts)

    @property
    @override
    def retrieves(self) -> bool:
        return self.options.num_hits > 0

    @property
    @override
    def uses_retriever(self) -> bool:
        return self.retrieves

    @property
    @override
    def memory_needs_training(self) -> bool:
        return False  # it is made of the corpus

    @override
    def own_memory(self, tables: Mapping[str, Judgements]) -> Rows | None:
        return next((table.documents for table in tables.values()), None)

    @override
    def memory_columns(self) -> PlainDict:
        options = self.options
        named = (options.memory_text_column, options.document_column, "text")
        text_column = next(name for name in named if name is not None)
        columns: PlainDict = {"text_column": text_column, "label_column": None}
        # Hits are documents of the collection by their ids.
        return columns if options.memory is None else {**columns, "id_column": id_column_of(options.memory)}

    def collection(self, memory: Memory | None = None) -> Rows:
        """The documents that predictions rank: the corpus of the training, or the rows of a memory."""
        memory = memory or self.open_memory()
        if not isinstance(memory, FolderMemory):
            raise InputError("the texts of your own index are not available here; name a memory folder")
        return memory.rows

    @override
    def prepare_split(
        self, name: str, table: Judgements, seen: NDArray[np.uint64] | None, memory: Memory | None
    ) -> dict[str, Part]:
        query_length, document_length = self.lengths
        parts: dict[str, Part] = {
            "judgements": prepared_folder(self.cache, "judgements", table.fingerprint, table.save),
            "documents": prepare_rows(table.documents, self.cache),
            "query_tokens": self.words.tokenize(table.queries, query_length).part,
            "document_tokens": self.words.tokenize(table.documents, document_length).part,
        }
        if memory is not None:
            parts["hits"] = build_neighbors(table.queries, memory, self.options.num_hits, False, self.cache)
        if name != "train":
            # A collection of documents reveals no judgement.
            parts["duplicates"] = DuplicateMarks.of(self.duplicate_keys(table), seen).prepare(self.cache)
        return parts

    def split_of(
        self,
        queries: Rows,
        documents: Rows,
        document_tokens: TokenStore | None = None,
        memory: Memory | None = None,
    ) -> ClickSplit:
        """A split in memory, for prediction; without a memory, nothing is retrieved."""
        query_length, document_length = self.lengths
        if document_tokens is None:
            document_tokens = self.words.tokenize_now(documents, document_length)
        query_tokens = self.words.tokenize_now(queries, query_length)
        hits = None
        if memory is not None:
            hits = document_hits(memory.search(queries.texts[:], self.options.num_hits), documents)
        return ClickSplit(Judgements.unjudged(queries, documents), query_tokens, document_tokens, hits)

    @override
    def describe_split(self, name: str, split: ClickSplit) -> Iterator[Message]:
        table = split.judgements
        number = len(table.queries)
        if name != "test" and not table.has_relevant.any():
            raise InputError(f"{table.source}: no document has a grade above 0; name other judgements")
        yield logging.INFO, f"{len(table)} judgements of {number} queries; {len(table.documents)} documents"
        if without := int((~table.has_relevant).sum()):
            yield logging.INFO, f"{without} of {number} queries have no relevant document; they are skipped"
        if empty := int(split.empty_queries.sum()):
            first = table.queries.texts[int(split.empty_queries.argmax())]
            yield (
                logging.WARNING,
                f"{empty} of {number} queries have no word (the first is {excerpt(first)!r}); training skips them, and"
                " all documents are equally good for them",
            )
        if name == "train":
            yield from self._describe_negatives(split)
        elif split.hits is not None and (without := int((split.hits.rows < 0).all(axis=1).sum())):
            yield logging.INFO, f"the retriever finds no document for {without} of {number} queries"

    def _describe_negatives(self, split: ClickSplit) -> Iterator[Message]:
        source, number = split.judgements.source, len(split.judgements.queries)
        negatives = self._negatives(split)
        relevant = negatives.relevant
        all_relevant = int((relevant.own.counts >= len(np.unique(relevant.codes))).sum())
        if all_relevant == number:
            raise InputError(f"{source}: every document answers every query; give other documents")
        if all_relevant:
            yield logging.WARNING, f"every document answers {all_relevant} of {number} queries: no negatives"
        if negatives.pool is None:
            return
        empty = int((negatives.pool.counts == 0).sum())
        if empty == number:
            raise InputError(f"{source}: no retrieved negatives; raise data.num_hits or lower data.skip_hits")
        if empty:
            message = f"{empty} of {number} queries have no retrieved negatives; they get random ones"
            yield logging.WARNING, message

    def _negatives(self, split: ClickSplit) -> Negatives:
        options, relevant = self.options, relevant_documents(split.judgements)
        pool = None
        if "retrieved" in options.sources and split.hits is not None:
            pool = hard_pool(split.hits, relevant, options.skip_hits)
        return Negatives(relevant, options.sources, options.num_negatives, self.seed, pool)

    @override
    def learn(self, train: ClickSplit, vocabulary: Vocabulary, memory: Memory | None) -> PlainDict:
        if not self.options.characters:
            return {"trigrams": []}
        words = sorted({word for tokens, _ in self.texts_of(train) for word in tokens.lexicon})
        char = vocabulary.char_table(words, self.options.max_characters).astype(np.int64)
        return {"trigrams": distinct_trigrams(torch.from_numpy(char), len(vocabulary.characters or ()))}

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: PlainDict) -> ClickSpec:
        return ClickSpec(len(vocabulary), len(vocabulary.characters or ()), facts["trigrams"])

    @override
    def dataset(
        self, split: ClickSplit, contents: BatchContents = BatchContents(), training: bool = False
    ) -> ClickDataset | RankingDataset:
        if not training:
            return self.ranking_dataset(split, contents, self.options.evaluate == "judged")
        sides, positives = self._sides(split, contents), self.options.positives_per_query
        return ClickDataset(sides, split, positives, self._negatives(split))

    def ranking_dataset(
        self, split: ClickSplit, contents: BatchContents, only_judged: bool = False
    ) -> RankingDataset:
        """Queries for which the whole collection, or only their judged documents, are ranked."""
        return RankingDataset(self._sides(split, contents), split, only_judged)

    def _sides(self, split: ClickSplit, contents: BatchContents) -> tuple[Side, Side]:
        """The queries and the documents."""
        words, table, (query_length, document_length) = self.words.new_table(), split.judgements, self.lengths
        queries, documents = table.queries.texts, table.documents.texts
        return (
            Side(queries, words.add(split.query_tokens, query_length), contents),
            Side(documents, words.add(split.document_tokens, document_length), contents),
        )
