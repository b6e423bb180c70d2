"""A kind of data of your own: texts with a rating to predict, each with its retrieved memories.

python examples/your_own_kind/rating.py fit --model MeanOfWords --data RatingDataModule --data.train_file FILE
"""

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from datamodules.batch import BatchContents
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import TextOptions
from datamodules.text_rows import TextDataset, TextRowsDataModule, TextSplit
from zoo.cli import main
from zoo.layers.bags import TextBag
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.predictor import Predictor, evaluating, on_device, texts_in


class RatingSpec(NamedTuple):
    num_words: int
    mean: float
    deviation: float


class RatingBatch(NamedTuple):
    texts: dict[str, Tensor]  # words, memories, ...: fields of a `ClassificationBatch`
    rating: Tensor  # [B]
    memory_rating: Tensor  # [B, K], 0 where there is no memory
    weight: Tensor  # [B], 0 for padding
    row: Tensor  # [B]


class RatingDataset(TextDataset[RatingBatch]):
    def __init__(self, data: "RatingDataModule", split: TextSplit, contents: BatchContents) -> None:
        super().__init__(data, split, contents)
        self.ratings = ratings_of(split.rows)
        self.memory_ratings = torch.cat([ratings_of(split.neighbors.memories), torch.zeros(1)])

    def __getitems__(self, indices: list[int]) -> RatingBatch:
        texts, memories = self.read(indices)
        weight, row = texts.pop("weight"), texts.pop("row")
        return RatingBatch(texts, self.ratings[row], self.memory_ratings[memories], weight, row)


def ratings_of(rows: Rows) -> Tensor:
    return torch.tensor([float(label or "nan") for label in rows.table.column("label").to_pylist()])


@dataclass(frozen=True, kw_only=True)
class RatingOptions(TextOptions):
    rating_column: str = "rating"


class RatingDataModule(TextRowsDataModule[RatingOptions]):
    options_type, spec_type, monitor = RatingOptions, RatingSpec, "val/r2"

    def __init__(self, retriever: Any = DEFAULT_RETRIEVER, **options: Any) -> None:
        super().__init__(RatingOptions(**options), retriever)

    def memory_columns(self) -> dict[str, str]:
        return {"text_column": "text", "label_column": self.options.rating_column}

    def read_split(self, name: str) -> Rows:
        return read_table(*self.options.files_of(name), **self.memory_columns())

    def learn(self, train: TextSplit, vocabulary: list[str]) -> dict[str, float]:
        ratings = ratings_of(train.rows)
        return {"mean": ratings.mean().item(), "deviation": ratings.std().item()}

    def make_spec(self, vocabulary: list[str], facts: dict[str, float]) -> RatingSpec:
        return RatingSpec(len(vocabulary), **facts)

    def dataset(self, split: TextSplit, contents=BatchContents(), training: bool = False) -> RatingDataset:
        return RatingDataset(self, split, contents)


class R2(Metric):
    def __init__(self, spec: RatingSpec) -> None:
        super().__init__()
        self.spec = spec
        # Sums of whole numbers are exact on any number of processes.
        self.add_state("sums", torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, batch: RatingBatch) -> None:
        errors = torch.stack([batch.rating - predicted, batch.rating - self.spec.mean]) / self.spec.deviation
        self.sums += (errors.double().square() * batch.weight * 2**30).round().long().sum(dim=1)

    def compute(self) -> dict[str, Tensor]:
        return {"r2": 1 - self.sums[0].double() / self.sums[1].clamp(min=1)}


class RatingPredictor(Predictor["MeanOfWords", RatingDataModule]):
    def records(self, source: str, batch_size: int = 256, text_column: str = "text") -> Any:
        texts = list(texts_in(source, {"text_column": text_column}))
        split = self.data.split_of(Rows.from_lists(texts), self.memory)
        with self.data.temporary_dataset(split, BatchContents()) as dataset, evaluating(self.model):
            ratings = [self.model(on_device(batch, self.model)) for batch in dataset.batches(batch_size)]
        for text, rating in zip(texts, torch.cat(ratings).tolist(), strict=True):
            yield {"text": text, "rating": rating}


class MeanNetwork(nn.Module):
    def __init__(self, words: nn.Module, spec: RatingSpec) -> None:
        super().__init__()
        self.bag, self.spec, self.out = TextBag(words), spec, nn.Linear(words.size + 1, 1)

    def forward(self, batch: RatingBatch) -> Tensor:
        texts, mask = batch.texts, batch.texts["memory_mask"]
        memories = ((batch.memory_rating - self.spec.mean) / self.spec.deviation * mask).sum(
            dim=1, keepdim=True
        )
        mean = memories / mask.sum(dim=1, keepdim=True).clamp(min=1)
        features = torch.cat([self.bag(texts["word"], texts["text"]), mean], dim=1)
        return self.spec.mean + self.spec.deviation * self.out(features).squeeze(1)


class MeanOfWords(ReadsWordVectors):
    task, spec_type, predictor_type, shown = "rating", RatingSpec, RatingPredictor, ("r2",)

    def build_network(self, spec: RatingSpec, word_vectors: Tensor | None, config: Any) -> nn.Module:
        return MeanNetwork(self.make_words(spec, word_vectors), spec)

    def new_scores(self) -> R2:
        return R2(self.spec)

    def count(self, scores: R2, batch: RatingBatch) -> None:
        scores.update(self(batch), batch)

    def training_step(self, batch: RatingBatch, batch_idx: int) -> Tensor:
        return ((self(batch) - batch.rating) / self.spec.deviation).square().mean()


if __name__ == "__main__":
    sys.exit(main())
