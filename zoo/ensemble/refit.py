"""Weights for a memory that has grown: fitted again in seconds, on labelled rows and on what was added.

The text witnesses have never seen the rows that were added, and in a vote a row leaves itself out: so the added rows
are held-out rows themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory, Memory
from datamodules.text_rows import TextRowsDataModule
from zoo.ensemble.held_out import HeldOut, joined, judge
from zoo.ensemble.weights import fit_trust


def refit(model: Any, data: TextRowsDataModule, memory: Memory | None, rows: Rows) -> str:
    """Fit shapes and weights again, and set them in the model's network.

    Args:
        model: a fitted `WitnessEnsemble`.
        data: its data.
        memory: its memory, open.
        rows: labelled rows; copies of rows in the memory or of the training are left out.

    Returns:
        The weights, and what they are worth on the rows.

    Raises:
        InputError: a row has no label or one that is not known, or no row is left.
    """
    network, known = model.network, [*data.spec.labels, *data.new_labels]
    if network.trust is None:
        raise InputError(
            "zoo memory tune: the run was stopped before its weights were fitted; resume it first"
        )
    if rows.labels is None:
        raise InputError(f"{rows.source}: tuning needs labelled rows")
    if strange := sorted(set(rows.labels) - set(known)):
        raise InputError(
            f"{rows.source}: the model does not know the label {strange[0]!r}; leave such rows out"
        )
    network.says_all = True
    try:
        model.use_memory(data, memory)
        judged, left_out = _unseen(model, data, memory, rows)
        if len(judged.target) == 0:
            raise InputError(
                "zoo memory tune: all rows are in the memory or were trained on, or have labels that the memory alone"
                " knows; tune on other rows"
            )
        parts = [judged, *_added(model, data, memory)]
    finally:
        network.says_all = False
    before, target = network.trust, judged.target
    network.trust = fit_trust(joined(parts).opinions, joined(parts).target)
    accuracies = []
    for trust in (before, network.trust):
        logs = {name: said.log_probabilities(trust.shapes[name]) for name, said in judged.opinions.items()}
        accuracies.append(float((trust.combine(logs).argmax(dim=1) == target).double().mean()))
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in network.trust.weights["all"].items())
    more = f" and {len(parts[1].target)} that were added to the memory" if len(parts) > 1 else ""
    out = (
        f"; {left_out} left out, since the memory has them or the model was trained on them"
        if left_out
        else ""
    )
    return (
        f"weights {weights}; accuracy {accuracies[0]:.4f} -> {accuracies[1]:.4f} on the {len(target)} rows that they"
        f" were fitted on{more}{out}"
    )


def _unseen(model: Any, data: TextRowsDataModule, memory: Memory | None, rows: Rows) -> tuple[HeldOut, int]:
    """What the witnesses say of the rows that have no copy anywhere; and how many have one."""
    split = data.split_of(rows, memory)
    copies = data.marks_of(rows, split.neighbors, memory).is_copy
    judged = _of_witnesses(model, judge(model, split)).select(np.flatnonzero(~copies))
    return judged.known(model.network.num_classes), int(copies.sum())


def _added(model: Any, data: TextRowsDataModule, memory: Memory | None) -> list[HeldOut]:
    """What the witnesses say of rows that were added to the memory after the training, if there are any."""
    if not isinstance(memory, FolderMemory) or memory.version == 1:
        return []
    rows = memory.rows.select(np.arange(memory.versions()[0][1], len(memory)))
    # Their own copies are no evidence.
    split = data.split_of(rows, memory, exclude_duplicates=True)
    seen = data.marks_of(rows, None, None).in_training
    network = model.network
    before, network.excludes_duplicates = network.excludes_duplicates, True
    try:
        judged = _of_witnesses(model, judge(model, split)).select(np.flatnonzero(~seen))
    finally:
        network.excludes_duplicates = before
    judged = judged.known(network.num_classes)
    return [judged] if len(judged.target) else []


def _of_witnesses(model: Any, judged: HeldOut) -> HeldOut:
    """Without the references of the answer's table."""
    return HeldOut({name: judged.opinions[name] for name in model.network.witnesses}, judged.target)
