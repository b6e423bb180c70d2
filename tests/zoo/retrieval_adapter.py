"""The models that rank the documents of a collection, for the shared tests of `test_models.py`."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from datamodules import ClickthroughDataModule
from tests.clicks import write_collection
from tests.zoo.adapter import STRINGS, Adapter, renamed, take_rows, with_words_of
from zoo.layers.dual_encoder import DualEncoder
from zoo.tasks.base import Task

# Words that are dropped at random can't be memorized.
CLICKS = {"word_dropout": 0.0}
CELLS = {**CLICKS, "hidden_size": 7}


class Retrieval(Adapter):
    examples = 10
    variants: ClassVar = {
        "LSTMRNN": {
            "lstm": CELLS,
            "lstm-apart": {**CELLS, "tied": False},
            "lstm-both-ways": {**CELLS, "bidirectional": True},
            "rnn": {**CELLS, "cell": "rnn", "hidden_size": 12},
            "rnn-both-ways": {**CELLS, "cell": "rnn", "bidirectional": True},
        },
        "RetrievalDSSM": {
            "tied": {**CLICKS, "hidden_sizes": (9, 7)},
            "hashed": {**CLICKS, "hidden_sizes": (9, 7), "num_trigrams": 300},
            "apart": {**CLICKS, "hidden_sizes": (9, 7), "tied": False},
        },
        "RetrievalCLSM": {
            f"window-{window}": {**CLICKS, "hidden_sizes": (12, 8), "window": window} for window in (1, 3, 4)
        },
        "RetrievalBM25": {"": {}},
        "RetrievalULM": {"": {}},
        "RetrievalPLSA": {"": {"num_topics": 6}},
        "RetrievalDoc2Vec": {"": {"vector_size": 8, "epochs": 4}},
    }
    by_example = ("query", "positive", "candidate", "row")
    padding = ("char", "query_text", "document_text")

    def make_data(self, folder: Path) -> ClickthroughDataModule:
        collection = write_collection(folder, documents=60, queries=24, seed=6)
        return ClickthroughDataModule(
            **collection.options(document_column="title"),
            validation_split=0.25,
            negatives=["in_batch", "random"],
            num_negatives=2,
            positives_per_query=1,
            batch_size=10,
            eval_batch_size=64,
            cache_dir=str(folder / "cache"),
        )

    def make_batch(self) -> Any:
        dataset = self.data.dataset(self.data.split("train"), STRINGS, training=True)
        return dataset.__getitems__(range(self.examples))

    def results(self, model: Task, batch: Any) -> Tensor:
        score = model(batch)
        assert score.shape == (len(batch.query_text), len(batch.document_text))
        if isinstance(model.network, DualEncoder):
            assert score.abs().max() <= 1 + 1e-6
        return score[batch.query, batch.positive]

    def is_learned(self, model: Task, batch: Any) -> bool:
        score = model(batch)[batch.query].masked_fill(~batch.candidate, -2)
        return bool((score.argmax(dim=1) == batch.positive).all())

    def alone(self, batch: Any, row: int) -> Any:
        """The batch as the data would build it, without anything of other examples."""
        texts = with_words_of(batch, ("word", "char"), query=batch.query[row], document=batch.positive[row])
        zero, one = torch.zeros(1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool)
        return texts._replace(query=zero, positive=zero, candidate=one, row=batch.row[row : row + 1])

    def reordered(self, batch: Any) -> list[tuple[Any, Tensor]]:
        same = torch.arange(len(batch.row))
        words = renamed(batch, ("word", "char"), ("query_text", "document_text"))
        documents = batch._replace(
            document_text=batch.document_text.flip(0),
            document_string=batch.document_string[::-1],
            positive=len(batch.document_text) - 1 - batch.positive,
            candidate=batch.candidate.flip(1),
        )
        examples = take_rows(batch, self.by_example, same.flip(0))
        return [(examples, same.flip(0)), (documents, same), (words, same)]

    def emptied(self, batch: Any) -> list[tuple[Any, Tensor]]:
        batches = []
        for side, of_example in (("query", batch.query), ("document", batch.positive)):
            text, strings = getattr(batch, f"{side}_text").clone(), list(getattr(batch, f"{side}_string"))
            text[1], strings[1] = 0, ""
            batches.append(
                (batch._replace(**{f"{side}_text": text, f"{side}_string": strings}), of_example != 1)
            )
        return batches
