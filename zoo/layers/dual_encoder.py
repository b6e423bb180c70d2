"""Two encoders of short texts, one of queries and one of documents, and the cosines of their vectors; word hashing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClickBatch, TextBatch
from datamodules.text.trigrams import letter_trigrams
from zoo.layers.interactions import unit


class Tower(nn.Module, ABC):
    """An encoder of texts whose words are read letter by letter."""

    #: char [U, L] -> [U, F]: the first layer's output for each distinct word, before biases; 0 for padding.
    hashing: nn.Module
    #: d, the size of a text's vector.
    size: int

    @abstractmethod
    def forward(self, words: Tensor, text: Tensor) -> Tensor:
        """Encode texts, int64 [N, T], positions in `words` (0 = padding), float32 [U, F], from `hashing`: [N, d]."""


class DualEncoder(nn.Module):
    """Embeddings of length 1, so that their product is the cosine; a text without words has a zero vector."""

    def __init__(self, query: Tower, document: Tower, word_dropout: float = 0.0) -> None:
        """Join two towers; the same object for both = tied parameters. Words are dropped in training."""
        super().__init__()
        self.query, self.document = query, document
        self.word_dropout = word_dropout

    def encode(self, texts: TextBatch, queries: bool) -> Tensor:
        """Embed queries, or documents: float32 [N, d]."""
        tower = self.query if queries else self.document
        return self._encode(tower, tower.hashing(texts.char), texts.text)

    def forward(self, batch: ClickBatch) -> Tensor:
        """The cosine of each distinct query and each distinct document of a batch: float32 [N, M]."""
        words = of_queries = self.document.hashing(batch.char)
        if self.document is not self.query:
            # Queries have few of a batch's words, and the data puts those first.
            last = int(batch.query_text.max()) if batch.query_text.numel() else 0
            of_queries = self.query.hashing(batch.char[: last + 1])
        queries = self._encode(self.query, of_queries, batch.query_text)
        documents = self._encode(self.document, words, batch.document_text)
        with torch.autocast(queries.device.type, enabled=False):
            return queries @ documents.T

    def _encode(self, tower: Tower, words: Tensor, text: Tensor) -> Tensor:
        if self.training and self.word_dropout:
            text = without_words(text, self.word_dropout)
        return unit(tower(words, text)) * (text != 0).any(dim=1, keepdim=True)


def without_words(text: Tensor, share: float) -> Tensor:
    """Drop words of texts, int64 [N, T], with a probability; one word stays at least, and padding moves to the end."""
    draw = torch.rand(text.shape, device=text.device)
    # The word of the highest draw stays.
    stays = (draw >= share) | (draw == draw.masked_fill(text == 0, -1).amax(dim=1, keepdim=True))
    kept = (text != 0) & stays
    order = (~kept).to(torch.int8).argsort(dim=1, stable=True)
    return (text * kept).gather(1, order)


class TrigramLayer(nn.Module):
    """Word hashing: the product of a matrix and the counts of a word's letter trigrams, as a sum of the matrix's rows.

    Huang et al. 2013 (see `zoo.baselines.dssm`): `#cat#` has the trigrams #ca, cat and at#. Each distinct word of a
    batch is computed once, without the counts themselves.
    """

    known: Tensor | None

    def __init__(self, num_chars: int, trigrams: int | Sequence[int], size: int, fan_out: int) -> None:
        """Make the matrix, with a row for each trigram and `size` columns; `fan_out` scales the initial values.

        `trigrams` is the number of buckets that trigrams are hashed into, or the known trigrams, sorted numbers of
        `distinct_trigrams`; others are skipped.
        """
        super().__init__()
        rows = trigrams if isinstance(trigrams, int) else len(trigrams)
        bound = (6 / (rows + fan_out)) ** 0.5
        self.table = nn.Parameter(torch.empty(rows, size).uniform_(-bound, bound))
        self.mark = num_chars
        known = None if isinstance(trigrams, int) else torch.tensor(trigrams, dtype=torch.long)
        self.register_buffer("known", known, persistent=False)

    def forward(self, char: Tensor) -> Tensor:
        """Sum each word's rows: int64 [U, L] character ids to float32 [U, size]; zero for padding."""
        if self.known is None:
            bucket, start = letter_trigrams(char, self.mark, len(self.table))
            return functional.embedding_bag(bucket, self.table, start, mode="sum")
        trigram, start = letter_trigrams(char, self.mark)
        row = torch.searchsorted(self.known, trigram).clamp(max=len(self.known) - 1)
        counts = (self.known[row] == trigram).to(self.table.dtype)
        return functional.embedding_bag(row, self.table, start, mode="sum", per_sample_weights=counts)
