"""A kind of data of your own: texts with a rating to predict, each with its retrieved memories. See README.md."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from datamodules.batch import BatchContents
from datamodules.corpora.rows import Rows
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import TextOptions
from datamodules.text_rows import TextDataset, TextRowsDataModule, TextSplit
from zoo.cli import main
from zoo.layers.bags import TextBag
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.metrics import RowMeans
from zoo.tasks.predictor import Predictor
from zoo.tasks.records import texts_in


class RatingSpec(NamedTuple):
    num_words: int
    mean: float
    deviation: float


class RatingBatch(NamedTuple):
    texts: dict[str, Tensor]  # words, memories, ...: fields of a `ClassificationBatch`
    rating: Tensor  # [B], standardized: mean 0 and deviation 1 in the training table
    memory_rating: Tensor  # [B, K], standardized, 0 where there is no memory
    row: Tensor  # [B], in the table


class RatingDataset(TextDataset[RatingBatch]):
    def __init__(self, data: "RatingDataModule", split: TextSplit, contents: BatchContents) -> None:
        super().__init__(data, split, contents)
        self.ratings = (ratings_of(split.rows) - data.spec.mean) / data.spec.deviation
        memory_ratings = (ratings_of(split.neighbors.memories) - data.spec.mean) / data.spec.deviation
        self.memory_ratings = torch.cat([memory_ratings, torch.zeros(1)])  # row -1: no memory

    def __getitems__(self, indices: list[int]) -> RatingBatch:
        texts, memories = self.read(indices)
        return RatingBatch(texts, self.ratings[texts["row"]], self.memory_ratings[memories], texts["row"])


def ratings_of(rows: Rows) -> Tensor:
    return torch.tensor([float(label or "nan") for label in rows.table.column("label").to_pylist()])


@dataclass(frozen=True, kw_only=True)
class RatingOptions(TextOptions):
    label_column: str = "rating"


class RatingDataModule(TextRowsDataModule[RatingOptions]):
    options_type, spec_type, dataset_type = RatingOptions, RatingSpec, RatingDataset
    monitor = "val/r2"

    def __init__(self, retriever: Any = DEFAULT_RETRIEVER, **options: Any) -> None:
        super().__init__(RatingOptions(**options), retriever)

    def learn(self, train: TextSplit, vocabulary: Any, memory: Any) -> dict[str, float]:
        deviation, mean = torch.std_mean(ratings_of(train.rows))
        return {"mean": mean.item(), "deviation": deviation.item()}

    def make_spec(self, vocabulary: list[str], facts: dict[str, float]) -> RatingSpec:
        return RatingSpec(len(vocabulary), **facts)


class R2(RowMeans):
    def update(self, predicted: Tensor, batch: RatingBatch) -> None:
        errors = torch.stack([batch.rating - predicted, batch.rating], dim=1).double()
        self.add_rows(errors.square(), batch.texts["weight"] > 0, None)

    def compute(self) -> dict[str, Tensor]:
        means = self.means()
        return {"r2": 1 - means["error"] / means["variance"]}


class RatingPredictor(Predictor[RatingDataModule]):
    def records(self, source: str, batch_size: int = 256, text_column: str = "text") -> Any:
        rows = Rows.from_lists(list(texts_in(source, {"text_column": text_column})))
        dataset = self.data.dataset(self.data.split_of(rows, self.memory))
        outputs = torch.cat([output for _, output in self.outputs(dataset, batch_size)])
        ratings = self.data.spec.mean + self.data.spec.deviation * outputs
        yield from ({"text": a, "rating": b} for a, b in zip(rows.texts, ratings.tolist(), strict=True))


class MeanNetwork(nn.Module):
    def __init__(self, words: nn.Module) -> None:
        super().__init__()
        self.bag, self.out = TextBag(words), nn.Linear(words.size + 1, 1)

    def forward(self, batch: RatingBatch) -> Tensor:
        count = batch.texts["memory_mask"].sum(dim=1, keepdim=True).clamp(min=1)
        memories = batch.memory_rating.sum(dim=1, keepdim=True) / count
        vectors = [self.bag(batch.texts["word"], batch.texts["text"]), memories]
        return self.out(torch.cat(vectors, dim=1)).squeeze(1)


class MeanOfWords(ReadsWordVectors):
    task, spec_type, predictor_type, shown = "rating", RatingSpec, RatingPredictor, ("r2",)

    def build_network(self, given: Any) -> nn.Module:
        return MeanNetwork(self.make_words(given))

    def new_scores(self) -> R2:
        return R2(["error", "variance"], parts=2**30)  # exact on any number of processes

    def count(self, scores: R2, batch: RatingBatch) -> None:
        scores.update(self(batch), batch)

    def training_step(self, batch: RatingBatch, batch_idx: int) -> Tensor:
        return (self(batch) - batch.rating).square().mean()


if __name__ == "__main__":
    raise SystemExit(main())
