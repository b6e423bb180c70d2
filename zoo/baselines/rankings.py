"""Rankings of a collection that are fitted to its documents without judgements.

BM25 and a unigram language model score shared terms, as the retrievers compute them; PLSA and Doc2Vec score topics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import ClickBatch, QueryBatch, TextBatch
from datamodules.clickthrough import RankingDataset
from datamodules.core.errors import check_installed
from datamodules.core.ragged import offsets_of
from datamodules.core.types import PlainDict, Size
from datamodules.retrieval.base import AnalyzerName, Ranking, Similarity
from datamodules.retrieval.embedded.analysis import terms_of
from datamodules.retrieval.embedded.lucene import (
    contribution,
    factor,
    length_bytes,
    length_weights,
    term_weights,
)
from zoo.layers.interactions import unit
from zoo.tasks.fitted import Fitted
from zoo.tasks.retrieval.task import RetrievalTask

if TYPE_CHECKING:
    from gensim.models import Doc2Vec
    from scipy.sparse import csr_matrix

DocumentsT = TypeVar("DocumentsT")


class FittedRanking(Fitted, RetrievalTask, Generic[DocumentsT]):
    """Base of the models that are fitted to documents and score them for queries; both are strings."""

    reads_strings = True

    @abstractmethod
    def read(self, documents: Sequence[str]) -> DocumentsT:
        """The form of documents that `scores` reads."""

    @abstractmethod
    def scores(self, queries: Sequence[str], documents: DocumentsT) -> Tensor:
        """The scores of documents for queries: float32 [queries, documents]."""

    @override
    def forward(self, batch: ClickBatch) -> Tensor:
        """The scores of a batch's documents for its queries: float32 [N, M]."""
        assert batch.query_string is not None
        assert batch.document_string is not None
        return self.scores(batch.query_string, self.read(batch.document_string)).to(batch.query.device)

    @override
    def encode_collection(
        self, dataset: RankingDataset, block: int, process: int = 0, processes: int = 1
    ) -> Any:
        # In a list, since a tensor would be summed over the processes, each of which reads all documents.
        texts = dataset.split.judgements.documents.texts
        return [self.read([texts[int(row)] for row in dataset.documents])]

    @override
    def score(self, batch: QueryBatch, documents: Any) -> Tensor:
        assert batch.queries.string is not None
        return self.scores(batch.queries.string, documents[0]).to(batch.row.device)


def split_terms(ranking: Ranking, texts: Sequence[str]) -> list[list[str]]:
    """Split texts into the terms of a ranking."""
    return [terms_of(ranking.analyzer, text) for text in texts]


def count_collection(terms: Sequence[Sequence[str]]) -> PlainDict:
    """Count texts, terms and occurrences of a collection of texts that are split into terms, as plain values."""
    known = list(dict.fromkeys(chain.from_iterable(terms)))
    counts = count_terms(terms, known)
    return {
        "terms": known,
        "texts_with_term": torch.from_numpy(counts.getnnz(axis=0).astype(np.int64)),
        "occurrences": torch.from_numpy(np.asarray(counts.sum(axis=0)).ravel()),
        "texts": sum(map(bool, terms)),
        "tokens": sum(map(len, terms)),
    }


def contributions(
    ranking: Ranking, counts: PlainDict, texts: Sequence[Sequence[str]], terms: Sequence[str]
) -> csr_matrix:
    """The contribution of each term to the score of each text: [texts, terms], of which the first are counted."""
    from scipy.sparse import csr_matrix

    with_term, occurrences = (
        np.pad(counts[name].numpy(), (0, len(terms) - len(counts["terms"])))
        for name in ("texts_with_term", "occurrences")
    )
    size = counts["texts"], counts["tokens"]
    of_term = term_weights(ranking, *size, with_term, occurrences)
    lengths = length_bytes(np.array([len(of_text) for of_text in texts], np.int64))
    number = count_terms(texts, terms)
    of_length = length_weights(ranking, *size)[np.repeat(lengths, np.diff(number.indptr))]
    once = np.float32(1), factor(ranking)
    arguments = zip(of_term[number.indices], of_length, number.data, strict=True)
    values = np.array([contribution(*each, *once) for each in arguments], np.float64)
    return csr_matrix((values, number.indices, number.indptr), shape=number.shape)


def count_terms(texts: Sequence[Sequence[str]], terms: Sequence[str]) -> csr_matrix:
    """The number of occurrences in each text of each of the terms, [texts, terms]; others are skipped."""
    from scipy.sparse import csr_matrix

    number = {term: column for column, term in enumerate(terms)}
    known = [[number[term] for term in text if term in number] for text in texts]
    offsets = offsets_of(list(map(len, known)))
    columns = np.fromiter(chain.from_iterable(known), np.int64, int(offsets[-1]))
    counts = csr_matrix((np.ones_like(columns), columns, offsets), shape=(len(texts), len(terms)))
    counts.sum_duplicates()
    return counts


class RetrievalBM25(FittedRanking["csr_matrix"]):
    """BM25: the sum, over a query's terms, of a contribution of the term and the document.

    Args:
        analyzer: splits texts into terms, see `Ranking`.
    """

    #: name of the ranking among those of the retrievers, with whose parameters it is computed.
    similarity: ClassVar[Similarity] = "BM25"

    def __init__(self, analyzer: AnalyzerName = "standard", **shared: Any) -> None:
        super().__init__(**shared)
        self.ranking = Ranking(self.similarity, analyzer)

    @override
    def finish(self, data: DataModule) -> None:
        documents = data.split("train").judgements.documents
        self.fitted = count_collection(split_terms(self.ranking, documents.texts[:]))

    @override
    def read(self, documents: Sequence[str]) -> csr_matrix:
        terms = split_terms(self.ranking, documents)
        return contributions(self.ranking, self.fitted, terms, self.fitted["terms"])

    @override
    def scores(self, queries: Sequence[str], documents: csr_matrix) -> Tensor:
        counts = count_terms(split_terms(self.ranking, queries), self.fitted["terms"])
        return torch.from_numpy((counts @ documents.T).toarray().astype(np.float32))


class RetrievalULM(RetrievalBM25):
    """Likelihood of a query in a document's unigram language model with Dirichlet smoothing: such a sum, too."""

    similarity = "LMDirichlet"


def words_of(text: str) -> list[str]:
    """Words as in the LSTM-RNN paper: lower case, split at white space."""
    return text.lower().split()


def count_words(texts: Sequence[str], vocabulary: Sequence[str]) -> Tensor:
    """Numbers of occurrences of words in texts: a sparse tensor, float32 [N, V] with W entries."""
    counts = count_terms(list(map(words_of, texts)), vocabulary).tocoo()
    entries = torch.from_numpy(np.stack([counts.row, counts.col])), torch.from_numpy(counts.data).float()
    return torch.sparse_coo_tensor(*entries, counts.shape, check_invariants=True).coalesce()


#: Iterations of EM.
ITERATIONS = 30
#: Pseudo-counts of a topic in a text, and of a word in a topic.
TOPIC_PRIOR, WORD_PRIOR = 0.01, 0.01
#: Weight of the collection's words in the distribution of a document.
SMOOTHING = 0.3


class RetrievalPLSA(FittedRanking[Tensor]):
    """Likelihood of a query given a document's topics (probabilistic latent semantic analysis).

    P(w | d) = sum over topics z of P(w | z) P(z | d), and its maximum a posteriori by EM.

    Args:
        num_topics: Z (the LSTM-RNN paper has 100 to 500, with similar results).
    """

    depends_on_seed = True

    def __init__(self, num_topics: Size = 500, **shared: Any) -> None:
        super().__init__(**shared)
        self.num_topics = num_topics

    @override
    def finish(self, data: DataModule) -> None:
        documents = data.split("train").judgements.documents.texts[:]
        words = list(dict.fromkeys(word for text in documents for word in words_of(text)))
        counts = count_words(documents, words)
        random = torch.Generator().manual_seed(data.seed)
        of_topic = torch.rand(len(words), self.num_topics, generator=random) + 0.5  # P(w | z)
        of_topic /= of_topic.sum(dim=0)
        of_text = torch.rand(len(documents), self.num_topics, generator=random) + 0.5  # P(z | d)
        of_text /= of_text.sum(dim=1, keepdim=True)
        for _ in range(ITERATIONS):
            share = _shares(counts, of_topic, of_text)
            of_topic = torch.zeros_like(of_topic).index_add_(0, counts.indices()[1], share) + WORD_PRIOR
            of_topic /= of_topic.sum(dim=0)
            of_text = _topics_of_texts(counts, share)
        overall = counts.sum(dim=0).to_dense()
        self.fitted = {"words": words, "of_topic": of_topic, "overall": overall / overall.sum().clamp(min=1)}

    @override
    def read(self, documents: Sequence[str]) -> Tensor:
        """P(z | d) of any documents, for the learned P(w | z): float32 [documents, Z]."""
        counts = count_words(documents, self.fitted["words"])
        of_text = torch.full((len(documents), self.num_topics), 1 / self.num_topics)
        for _ in range(ITERATIONS):
            of_text = _topics_of_texts(counts, _shares(counts, self.fitted["of_topic"], of_text))
        return of_text

    @override
    def scores(self, queries: Sequence[str], documents: Tensor) -> Tensor:
        """log P(q | d), smoothed with the collection's words: float32 [queries, documents]."""
        counts = count_words(queries, self.fitted["words"])
        query, word = counts.indices()
        words, row = torch.unique(word, return_inverse=True)
        likelihood = (1 - SMOOTHING) * (self.fitted["of_topic"][words] @ documents.T)
        smoothed = likelihood + SMOOTHING * self.fitted["overall"][words].unsqueeze(1)  # [words, documents]
        scores = torch.zeros(len(queries), len(documents))
        return scores.index_add_(0, query, counts.values().unsqueeze(1) * smoothed.log()[row])


def _shares(counts: Tensor, of_topic: Tensor, of_text: Tensor) -> Tensor:
    """E step: the number of occurrences of a word in a text that each topic accounts for [W, Z]."""
    text, word = counts.indices()
    joint = of_topic[word] * of_text[text]
    return joint * (counts.values() / joint.sum(dim=1).clamp(min=1e-30)).unsqueeze(1)


def _topics_of_texts(counts: Tensor, share: Tensor) -> Tensor:
    """M step: P(z | d) [N, Z]."""
    of_text = share.new_zeros(len(counts), share.shape[1]).index_add_(0, counts.indices()[0], share)
    of_text += TOPIC_PRIOR
    return of_text / of_text.sum(dim=1, keepdim=True)


#: Share of occurrences above which a frequent word is dropped at random.
_SAMPLE = 1e-4


class RetrievalDoc2Vec(FittedRanking[Tensor]):
    """Cosine of paragraph vectors by gensim, kept as plain tensors; needs the extra `topics` (gensim).

    The defaults are those of the LSTM-RNN paper.

    Args:
        vector_size: of texts and words.
        epochs: of training, and of a text's inference.
    """

    depends_on_seed = True

    def __init__(self, vector_size: Size = 100, epochs: Size = 30, **shared: Any) -> None:
        super().__init__(**shared)
        self.size, self.epochs = vector_size, epochs
        self._opened: Doc2Vec | None = None

    @override
    def check_data(self, data: DataModule) -> None:
        super().check_data(data)
        check_installed("gensim", "topics", "RetrievalDoc2Vec")

    def _new(self, seed: int) -> Doc2Vec:
        check_installed("gensim", "topics", "RetrievalDoc2Vec")
        from gensim.models import Doc2Vec

        # The results of several workers cannot be reproduced.
        options = {"vector_size": self.size, "epochs": self.epochs, "seed": seed}
        return Doc2Vec(min_count=1, workers=1, window=5, negative=5, sample=_SAMPLE, **options)

    @override
    def finish(self, data: DataModule) -> None:
        model, table = self._new(data.seed), data.split("train").judgements
        from gensim.models.doc2vec import TaggedDocument

        texts = [*table.queries.texts, *table.documents.texts]
        corpus = [TaggedDocument(words_of(text), [row]) for row, text in enumerate(texts)]
        model.build_vocab(corpus)
        model.train(corpus, total_examples=len(corpus), epochs=model.epochs)
        self._opened = None
        words = model.wv.index_to_key
        self.fitted = {
            "words": list(words),
            "counts": [int(model.wv.get_vecattr(word, "count")) for word in words],
            "vectors": torch.from_numpy(model.wv.vectors.copy()),
            "outputs": torch.from_numpy(model.syn1neg.copy()),
        }

    def _open(self) -> Doc2Vec:
        model = self._new(0)
        counts = dict(zip(self.fitted["words"], self.fitted["counts"], strict=True))
        model.build_vocab_from_freq(counts, corpus_count=1)
        model.wv.vectors = self.fitted["vectors"].numpy().copy()
        model.syn1neg = self.fitted["outputs"].numpy().copy()
        return model

    @override
    def read(self, documents: Sequence[str]) -> Tensor:
        """Vectors of length 1 [n, size] of any texts, for the learned words; 0 for a text without any."""
        if self._opened is None:
            self._opened = self._open()
        vectors = np.zeros((len(documents), self.size), np.float32)
        for row, text in enumerate(documents):
            words = [word for word in words_of(text) if word in self._opened.wv.key_to_index]
            if words:
                vectors[row] = infer_vector(self._opened, words)
        return unit(torch.from_numpy(vectors))

    @override
    def scores(self, queries: Sequence[str], documents: Tensor) -> Tensor:
        return self.read(queries) @ documents.T

    @property
    @override
    def vector_size(self) -> int:
        return self.size

    @override
    def embed(self, texts: TextBatch, queries: bool) -> Tensor:
        assert texts.string is not None
        return self.read(texts.string).to(texts.word.device)


def infer_vector(model: Doc2Vec, words: list[str]) -> NDArray[np.float32]:
    """gensim's `infer_vector` [size], without Python's hash of the text, which differs between processes."""
    from gensim.models.doc2vec import train_document_dm
    from gensim.models.keyedvectors import pseudorandom_weak_vector

    model.random.seed(0)  # a text's vector must not depend on the texts before it
    size, text = model.vector_size, " ".join(words)
    vector: NDArray[np.float32] = pseudorandom_weak_vector(size, text, lambda each: crc32(each.encode()))
    vectors = vector.reshape(1, -1)  # a view, changed in place
    options = {"learn_words": False, "learn_hidden": False, "doctags_lockf": np.ones(1, np.float32)}
    for rate in np.linspace(model.alpha, model.min_alpha, model.epochs):
        train_document_dm(model, words, [0], rate, doctag_vectors=vectors, **options)
    return vector
