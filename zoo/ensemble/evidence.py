"""The evidence for predictions of an ensemble: contributions of its members, and the memories that they retrieved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import override

from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from zoo.ensemble.answer import Answer
from zoo.ensemble.known_texts import IN_MEMORY
from zoo.ensemble.member import SearchedMemory
from zoo.tasks.classification.held_out import familiarity_of
from zoo.tasks.classification.predictor import (
    ClassificationPredictor,
    Prediction,
    RetrievedMemory,
    retrieved_memories,
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
            changes: PlainDict = {"familiarity": None if shares is None else shares[row]}
            of_row = {name: scores[row] for name, scores in output.contributions.items()}
            if IN_MEMORY in of_row and not of_row[IN_MEMORY].any():
                del of_row[IN_MEMORY]
            if prediction.of_labels is None:
                column = columns[str(prediction.label)]
                changes["contributions"] = {name: float(scores[column]) for name, scores in of_row.items()}
                changes["known_by_memory_alone"] = prediction.label in model.new_labels
            else:
                odds = {name: (scores[1] - scores[0]).tolist() for name, scores in of_row.items()}
                changes["of_labels"] = [
                    each._replace(contributions={name: odds[name][columns[each.label]] for name in odds})
                    for each in prediction.of_labels
                ]
            explained.append(prediction._replace(**changes))
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
    found, extended = retrieved_memories(memory, np.array(rows), scores, weights), []
    for prediction, own in zip(predictions, found, strict=True):
        # A memory of both votes counts for both.
        listed = {each.id: each._replace(found_by=each.found_by or "words") for each in prediction.memories}
        for each in own:
            before = listed.get(each.id)
            if before is None:
                listed[each.id] = each._replace(found_by="vectors")
            else:
                both = before.found_by if before.found_by == "vectors" else "words and vectors"
                listed[each.id] = before._replace(weight=before.weight + each.weight, found_by=both)
        extended.append(prediction._replace(memories=list(listed.values())))
    return extended
