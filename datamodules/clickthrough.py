"""Queries with the documents that were clicked or judged for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, ClickBatch, ClickSpec, QueryBatch, as_tensors
from datamodules.core.errors import InputError, excerpt
from datamodules.core.ragged import Ragged, offsets_of
from datamodules.core.sharing import cached_property
from datamodules.core.storage import Part, prepared_folder
from datamodules.core.types import Count, Message, PlainDict, Size
from datamodules.corpora.judgements import Judgements, read_judgements
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.corpora.table import id_column_of, read_identified
from datamodules.dataset import BatchDataset, PreparedSplit, Side, rows_and_weights
from datamodules.drawing import Matches, choose, key_of, uniform
from datamodules.duplicates import DuplicateMarks
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import SPLITS, DataOptions, MemoryOptions
from datamodules.retrieval import FolderMemory, Memory, Neighbors, Retriever, build_neighbors
from datamodules.retrieval.base import Hits
from datamodules.retrieval.folding import fold_hashes
from datamodules.text.gather import distinct_rows, gather
from datamodules.text.tokenization import WordTokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.trigrams import distinct_trigrams
from datamodules.text.vocabulary import Vocabulary

#: Sources of negatives.
NegativesFrom: TypeAlias = Literal["random", "in_batch", "retrieved"]
#: Purposes of random numbers: positives, random negatives, retrieved negatives.
POSITIVES, RANDOM, RETRIEVED = range(3)
#: A file, or several that are joined.
Files: TypeAlias = str | list[str] | None


@dataclass(frozen=True, kw_only=True)
class ClickthroughOptions(MemoryOptions, DataOptions):
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
        *(f"{split}_{kind}" for split in SPLITS for kind in ("queries", "judgements")),
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

    @property
    def sources(self) -> list[NegativesFrom]:
        """The sources of negatives."""
        return [self.negatives] if isinstance(self.negatives, str) else self.negatives


def document_hits(neighbors: Neighbors, documents: Rows) -> Hits:
    """Hits as rows of the documents; memories outside the collection are skipped."""
    row_of = documents.row_of_id()
    rows = np.array([*(row_of.get(id_, -1) for id_ in neighbors.memories.ids), -1], np.int32)
    return Hits(rows[neighbors.rows], np.asarray(neighbors.scores))


@dataclass(frozen=True)
class ClickSplit(PreparedSplit):
    """One table of judgements, ready for batches."""

    judgements: Judgements
    query_tokens: TokenStore
    document_tokens: TokenStore
    #: None where nothing was retrieved.
    neighbors: Neighbors | None = None

    @cached_property
    def hits(self) -> Hits | None:
        """The neighbors as rows of the documents; None where nothing was retrieved."""
        return None if self.neighbors is None else document_hits(self.neighbors, self.judgements.documents)

    @property
    def empty_queries(self) -> NDArray[np.bool_]:
        """bool [Q]: queries without a word: all documents are equally good for them."""
        return np.diff(self.query_tokens.offsets) == 0


def relevant_documents(judgements: Judgements) -> Matches:
    """The documents that answer each query: those with a grade above 0."""
    rows = judgements.grade > 0
    queries, documents = judgements.query[rows], judgements.document[rows]
    return Matches.of(judgements.documents.texts, len(judgements.queries), queries, documents)


def hard_pool(hits: Hits, relevant: Matches, skip: int) -> Ragged:
    """Hits that do not answer their query, for each query as rows of documents, best first.

    A document without a judgement may be relevant, the first hits above all: the first `skip` are excluded.
    """
    kept = relevant.are_foreign(hits.rows)
    kept &= kept.cumsum(axis=1) > skip
    return Ragged(hits.rows[kept].astype(np.int64), offsets_of(kept.sum(axis=1)))


class ClickDataset(BatchDataset[ClickBatch]):
    """Batches of examples: a query with a relevant document and others, drawn in every epoch."""

    is_redrawn = True

    def __init__(self, data: ClickthroughDataModule, split: ClickSplit, contents: BatchContents) -> None:
        """Choose the examples: at most `positives_per_query` of a query in an epoch."""
        self.queries, self.documents = data.sides(split, contents)
        self.options, self.seed = data.options, data.seed
        self.matches, self.pool = data.matches_and_pool(split)
        self.judgements = judgements = split.judgements
        usable = (judgements.grade > 0) & ~split.empty_queries[judgements.query]
        #: int64: numbers of the judgements that examples are made of.
        self.relevant = np.flatnonzero(usable)
        self.query = judgements.query[self.relevant].astype(np.int64)
        sizes = np.bincount(self.query, minlength=len(judgements.queries))
        self._size = int(np.minimum(sizes, self.options.positives_per_query).sum())
        self._drawn: tuple[int, NDArray[np.int64]] = (-1, self.relevant)

    def __len__(self) -> int:
        return self._size

    def examples(self, epoch: int) -> NDArray[np.int64]:
        """The judgements [n] of an epoch's examples, in order of their queries.

        A query's relevant documents are drawn without replacement, those of grade g with weight 2^g - 1 (P. Efraimidis
        and P. Spirakis, Weighted random sampling with a reservoir, 2006: the largest u^(1/weight) of uniform u).
        """
        if self._drawn[0] != epoch:
            u = uniform(key_of(self.seed, epoch, POSITIVES), self.relevant)
            weight = np.exp2(self.judgements.grade[self.relevant].astype(np.float64)) - 1
            order = np.lexsort((-np.log(u) / weight, self.query))
            starts = np.searchsorted(self.query, self.query)
            chosen = order[np.arange(len(order)) - starts < self.options.positives_per_query]
            self._drawn = epoch, self.relevant[np.sort(chosen)]
        return self._drawn[1]

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        """Number of words of each example [n]: of its query and its relevant document, as kept."""
        rows, judgements = self.examples(epoch), self.judgements
        queries = self.queries.tokens.sizes[judgements.query[rows]]
        return queries + self.documents.tokens.sizes[judgements.document[rows]]

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> ClickBatch:
        """Build a batch of one epoch: i + e n is example i of epoch e (see `LengthBucketSampler`)."""
        epoch, numbers = np.divmod(np.asarray(indices, np.int64), len(self))
        row = self.examples(int(epoch[0]))[numbers]
        query_rows = self.judgements.query[row].astype(np.int64)
        positive = self.judgements.document[row].astype(np.int64)
        negative = self._negatives(int(epoch[0]), numbers, query_rows)
        documents, position = distinct_rows(np.concatenate([positive[:, None], negative], axis=1))
        queries, query = distinct_rows(query_rows)
        word, char, texts = gather((self.queries.tokens, queries), (self.documents.tokens, documents))
        arrays = {
            "word": word,
            "char": char,
            "query_text": texts[0],
            "document_text": texts[1],
            "query": query,
            "positive": position[:, 0],
            "candidate": self._candidates(query_rows, documents, position, negative >= 0),
            "row": row,
        }
        return ClickBatch(
            **as_tensors(arrays),
            query_string=self.queries.strings(queries),
            document_string=self.documents.strings(documents),
        )

    def _negatives(
        self, epoch: int, examples: NDArray[np.int64], query: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Draw documents [B, n] that do not answer the queries [B]: half retrieved, half random, -1 = no more."""
        drawing, count = set(self.options.sources) - {"in_batch"}, self.options.num_negatives
        if not drawing:
            return np.zeros((len(examples), 0), np.int64)
        drawn = np.full((len(examples), count), -1, np.int64)
        if self.pool is not None:
            hard = count if drawing == {"retrieved"} else (count + 1) // 2
            key, start, size = key_of(self.seed, epoch, RETRIEVED), self.pool.offsets, self.pool.counts
            drawn[:, :hard] = choose(key, examples, self.pool.values, start[query], size[query], hard)
        if (drawn < 0).any():
            random = self.matches.draw(key_of(self.seed, epoch, RANDOM), examples, query, count)
            drawn = np.where(drawn < 0, random, drawn)
        return drawn

    def _candidates(
        self,
        query: NDArray[np.int64],
        documents: NDArray[np.int64],
        position: NDArray[np.int64],
        is_drawn: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """bool [B, M]: the relevant document and, of the others, those that do not answer the query."""
        if "in_batch" in self.options.sources:
            candidate = ~self.matches.holds(query[:, None], documents[None, :])
        else:
            candidate = np.zeros((len(query), len(documents)), bool)
            example, column = np.nonzero(is_drawn)
            candidate[example, position[:, 1:][example, column]] = True
        candidate[np.arange(len(query)), position[:, 0]] = True
        return candidate


class RankingDataset(BatchDataset[QueryBatch]):
    """Batches of queries, and the documents that are ranked for them."""

    def __init__(
        self, data: ClickthroughDataModule, split: ClickSplit, contents: BatchContents, only_judged: bool
    ) -> None:
        """Choose the documents: with `only_judged`, the judged ones of a query, and not the whole collection."""
        self.queries, self.texts = data.sides(split, contents)
        # Hits are numbered here, before workers are forked, which share them.
        self.split, self.hits, self.only_judged = split, split.hits, only_judged
        judgements = split.judgements
        #: int64 [D]: rows of the documents that some query needs; their positions here are the columns of scores.
        self.documents = np.arange(len(judgements.documents))
        if only_judged:
            self.documents = np.unique(judgements.document).astype(np.int64)
        self.column = np.full(len(judgements.documents) + 1, -1)
        self.column[self.documents] = np.arange(len(self.documents))

    def __len__(self) -> int:
        return len(self.split.judgements.queries)

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        return self.queries.tokens.sizes

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> QueryBatch:
        row, weight = rows_and_weights(indices)
        arrays: dict[str, NDArray[np.generic]] = {"weight": weight, "row": row, **self._judgements(row)}
        if self.split.duplicates is not None:
            arrays["is_duplicate"] = self.split.duplicates.is_duplicate[row]
        if self.hits is not None:
            arrays |= {"hit": self.column[self.hits.rows[row]], "hit_score": self.hits.scores[row]}
        return QueryBatch(self.queries.batch(row), **as_tensors(arrays))

    def _judgements(self, row: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
        judgements = self.split.judgements
        judged = judgements.lists.take(row)
        query, number = judged.list_numbers, judged.values
        column = self.column[judgements.document[number]]
        fields = {"judged_query": query, "judged_document": column, "grade": judgements.grade[number]}
        if self.only_judged:
            candidate = np.zeros((len(row), len(self.documents)), bool)
            candidate[query, column] = True
            fields["candidate"] = candidate
        return fields


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
        if self.memory is None or not self.memory.is_of_model:
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
        # One file has the documents of all splits.
        documents = self.cache / prepare_rows(table.documents, self.cache)[0] / "rows.arrow"
        save = partial(table.save, documents=documents)
        parts: dict[str, Part] = {
            "judgements": prepared_folder(self.cache, "judged", table.fingerprint, save),
            "query_tokens": self.words.tokenize(table.queries, query_length).part,
            "document_tokens": self.words.tokenize(table.documents, document_length).part,
        }
        if memory is not None:
            num_hits = self.options.num_hits
            parts["neighbors"] = build_neighbors(table.queries, memory, num_hits, False, self.cache)
        if name != "train":
            # A collection of documents reveals no judgement.
            marks = DuplicateMarks.of(self.duplicate_keys(table), seen)
            parts["duplicates"] = prepared_folder(self.cache, "marks", marks.fingerprint, marks.save)
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
        neighbors = None if memory is None else memory.search(queries.texts[:], self.options.num_hits)
        nothing = np.zeros(0, np.int32)
        unjudged = Judgements(queries, documents, nothing, nothing, nothing.astype(np.float32))
        return ClickSplit(unjudged, query_tokens, document_tokens, neighbors)

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
            problem = f"{empty} of {number} queries have no word (the first is {excerpt(first)!r})"
            effect = "training skips them, and all documents are equally good for them"
            yield logging.WARNING, f"{problem}; {effect}"
        if name == "train":
            yield from self._describe_negatives(split)
        elif split.hits is not None and (without := int((split.hits.rows < 0).all(axis=1).sum())):
            yield logging.INFO, f"the retriever finds no document for {without} of {number} queries"

    def _describe_negatives(self, split: ClickSplit) -> Iterator[Message]:
        source, number = split.judgements.source, len(split.judgements.queries)
        matches, pool = self.matches_and_pool(split)
        all_relevant = int((matches.own.counts >= len(np.unique(matches.codes))).sum())
        if all_relevant == number:
            raise InputError(f"{source}: every document answers every query; give other documents")
        if all_relevant:
            yield logging.WARNING, f"every document answers {all_relevant} of {number} queries: no negatives"
        if pool is None:
            return
        empty = int((pool.counts == 0).sum())
        if empty == number:
            raise InputError(f"{source}: no retrieved negatives; raise data.num_hits or lower data.skip_hits")
        if empty:
            message = f"{empty} of {number} queries have no retrieved negatives; they get random ones"
            yield logging.WARNING, message

    def matches_and_pool(self, split: ClickSplit) -> tuple[Matches, Ragged | None]:
        """The documents that answer each query, and the `hard_pool` of `retrieved` negatives; None = none is drawn."""
        matches = relevant_documents(split.judgements)
        if "retrieved" not in self.options.sources or split.hits is None:
            return matches, None
        return matches, hard_pool(split.hits, matches, self.options.skip_hits)

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
            return RankingDataset(self, split, contents, self.options.evaluate == "judged")
        return ClickDataset(self, split, contents)

    def sides(self, split: ClickSplit, contents: BatchContents) -> tuple[Side, Side]:
        """The queries and the documents."""
        (queries, documents), table = self.words.bind(self.texts_of(split)), split.judgements
        return Side(table.queries.texts, queries, contents), Side(table.documents.texts, documents, contents)
