"""What a memory that grows is worth: a finished run's model, more labelled rows in its memory, no training.

The run's own memory stays as it is: a copy grows. How much the model trusts its memory is then refitted on
validation rows (`zoo.memory.tuning`), which takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import stratified_split
from datamodules.retrieval import FolderMemory, make_retriever
from zoo.memory.tuning import Witnessed, witness
from zoo.saving.checkpoint import CHECKPOINT_KEY, read_checkpoint, write_checkpoint
from zoo.saving.loading import load, make_data
from zoo.tasks.classification.metrics import ClassificationScores

#: In the `checkpoints` folder of a grown run: the model as it was trained, and with its vote refitted.
UNTUNED, TUNED = "untuned.ckpt", "best.ckpt"


def grow(checkpoint: Path, rows: Rows, validation: Rows, folder: Path, seed: int) -> dict[str, float]:
    """Give a trained model a larger memory, refit its vote, and score it before and after.

    Writes `memory` and the checkpoints `untuned.ckpt` and `best.ckpt` (its vote is fitted on all validation
    rows), which read that memory.

    Args:
        checkpoint: of a model that reads a memory of its training rows.
        rows: what the memory is to hold. What it holds already is left out, so these may be all rows of a
            larger sample.
        validation: labelled rows that are in neither.
        folder: the grown run's own.
        seed: of the halves of the validation rows.

    Returns:
        `memory_rows`; `val/accuracy_untuned`; `val/accuracy` and `val/macro_f1` with a refitted vote, where
        no row was scored by a vote that was fitted on it (see `cross_fitted`).

    Raises:
        InputError: the model has no memory that can grow, or the rows don't fit it.
    """
    folder = folder.absolute()  # the checkpoints keep the memory's place
    memory = grown_copy(checkpoint, rows, folder / "memory")
    contents = read_checkpoint(checkpoint)
    contents[CHECKPOINT_KEY]["data"].update(
        memory=memory.location(), memory_rows=None, memory_version=memory.version
    )
    write_checkpoint(contents, folder / "checkpoints" / UNTUNED)
    predictor = load(folder / "checkpoints" / UNTUNED)

    witnessed = witness(predictor, validation)
    network = predictor.model.network
    untuned = witnessed.accuracy(network.mix, network.mix_tau)
    tuned = cross_fitted(witnessed, validation.labels or [], seed)
    network.set_vote(*witnessed.best())
    contents["state_dict"] = predictor.model.state_dict()
    write_checkpoint(contents, folder / "checkpoints" / TUNED)

    scores = ClassificationScores(predictor.data.spec.labels)
    scores.update(tuned, witnessed.evidence.target, torch.ones(len(tuned)))
    found = scores.compute()
    return {
        "memory_rows": float(len(memory)),
        "val/accuracy_untuned": untuned,
        "val/accuracy": float(found["accuracy"]),
        "val/macro_f1": float(found["macro_f1"]),
    }


def grown_copy(checkpoint: Path, rows: Rows, folder: Path) -> FolderMemory:
    """A copy of the memory that a run began with, in a folder of its own, and the rows added to it."""
    data = make_data(read_checkpoint(checkpoint))
    memory = data.open_memory(version=1) if data.has_memory else None
    if not isinstance(memory, FolderMemory):
        raise InputError(f"{checkpoint}: the model has no memory that could grow; start from one that has")
    retriever = make_retriever(memory.retriever.describe())
    copy = FolderMemory.build(memory.rows, retriever, folder, progress=False)
    copy.add(rows, data.memory_labels, progress=False)
    return copy


def cross_fitted(witnessed: Witnessed, labels: Sequence[str], seed: int) -> Tensor:
    """Log probabilities [n, C] with a vote that was tuned on other rows than those that it classifies.

    The vote is tuned on one half of the rows (stratified, drawn by the seed) and classifies the other, and the
    other way round.
    """
    halves = stratified_split(labels, 0.5, seed)
    predicted = torch.empty_like(witnessed.evidence.logits)
    for tuned_on, classified in (halves, halves[::-1]):
        setting = witnessed.select(tuned_on).best()
        predicted[classified] = witnessed.select(classified).evidence.log_probabilities(*setting)
    return predicted
