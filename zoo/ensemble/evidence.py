"""The evidence for predictions of an ensemble: contributions of its members, and the memories that they retrieved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import override

from datamodules.corpora.rows import Rows
from zoo.ensemble.answer import Answer
from zoo.ensemble.known_texts import IN_MEMORY
from zoo.ensemble.member import SearchedMemory
from zoo.tasks.classification.held_out import familiarity_of
from zoo.tasks.classification.predictor import (
    ClassificationPredictor,
    Prediction,
    RetrievedMemory,
    columns_of,
)


class EnsemblePredictor(ClassificationPredictor):
    """A predictor with contributions of the members, the memories that they retrieved, and the table of results."""

    @property
    def answer(self) -> Answer | None:
        """The table of results on held-out rows, as `zoo fit` prints it; None for a model without its run folder."""
        file = self.answer_file
        return Answer.read(file) if file is not None and file.is_file() else None

    @override
    def _of_batch(
        self, texts: list[str], memories: list[list[RetrievedMemory]] | None, output: Any
    ) -> list[Prediction]:
        model: Any = self.model
        columns = {label: column for column, label in enumerate(model.labels)}
        shares = None
        if self.held_out is not None:
            values = output.familiarity.double().cpu().numpy()
            shares = familiarity_of(self.held_out, values).tolist()
        explained = []
        for row, prediction in enumerate(super()._of_batch(texts, memories, output)):
            prediction = prediction._replace(familiarity=None if shares is None else shares[row])
            of_row = {
                name: scores[row]
                for name, scores in output.contributions.items()
                if name != IN_MEMORY or scores[row].any()
            }
            if prediction.of_labels is not None:
                odds = {name: (scores[1] - scores[0]).tolist() for name, scores in of_row.items()}
                of_labels = [
                    each._replace(contributions={name: odds[name][columns[each.label]] for name in odds})
                    for each in prediction.of_labels
                ]
                explained.append(prediction._replace(of_labels=of_labels))
                continue
            column = columns[str(prediction.label)]
            contributions = {name: float(scores[column]) for name, scores in of_row.items()}
            known = prediction.label in model.new_labels
            explained.append(prediction._replace(contributions=contributions, known_by_memory_alone=known))
        searched: SearchedMemory | None = model.network.memory
        if searched is not None and memories is not None:
            for retrieved in output.retrieved:
                explained = _with_retrieved(explained, retrieved, searched.encoded.memory.rows)
        return explained


def _with_retrieved(
    predictions: Sequence[Prediction], retrieved: Sequence[Tensor], memory: Rows
) -> list[Prediction]:
    """Add the memories that a member retrieved by vectors."""
    rows, scores, weights = (part.tolist() for part in retrieved)
    ids, texts, labels = columns_of(memory, np.array(rows))
    extended = []
    for row, prediction in enumerate(predictions):
        # A memory of both votes counts for both.
        listed = {each.id: each._replace(found_by=each.found_by or "words") for each in prediction.memories}
        columns = (side[row] for side in (rows, ids, texts, labels, scores, weights))
        for number, name, text, label, score, weight in zip(*columns, strict=True):
            if number < 0:
                continue
            before = listed.get(name)
            if before is None:
                listed[name] = RetrievedMemory(name, text, label, score, weight, found_by="vectors")
            else:
                both = before.found_by if before.found_by == "vectors" else "words and vectors"
                listed[name] = before._replace(weight=before.weight + weight, found_by=both)
        extended.append(prediction._replace(memories=list(listed.values())))
    return extended
