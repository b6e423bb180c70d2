"""Bases of the models that rank a collection, whose documents are encoded once an evaluation: steps, loss, scores."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from typing_extensions import override

from datamodules.batch import ClickBatch, ClickSpec, QueryBatch, TextBatch
from datamodules.clickthrough import ClickthroughDataModule, RankingDataset
from datamodules.core.errors import InputError
from datamodules.core.progress import progress_bar
from datamodules.core.types import Positive, Probability, Size
from datamodules.retrieval.base import Hits
from datamodules.sampling import longest_first
from zoo.layers.dual_encoder import DualEncoder, Tower
from zoo.tasks.base import PredictionTable, Task
from zoo.tasks.fitted import Fitted
from zoo.tasks.model import Given
from zoo.tasks.ranking_measures import Judged
from zoo.tasks.retrieval.metrics import RetrievalScores, retrievers_alone
from zoo.tasks.retrieval.predictor import RetrievalPredictor, encode_blocks, retriever_scores
from zoo.training.nesterov import ScheduledNesterov
from zoo.training.trained_parts import total_steps

log = logging.getLogger("zoo")

#: Candidate weights of the retriever's score; validation queries select one.
MIXTURES = (0.0, *(0.05 * 1.25**i for i in range(20)))
#: Training queries below which a model alone is usually worse than BM25.
FEW_QUERIES = 500


class RetrievalTask(Task[ClickthroughDataModule]):
    """Base of the models that rank a collection for a query.

    Its network, called with a `ClickBatch`, returns the relevance [N, M] of its documents to its queries. It has
    `encode`, from a `TextBatch` of queries, or of documents, to float32 [B, d], whose product is the relevance. A model
    that compares texts differently overrides `encode_collection` and `score`.

    Args:
        gamma: factor of the relevance in the loss.
        mix_retriever: add the retriever's score: relevance + lambda s / s_max, where s_max is that of the query's
            best hit. After each epoch, validation queries select the largest lambda within one standard error of
            the best NDCG@10. The data needs `num_hits`.
    """

    task = "retrieval"
    pipeline_tag = "sentence-similarity"
    spec_type = ClickSpec
    predictor_type = RetrievalPredictor
    shown = ("ndcg@10",)
    mixture: Tensor

    def __init__(self, gamma: Positive = 10.0, mix_retriever: bool = False, **shared: Any) -> None:
        super().__init__(**shared)
        self.gamma, self.mix_retriever = gamma, mix_retriever
        self.register_buffer("mixture", torch.zeros(()))
        self._documents: Any = None
        #: parts of the search that a test compares with the model: hits of all queries; None = the network.
        self._alone: dict[str, Hits | None] = {}

    @override
    def check_data(self, data: ClickthroughDataModule) -> None:
        super().check_data(data)
        if self.mix_retriever and data.options.num_hits == 0:
            raise InputError("model.mix_retriever: set the number of hits to mix in with data.num_hits")

    @override
    def idle_options(self, data: ClickthroughDataModule) -> Iterator[tuple[str, str]]:
        yield from super().idle_options(data)
        learns_from_hits = "retrieved" in data.options.sources and not isinstance(self, Fitted)
        if data.options.num_hits and not learns_from_hits and not self.mix_retriever:
            reason = "hits are read in training with data.negatives=retrieved, or with model.mix_retriever"
            yield "data.num_hits", reason
            if data.has_own_retriever:
                yield "data.retriever", reason

    @override
    def on_fit_start(self) -> None:
        super().on_fit_start()
        queries = int(self.training_data.split("train").judgements.has_relevant.sum())
        if queries < FEW_QUERIES and not self.mix_retriever and not isinstance(self, Fitted):
            log.warning(
                "only %d training queries have a relevant document: a model alone is probably worse than BM25. Judge"
                " more, or add its score (--model.mix_retriever true --data.num_hits 1000), as the default does",
                queries,
            )

    def loss_terms(self, score: Tensor, batch: ClickBatch) -> Tensor:
        """-log of exp(gamma R+) / sum of exp(gamma R) over all candidates (Equation 5): [B], from relevance [N, M]."""
        logits: Tensor = self.gamma * score.float()[batch.query]
        logits = logits.masked_fill(~batch.candidate, torch.finfo(torch.float32).min)
        return functional.cross_entropy(logits, batch.positive, reduction="none")

    @override
    def training_step(self, batch: ClickBatch, batch_idx: int) -> Tensor:
        loss = self.loss_terms(self(batch), batch).mean()
        self.log_loss(loss, len(batch.row))
        return loss

    @override
    def adapt_optimizer(self, optimizer: Optimizer) -> Optimizer:
        if isinstance(optimizer, ScheduledNesterov) and optimizer.total_steps is None:
            optimizer.total_steps = total_steps(self.trainer.estimated_stepping_batches)
        return super().adapt_optimizer(optimizer)

    def encode_collection(
        self, dataset: RankingDataset, block: int, process: int = 0, processes: int = 1
    ) -> Any:
        """Encode documents, `block` at a time, for `score`: here float32 [D, d], 0 for those of other processes."""
        sizes = dataset.texts.tokens.sizes[dataset.documents]
        blocks = longest_first(sizes, block)[process::processes]
        # A run has the progress bar of the epoch.
        bar = progress_bar(blocks, "encoding documents", len(blocks), " batches", self._trainer is not None)
        return encode_blocks(self, dataset.texts, dataset.documents, bar, queries=False)

    def embed(self, texts: TextBatch, queries: bool) -> Tensor:
        """Embed queries, or documents: float32 [B, d]."""
        vectors: Tensor = self.network.encode(texts, queries)
        return vectors.float()

    def score(self, batch: QueryBatch, documents: Any) -> Tensor:
        """The relevance of all documents, as `encode_collection` returned them, to queries: float32 [B, D]."""
        queries = self.embed(batch.queries, queries=True)
        with torch.autocast(queries.device.type, enabled=False):
            score: Tensor = queries @ documents.T
        return score

    def ranking_scores(
        self, batch: QueryBatch, documents: Any, weights: Tensor | None = None
    ) -> list[Tensor]:
        """The final scores of all documents for each weight of the retriever's (None: the selected): [B, D] each."""
        score = self.score(batch, documents)
        if self.mix_retriever:
            if batch.hit is None or batch.hit_score is None:
                raise InputError("model.mix_retriever: the retriever's scores are missing; set data.num_hits")
            hits = retriever_scores(batch.hit, batch.hit_score, score.shape[1])
            chosen = self.mixture.view(1) if weights is None else weights
            scores = [score + weight * hits for weight in chosen]
        else:
            scores = [score]
        if batch.candidate is not None:
            scores = [each.masked_fill(~batch.candidate, -torch.inf) for each in scores]
        return scores

    @override
    def new_scores(self) -> RetrievalScores:
        return RetrievalScores(len(MIXTURES) if self.mix_retriever else 1)

    @override
    def on_validation_epoch_start(self) -> None:
        self._encode(self.trainer.val_dataloaders)

    @override
    def on_test_epoch_start(self) -> None:
        self._encode(self.trainer.test_dataloaders)
        data = self.training_data
        self._alone = {"network alone": None} if self.mix_retriever else {}
        self._alone |= retrievers_alone(data, data.split("test"))
        self.metrics = RetrievalScores(alone=tuple(self._alone)).to(self.device)

    def _encode(self, loader: Any) -> None:
        trainer: Any = self.trainer
        block, process = loader.batch_sampler.batch_size, (trainer.global_rank, trainer.world_size)
        with trainer.precision_plugin.forward_context():
            documents = self.encode_collection(loader.dataset, block, *process)
        if isinstance(documents, Tensor):
            # Each row is 0 in all processes but one.
            documents = trainer.strategy.reduce(documents, reduce_op="sum")
        self._documents = documents

    @override
    def on_validation_epoch_end(self) -> None:
        self._documents = None
        if self.mix_retriever and self.is_fitting:
            self.metrics.compute()
            self.mixture.fill_(MIXTURES[self.metrics.best])
        super().on_validation_epoch_end()
        self._keep_queries("val", "validation")

    @override
    def on_test_epoch_end(self) -> None:
        self._documents = None
        super().on_test_epoch_end()
        self.evaluation.parts, self._alone = self.metrics.compared, {}
        self._keep_queries("test", "test")

    def _keep_queries(self, stage: str, split: str) -> None:
        """Keep the score of each query, and log the mixture."""
        ids = self.training_data.split(split).judgements.queries.ids
        self.evaluation.queries = {ids[row]: value for row, value in self.metrics.by_query.items()}
        if self.mix_retriever:
            self.log(f"{stage}/mixture", self.mixture.double(), rank_zero_only=False)

    @override
    def count(self, scores: RetrievalScores, batch: QueryBatch) -> None:
        weights = self.mixture.new_tensor(MIXTURES) if self.is_fitting else None
        if self._alone:  # the second weight is that of the network alone
            weights = torch.stack([self.mixture, torch.zeros_like(self.mixture)])
        ranked = self.ranking_scores(batch, self._documents, weights)
        judged = Judged(batch.judged_query, batch.judged_document, batch.grade)
        loss = self.ranking_loss(ranked[0], judged)
        if self._alone:
            network = ranked[-1]
            ranked = [ranked[0], *(self._score_alone(hits, batch, network) for hits in self._alone.values())]
        scores.update(ranked, judged, loss, batch)

    def _score_alone(self, hits: Hits | None, batch: QueryBatch, score: Tensor) -> Tensor:
        """Return the scores of a retriever with these hits, or those of the network (None), which are given: [B, D]."""
        if hits is None:
            return score
        row, loader = batch.row.cpu().numpy(), cast("DataLoader[QueryBatch]", self.trainer.test_dataloaders)
        columns = cast("RankingDataset", loader.dataset).column[hits.rows[row]]
        column, share = (torch.from_numpy(each).to(score.device) for each in (columns, hits.scores[row]))
        alone = retriever_scores(column, share, score.shape[1])
        return alone.masked_fill(score == -torch.inf, -torch.inf)  # of documents that are no candidates

    def ranking_loss(self, score: Tensor, judged: Judged) -> Tensor:
        """The training loss with all other documents as negatives: the mean over a query's relevant ones [B]."""
        logits: Tensor = self.gamma * score.float()
        relevant = judged.grade > 0
        query, document = judged.query[relevant], judged.document[relevant]
        own = logits[query, document]
        others = logits.index_put((query, document), torch.full_like(own, -torch.inf)).logsumexp(dim=1)
        terms = torch.logaddexp(others[query], own) - own
        sums = terms.new_zeros(len(logits)).index_add(0, query, terms)
        return sums / torch.bincount(query, minlength=len(logits)).clamp(min=1)

    @override
    def shown_predictions(self, data: ClickthroughDataModule, rows: int) -> PredictionTable:
        split, lines = data.split("validation"), list[list[object]]()
        judgements = split.judgements
        for row, ranked in enumerate(RetrievalPredictor(self, data).rank_split(split, 3, rows)):
            grades = judgements.grades(row)
            best = "\n".join(f"{grades.get(each.row, 0):g} {each.score:.3f} {each.text}" for each in ranked)
            lines.append([judgements.queries.texts[row], len(grades), best])
        return ["query", "judged documents", "grade, score and text of the best"], lines


class TrigramRetrieval(RetrievalTask):
    """Base of the models with two towers over letter trigrams.

    Args:
        num_trigrams: buckets that letter trigrams are hashed into; None = as in the paper, each trigram of the
            training texts has its own weights, and others are ignored.
        tied: one network for queries and documents; the paper has two.
        word_dropout: probability of dropping a word of a text in training; the paper has 0.
    """

    def __init__(
        self,
        num_trigrams: Size | None = None,
        tied: bool = True,
        word_dropout: Probability = 0.2,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.num_trigrams, self.tied, self.word_dropout = num_trigrams, tied, word_dropout

    def trigrams(self, spec: ClickSpec) -> int | list[int]:
        """The rows of a `TrigramLayer`: a number of buckets, or trigrams."""
        return spec.trigrams if self.num_trigrams is None else self.num_trigrams

    @abstractmethod
    def make_tower(self, spec: ClickSpec) -> Tower:
        """Make the encoder of the texts of one side."""

    @override
    def check_data(self, data: ClickthroughDataModule) -> None:
        super().check_data(data)
        if not data.options.characters:
            raise InputError(f"{type(self).__name__} reads letters of words: omit --data.characters false")

    @property
    @override
    def vector_size(self) -> int:
        return self.network.query.size

    @override
    def build_network(self, given: Given[ClickSpec]) -> DualEncoder:
        query = self.make_tower(given.spec)
        document = query if self.tied else self.make_tower(given.spec)
        return DualEncoder(query, document, self.word_dropout)
