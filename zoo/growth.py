"""What a memory that grows is worth: a finished run's model, more labelled rows in its memory, no training.

The run's own memory stays as it is: a copy grows. How much the model trusts its memory is then refitted on
validation rows (`zoo.tuning`), which takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datamodules.corpora.split import stratified_split
from datamodules.corpora.table import Rows
from datamodules.errors import InputError
from datamodules.retrieval import FolderMemory, make_retriever
from datamodules.storage import new_file
from zoo.checkpoints import CHECKPOINT_KEY, read_checkpoint
from zoo.inference import load_classifier
from zoo.knn_bilstm import KNNNetwork
from zoo.tuning import Evidence, evidence_of

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
    from sklearn.metrics import accuracy_score, f1_score  # a second, that other commands need not pay

    folder = folder.absolute()  # the checkpoints keep the memory's place
    memory = grown_copy(checkpoint, rows, folder / "memory")
    contents = read_checkpoint(checkpoint)
    contents[CHECKPOINT_KEY]["data"]["memory"] = memory.location()
    _save(contents, folder / "checkpoints" / UNTUNED)
    predictor = load_classifier(folder / "checkpoints" / UNTUNED)

    network = predictor.model.network
    assert isinstance(network, KNNNetwork)
    evidence = evidence_of(predictor, validation)
    untuned = evidence.accuracy(network.mix, network.mix_tau)
    tuned = cross_fitted(evidence, labels_of(validation), seed)
    mix, tau = evidence.best()
    network.mix.fill_(mix)
    network.mix_tau.fill_(tau)
    contents["state_dict"] = predictor.model.state_dict()
    _save(contents, folder / "checkpoints" / TUNED)

    true = evidence.target
    return {
        "memory_rows": float(len(memory)),
        "val/accuracy_untuned": untuned,
        "val/accuracy": float(accuracy_score(true, tuned)),
        "val/macro_f1": float(f1_score(true, tuned, average="macro", zero_division=0)),
    }


def grown_copy(checkpoint: Path, rows: Rows, folder: Path) -> FolderMemory:
    """A copy of the memory that a run began with, in a folder of its own, and the rows added to it."""
    began_with = load_classifier(checkpoint, memory_version=1)
    memory = began_with.memory
    if not isinstance(memory, FolderMemory):
        raise InputError(f"{checkpoint}: the model has no memory that could grow; start from one that has")
    retriever = make_retriever(memory.retriever.describe())
    copy = FolderMemory.build(memory.rows, retriever, folder, progress=False)
    copy.add(rows, began_with.data.spec.memory_labels, progress=False)
    return copy


def cross_fitted(evidence: Evidence, labels: Sequence[str], seed: int) -> Tensor:
    """Classes [n] predicted with a vote that was tuned on other rows than those that it classifies.

    The vote is tuned on one half of the rows (stratified, drawn by the seed) and classifies the other, and the
    other way round.
    """
    halves = stratified_split(labels, 0.5, seed)
    predicted = torch.empty_like(evidence.target)
    for tuned_on, classified in (halves, halves[::-1]):
        setting = evidence.select(tuned_on).best()
        predicted[classified] = evidence.select(classified).log_probabilities(*setting).argmax(dim=1)
    return predicted


def labels_of(rows: Rows) -> list[str]:
    """The label of every row [n].

    Raises:
        InputError: a row has none.
    """
    labels = rows.labels
    if labels is None:
        raise InputError(f"{rows.source}: a row has no label; label every row")
    return labels


def _save(contents: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with new_file(file) as partial:
        torch.save(contents, partial)
