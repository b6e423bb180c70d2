"""A kind of data of your own: texts with a rating to predict, each with the memories found for it.

python examples/your_own_kind/rating.py fit --model MeanOfWords --data RatingDataModule --data.train_file FILE
"""

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchmetrics import Metric

from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.text_rows import TextReader, TextRowsDataModule, TextSplit
from zoo.cli import main
from zoo.tasks.base import Task
from zoo.tasks.encoders import WordVectors
from zoo.tasks.predictor import Predictor, evaluating, on_device, texts_in


class RatingSpec(NamedTuple):
    num_words: int
    mean: float
    deviation: float


class RatingBatch(NamedTuple):
    texts: dict[str, Any]  # words, memories, scores: as `TextReader` gives them
    rating: Tensor  # [B]
    memory_rating: Tensor  # [B, K]
    weight: Tensor  # [B], 0 for padding
    row: Tensor  # [B]


def ratings_of(rows: Rows) -> np.ndarray:
    return np.array([float(label or "nan") for label in rows.table.column("label").to_pylist()], np.float32)


class RatingDataset(Dataset[RatingBatch]):
    def __init__(self, data: TextRowsDataModule, split: TextSplit) -> None:
        self.reader, self.ratings = TextReader(data, split), ratings_of(split.rows)
        self.memory_ratings = np.append(ratings_of(split.neighbors.memories), 0.0)  # the last: no memory
        self.lengths = self.reader.lengths

    def __len__(self) -> int:
        return len(self.ratings)

    def __getitems__(self, indices: list[int]) -> RatingBatch:
        texts, memories = self.reader.read(indices)
        weight, row = texts.pop("weight"), texts.pop("row")
        memory_rating = torch.from_numpy(self.memory_ratings[memories]).float()
        return RatingBatch(texts, torch.from_numpy(self.ratings)[row], memory_rating, weight, row)


class RatingDataModule(TextRowsDataModule):
    spec_type, monitor, fact_names = RatingSpec, "val/r2", ("mean", "deviation")

    def __init__(self, rating_column: str = "rating", **shared: Any) -> None:
        super().__init__(**shared)

    def memory_columns(self) -> dict[str, Any]:
        return {"text_column": "text", "label_column": self.options.rating_column}

    def read_tables(self, wanted: list[str]) -> dict[str, Rows]:
        options, tables = self.options, {}
        if "train" in wanted:
            table = read_table(options.train_file, **self.memory_columns())
            parts = self.split_off(["one class"] * len(table), table)
            tables = dict(zip(("train", "validation"), map(table.select, parts), strict=True))
        files = {"validation": options.validation_file, "test": options.test_file}
        named = {name: read_table(files[name], **self.memory_columns()) for name in wanted if files.get(name)}
        return {**tables, **named}

    def learn(self, train: TextSplit, vocabulary: Any) -> dict[str, float]:
        ratings = ratings_of(train.rows)
        return {"mean": float(ratings.mean()), "deviation": float(ratings.std())}

    def make_spec(self, vocabulary: Any, facts: dict[str, float]) -> RatingSpec:
        return RatingSpec(len(vocabulary), **facts)

    def dataset(self, split: TextSplit) -> RatingDataset:
        return RatingDataset(self, split)


class R2(Metric):
    def __init__(self, spec: RatingSpec) -> None:
        super().__init__()
        self.spec = spec
        # Sums of whole numbers: exact on any number of processes.
        self.add_state("sums", torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, found: Tensor, rating: Tensor, weight: Tensor) -> None:
        errors = torch.stack([rating - found, rating - self.spec.mean]) / self.spec.deviation
        self.sums += (errors.double().square() * weight * 2**30).round().long().sum(dim=1)

    def compute(self) -> dict[str, Tensor]:
        return {"r2": 1 - self.sums[0].double() / self.sums[1].clamp(min=1)}


class RatingPredictor(Predictor):
    def records(self, source: str, batch_size: int = 256, text_column: str = "text") -> Any:
        texts = list(texts_in(source, {"text_column": text_column}))
        split = self.data.split_of(Rows.from_lists(texts), self.memory)
        with self.data.dataset_for_now(split) as dataset, evaluating(self.model):
            for start in range(0, len(texts), batch_size):
                batch = dataset.__getitems__(range(start, min(start + batch_size, len(texts))))
                found = self.model(on_device(batch, self.model)).tolist()
                yield from ({"text": t, "rating": n} for t, n in zip(texts[start:], found, strict=False))


class RatingTask(Task):
    task, spec_type, predictor_type, shown = "rating", RatingSpec, RatingPredictor, ("r2",)

    def new_scores(self) -> R2:
        return R2(self.spec)

    def count(self, scores: R2, batch: RatingBatch) -> None:
        scores.update(self(batch), batch.rating, batch.weight)

    def training_step(self, batch: RatingBatch, batch_idx: int) -> Tensor:
        return ((self(batch) - batch.rating) / self.spec.deviation).square().mean()


class MeanNetwork(nn.Module):  # the mean of a text's words, and of its memories' ratings
    def __init__(self, words: nn.Module, spec: RatingSpec) -> None:
        super().__init__()
        self.words, self.spec, self.out = words, spec, nn.Linear(words.size + 1, 1)

    def forward(self, batch: RatingBatch) -> Tensor:
        texts, spec, mask = batch.texts, self.spec, batch.texts["memory_mask"]
        vectors = self.words(texts["word"], texts["char"])[texts["text"]]  # [B, T, D], zero for padding
        text = vectors.sum(dim=1) / (texts["text"] != 0).sum(dim=1, keepdim=True).clamp(min=1)
        near = ((batch.memory_rating - spec.mean) / spec.deviation * mask).sum(dim=1, keepdim=True)
        features = torch.cat([text, near / mask.sum(dim=1, keepdim=True).clamp(min=1)], dim=1)
        return spec.mean + spec.deviation * self.out(features).squeeze(1)


class MeanOfWords(WordVectors, RatingTask):
    def build_network(
        self, spec: RatingSpec, word_vectors: Tensor | None, transformer_config: Any
    ) -> nn.Module:
        return MeanNetwork(self.make_words(spec, word_vectors), spec)


if __name__ == "__main__":
    sys.exit(main())
