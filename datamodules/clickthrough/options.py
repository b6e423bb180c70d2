"""Options of data of queries and documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.corpora.records import Column
from datamodules.options import DataOptions, MemoryOptions, VectorOptions, check_least
from datamodules.text.tokenization import WordTokenizer

#: A file, or several that are joined.
Files: TypeAlias = str | list[str] | None
#: Sources of negatives.
NegativesFrom: TypeAlias = Literal["random", "in_batch", "retrieved"]


@dataclass(frozen=True, kw_only=True)
class ClickthroughOptions(MemoryOptions, VectorOptions, DataOptions):
    """Options of `ClickthroughDataModule`.

    Attributes:
        corpus_file: the documents that are ranked: .jsonl or .parquet with `id` (or `_id`) and a text, or .tsv with id
            and text and no header.
        train_queries: the queries to train on, in the same formats; one file or several.
        train_judgements: lines `query 0 document grade` (TREC) or `query document grade` (BEIR, TSV), or a .jsonl or
            .parquet table.
        validation_queries: the queries for validation; None = the training queries' file.
        validation_judgements: None = a share of the training queries is split off (`validation_split`).
        test_queries: the queries for the test.
        test_judgements: the judgements for the test.
        query_column: name or number of a query's text; None = `text`, or the second column of a .tsv.
        document_column: name or number of a document's text, or several columns, which are joined; None = as for
            queries.
        negatives: documents that a relevant one competes with: `random` ones, other examples' (`in_batch`), `retrieved`
            ones that the retriever ranks high, or several of these; never documents that are known to be relevant.
        num_negatives: n, documents that are drawn for an example; half each of random and retrieved ones.
        positives_per_query: maximum number of examples of a query in an epoch, drawn with weight 2^grade - 1.
        num_hits: number of documents that the retriever returns, for `retrieved` negatives and for models that mix its
            scores with theirs; 0 = nothing is retrieved.
        skip_hits: exclude this number of first hits without a relevance judgement from the negatives.
        highest_hit_score: exclude hits from the negatives whose score is above this share of the score of the query's
            best relevant hit; None = no limit.
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
    num_negatives: int = 4
    positives_per_query: int = 4
    num_hits: int = 0
    skip_hits: int = 0
    highest_hit_score: float | None = None
    evaluate: Literal["collection", "judged"] = "collection"
    query_length: int = 16
    document_length: int = 32
    tokenizer: WordTokenizer = "whitespace"
    characters: bool = True
    batch_size: int = 128
    eval_batch_size: int | None = 256

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
        check_least(self, 0, "num_hits", "skip_hits")
        check_least(self, 1, "num_negatives", "positives_per_query", "query_length", "document_length")
        if not self.sources or any(source not in get_args(NegativesFrom) for source in self.sources):
            named = ", ".join(get_args(NegativesFrom))
            raise InputError(f"data.negatives={self.negatives}: use one or several of {named}")
        if "retrieved" in self.sources and self.num_hits == 0:
            raise InputError("data.negatives=retrieved: set data.num_hits to the number of hits to draw from")
        if self.highest_hit_score is not None and not self.highest_hit_score > 0:
            raise InputError(f"data.highest_hit_score={self.highest_hit_score}: must be above 0")

    @override
    def idle_options(self) -> Iterator[tuple[str, str]]:
        yield from super().idle_options()
        if set(self.sources) == {"in_batch"} and self.is_set("num_negatives"):
            yield "num_negatives", "none is drawn with data.negatives=in_batch"
        for name in ("skip_hits", "highest_hit_score"):
            if "retrieved" not in self.sources and self.is_set(name):
                yield name, "no hit is a negative without data.negatives=retrieved"

    @property
    def sources(self) -> list[NegativesFrom]:
        """The sources of negatives."""
        return [self.negatives] if isinstance(self.negatives, str) else self.negatives
