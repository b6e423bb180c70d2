"""Rankings of a collection by what its texts are about, learned without judgements: PLSA and Doc2Vec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from datamodules.loaders import run_seed
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClickBatch, ClickSpec, DocumentBatch, QueryBatch
from datamodules.clickthrough.dataset import RankingDataset
from datamodules.core.errors import InputError
from zoo.layers.interactions import unit
from zoo.tasks.base import check_sizes
from zoo.tasks.fitted import Fitted, FittedNetwork
from zoo.tasks.retrieval.task import RetrievalTask


def words_of(text: str) -> list[str]:
    """Words as the LSTM-RNN paper has them: lower case, cut at white space."""
    return text.lower().split()


class Counts:
    """The words of texts that a model knows, and how often they occur: W entries of N texts."""

    def __init__(self, texts: Sequence[str], number: dict[str, int]) -> None:
        found = [Counter(number[word] for word in words_of(text) if word in number) for text in texts]
        #: int64 [W] each: text, word.
        self.text = torch.tensor([row for row, one in enumerate(found) for _ in one], dtype=torch.long)
        self.word = torch.tensor([word for one in found for word in one], dtype=torch.long)
        #: float32 [W].
        self.count = torch.tensor([count for one in found for count in one.values()], dtype=torch.float32)
        self.texts = len(texts)


class TopicNetwork(FittedNetwork):
    """P(w | d) = sum over topics z of P(w | z) P(z | d), and its maximum a posteriori by EM."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options
        self.fitted = {"words": [], "of_topic": torch.zeros(0, options.num_topics), "overall": torch.zeros(0)}

    @property
    def number(self) -> dict[str, int]:
        """Word -> its row."""
        return {word: row for row, word in enumerate(self.fitted["words"])}

    def fit_to(self, documents: Sequence[str], seed: int) -> None:
        """Learn P(w | z) of documents."""
        options = self.options
        words = list(dict.fromkeys(word for text in documents for word in words_of(text)))
        counts = Counts(documents, {word: row for row, word in enumerate(words)})
        random = torch.Generator().manual_seed(seed)
        of_topic = torch.rand(len(words), options.num_topics, generator=random) + 0.5  # P(w | z)
        of_topic /= of_topic.sum(dim=0)
        of_text = torch.rand(counts.texts, options.num_topics, generator=random) + 0.5  # P(z | d)
        of_text /= of_text.sum(dim=1, keepdim=True)
        for _ in range(options.iterations):
            share = self._shares(counts, of_topic, of_text)
            of_topic = torch.zeros_like(of_topic).index_add_(0, counts.word, share) + options.word_prior
            of_topic /= of_topic.sum(dim=0)
            of_text = torch.zeros_like(of_text).index_add_(0, counts.text, share) + options.topic_prior
            of_text /= of_text.sum(dim=1, keepdim=True)
        overall = torch.zeros(len(words)).index_add_(0, counts.word, counts.count)
        self.fitted = {"words": words, "of_topic": of_topic, "overall": overall / overall.sum().clamp(min=1)}

    @staticmethod
    def _shares(counts: Counts, of_topic: Tensor, of_text: Tensor) -> Tensor:
        """E step: how many of each text's occurrences of a word each topic accounts for [W, Z]."""
        joint = of_topic[counts.word] * of_text[counts.text]
        return joint * (counts.count / joint.sum(dim=1).clamp(min=1e-30)).unsqueeze(1)

    def topics(self, documents: Sequence[str]) -> Tensor:
        """P(z | d) of any documents, P(w | z) as it was learned: float32 [documents, Z]."""
        counts, options = Counts(documents, self.number), self.options
        of_text = torch.full((counts.texts, options.num_topics), 1 / options.num_topics)
        for _ in range(options.iterations):
            share = self._shares(counts, self.fitted["of_topic"], of_text)
            of_text = torch.zeros_like(of_text).index_add_(0, counts.text, share) + options.topic_prior
            of_text /= of_text.sum(dim=1, keepdim=True)
        return of_text

    def scores(self, queries: Sequence[str], topics: Tensor) -> Tensor:
        """log P(q | d), smoothed with the collection's words: float32 [queries, documents]."""
        counts, weight = Counts(queries, self.number), self.options.smoothing
        words, place = torch.unique(counts.word, return_inverse=True)
        likelihood = (1 - weight) * (self.fitted["of_topic"][words] @ topics.T)
        log = (likelihood + weight * self.fitted["overall"][words].unsqueeze(1)).log()  # [words, documents]
        found = torch.zeros(counts.texts, len(topics))
        return found.index_add_(0, counts.text, counts.count.unsqueeze(1) * log[place])

    def forward(self, batch: ClickBatch) -> Tensor:
        """The scores of a batch's documents for its queries: float32 [N, M]."""
        assert batch.query_string is not None
        assert batch.document_string is not None
        return self.scores(batch.query_string, self.topics(batch.document_string)).to(batch.query.device)


class RetrievalPLSA(Fitted, RetrievalTask):
    """Likelihood of a query by a document's topics (probabilistic latent semantic analysis).

    Example:
        >>> model = RetrievalPLSA(num_topics=500)
    """

    paper = "Hofmann: Probabilistic Latent Semantic Analysis (1999)"
    reads_strings = True
    depends_on_seed: ClassVar[bool] = True

    def __init__(
        self,
        num_topics: int = 500,
        iterations: int = 30,
        topic_prior: float = 0.01,
        word_prior: float = 0.01,
        smoothing: float = 0.3,
        **shared: Any,
    ) -> None:
        """Configure the model.

        Args:
            num_topics: Z (the LSTM-RNN paper has 100 to 500, with like results).
            iterations: of EM.
            topic_prior: pseudo-count of a topic in a text.
            word_prior: pseudo-count of a word in a topic.
            smoothing: weight of the collection's words beside the document's topics.
            **shared: options of `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "num_topics", "iterations")
        for name, value in (("topic_prior", topic_prior), ("word_prior", word_prior)):
            if not value > 0:
                raise InputError(f"model.{name}={value}: must be above 0")
        if not 0 < smoothing < 1:
            raise InputError(f"model.smoothing={smoothing}: must be between 0 and 1")

    @override
    def build_network(
        self, spec: ClickSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> TopicNetwork:
        return TopicNetwork(self.options)

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        self.network.fit_to(data.split("train").judgements.documents.texts[:], run_seed())

    @override
    def encode_collection(
        self, dataset: RankingDataset, block: int, process: int = 0, processes: int = 1
    ) -> Any:
        # Not a Tensor to the base class: every process makes all of it.
        documents = dataset.split.judgements.documents
        return [self.network.topics([documents.texts[int(row)] for row in dataset.documents])]

    @override
    def score(self, batch: QueryBatch, documents: Any) -> Tensor:
        assert batch.string is not None
        found: Tensor = self.network.scores(batch.string, documents[0]).to(batch.row.device)
        return found


class ParagraphNetwork(FittedNetwork):
    """Paragraph vectors: gensim's model, kept as plain tensors."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options
        self._model: Any = None

    def _new(self, seed: int) -> Any:
        from gensim.models import Doc2Vec  # a second, that other models need not pay

        options = self.options
        return Doc2Vec(
            vector_size=options.vector_size,
            window=options.window,
            min_count=1,
            sample=options.sample,
            negative=options.num_negatives,
            epochs=options.epochs,
            workers=1,  # more of them do not repeat themselves
            seed=seed,
        )

    def fit_to(self, texts: Sequence[str], seed: int) -> None:
        """Learn the words of texts."""
        from gensim.models.doc2vec import TaggedDocument

        model = self._new(seed)
        corpus = [TaggedDocument(words_of(text), [row]) for row, text in enumerate(texts)]
        model.build_vocab(corpus)
        model.train(corpus, total_examples=len(corpus), epochs=model.epochs)
        words = model.wv.index_to_key
        self.fitted = {
            "words": list(words),
            "counts": [int(model.wv.get_vecattr(word, "count")) for word in words],
            "vectors": torch.from_numpy(model.wv.vectors.copy()),
            "outputs": torch.from_numpy(model.syn1neg.copy()),
        }
        self._model = None

    def encode(self, texts: Sequence[str] | None) -> Tensor:
        """Vectors of length 1 [n, size] of any texts, the words as they were learned; 0 for a text without any."""
        assert texts is not None
        if self._model is None:
            self._model = model = self._new(0)
            model.build_vocab_from_freq(
                dict(zip(self.fitted["words"], self.fitted["counts"], strict=True)),
                corpus_count=1,
            )
            model.wv.vectors = self.fitted["vectors"].numpy().copy()
            model.syn1neg = self.fitted["outputs"].numpy().copy()
        model, found = self._model, np.zeros((len(texts), self.options.vector_size), np.float32)
        for row, text in enumerate(texts):
            words = [word for word in words_of(text) if word in model.wv.key_to_index]
            if words:
                model.random.seed(0)  # what a text gets does not depend on those before it
                found[row] = _infer(model, words)
        return unit(torch.from_numpy(found))

    def forward(self, batch: ClickBatch) -> Tensor:
        """The cosine of a batch's queries and documents: float32 [N, M]."""
        score = self.encode(batch.query_string) @ self.encode(batch.document_string).T
        return score.to(batch.query.device)


def _infer(model: Any, words: list[str]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = model.infer_vector(words)
    return found


class RetrievalDoc2Vec(Fitted, RetrievalTask):
    """Cosine of paragraph vectors, trained on queries and documents without judgements.

    Example:
        >>> model = RetrievalDoc2Vec(vector_size=100)
    """

    paper = "Le, Mikolov: Distributed Representations of Sentences and Documents (2014), by gensim"
    reads_strings = True
    depends_on_seed: ClassVar[bool] = True

    def __init__(
        self,
        vector_size: int = 100,
        window: int = 5,
        sample: float = 1e-4,
        num_negatives: int = 5,
        epochs: int = 30,
        **shared: Any,
    ) -> None:
        """Configure the model; the defaults are those of the LSTM-RNN paper.

        Args:
            vector_size: of texts and words.
            window: words on each side that predict a word.
            sample: frequent words are left out at random above this share.
            num_negatives: noise words a word.
            epochs: of training, and of a text's inference.
            **shared: options of `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "vector_size", "window", "num_negatives", "epochs")

    @override
    def build_network(
        self, spec: ClickSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> ParagraphNetwork:
        return ParagraphNetwork(self.options)

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        judgements = data.split("train").judgements
        self.network.fit_to([*judgements.queries.texts, *judgements.documents.texts], run_seed())

    @property
    @override
    def vector_size(self) -> int:
        return int(self.options.vector_size)

    @override
    def encode_documents(self, batch: DocumentBatch) -> Tensor:
        vectors: Tensor = self.network.encode(batch.string).to(batch.row.device)
        return vectors

    @override
    def encode_queries(self, batch: QueryBatch) -> Tensor:
        vectors: Tensor = self.network.encode(batch.string).to(batch.row.device)
        return vectors
