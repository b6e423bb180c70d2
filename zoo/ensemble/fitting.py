"""The stages of a fit that come after the encoder's training: memory, lexical witness, weights, and the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.classification.dataset import label_numbers
from datamodules.core.errors import InputError
from datamodules.text_rows import TextRowsDataModule
from zoo.ensemble.answer import Answer, AnswerScores
from zoo.ensemble.held_out import CrossFit, HeldOut, bags_of, batches_of, fit_head, joined, judge
from zoo.ensemble.network import WitnessNetwork, table_rows
from zoo.ensemble.weights import Trust, fit_trust, folds_of

#: Folds of the validation rows for the answer's table.
_FOLDS = 5


def fit_rest(model: Any, data: TextRowsDataModule) -> Answer:
    """Fit all witnesses but the encoder, and the weights of all.

    Args:
        model: a `WitnessEnsemble` with its best encoder.
        data: set up for the fit.

    Returns:
        The table on the validation rows.
    """
    network: WitnessNetwork = model.network
    train, validation = data.split("train"), data.split("validation")
    texts, target = train.rows.texts[:], label_numbers(train.rows, data.spec.labels)
    network.trust, network.says_all = None, True
    network.counts = np.bincount(target, minlength=network.num_classes).tolist()
    if network.encoder is not None:
        model.tell("stage 2 of 4: the memory is encoded")
        searched = data.has_memory and "dense_vote" in network.witnesses
        model.use_memory(data, data.opened_memory if searched else None)
        if network.is_frozen and "encoder" in network.witnesses:
            network.machine.fit(model.vectors_of(train), target)
            weight, bias = fit_head(model.vectors_of(train), target, network.num_classes)
            with torch.no_grad():
                network.classifier.weight.copy_(weight)
                network.classifier.bias.copy_(bias)
    model.tell("stage 3 of 4: the other witnesses of the text are fitted")
    network.svm.fit(texts, target, c=1.0)
    if "lexical" in network.witnesses:
        network.lexical.fit(texts, target, model.options.c)
    bags = None
    if "bag" in network.witnesses:
        has_vector = data.has_vector()
        assert has_vector is not None  # or there would be no such witness
        network.bag.fit(batches_of(model, train), has_vector)
        bags = bags_of(model, train)
        network.bag_machine.fit(bags, target)
    model.tell("stage 4 of 4: weights are fitted on held-out rows")
    network.excludes_duplicates = data.excludes_duplicates("validation")
    is_encoded = network.is_frozen and network.encoder is not None
    judged = judge(model, validation, model.vectors_of(validation) if is_encoded else None)
    crossed = None
    if len(judged.known(network.num_classes).target) < model.options.few_rows:
        found = CrossFit(model, train, model.options.folds, bags).judge()
        crossed = found if len(found.target) else None  # the model that it started from has seen them all
    own = HeldOut({name: judged.opinions[name] for name in network.witnesses}, judged.target)
    network.trust = _fitted(own, crossed, network.num_classes)
    network.says_all = False
    scores = _measured(own, crossed, network.references(judged.opinions), network)
    notes = _notes(model, len(own.target), 0 if crossed is None else len(crossed.target))
    return Answer("validation", scores.lines(network.trust.weights["all"]), notes)


def _fitted(own: HeldOut, crossed: HeldOut | None, num_classes: int) -> Trust:
    """Shapes and weights from validation rows, and training rows if there are any."""
    held_out = joined([own.known(num_classes), *([] if crossed is None else [crossed])])
    if len(held_out.target) == 0:
        raise InputError(
            "no validation row has a label of the training rows, so no weight can be fitted; name other rows with"
            " --data.validation_file"
        )
    return fit_trust(held_out.opinions, held_out.target)


def _measured(
    own: HeldOut, crossed: HeldOut | None, references: dict[str, Tensor], network: WitnessNetwork
) -> AnswerScores:
    """What every row of the table has right on validation rows, by weights that were fitted without their fold."""
    assert network.trust is not None
    scores: AnswerScores | None = None
    folds = folds_of(own.target.numpy(), _FOLDS)
    for fold in np.unique(folds):
        rows: NDArray[np.int64] = np.flatnonzero(folds == fold)
        others = own.select(np.flatnonzero(folds != fold))
        # Of a single row, or of one class alone, nothing can be left out.
        enough = crossed is not None or len(others.known(network.num_classes).target) > 0
        trust = _fitted(others, crossed, network.num_classes) if enough else network.trust
        logs = {
            name: said.log_probabilities(trust.shapes[name])
            for name, said in own.select(rows).opinions.items()
        }
        said = table_rows(trust, logs, {name: values[rows] for name, values in references.items()})
        # Every process has all rows.
        scores = scores or AnswerScores(list(said), sync_on_compute=False)
        scores.update(said, own.target[rows], torch.ones(len(rows)))
    assert scores is not None
    return scores


def _notes(model: Any, validation: int, training: int) -> list[str]:
    """How the table came about."""
    network = model.network
    rows = f"{validation:,} validation rows"
    if training:
        rows += f" and {training:,} training rows, each judged by witnesses fitted without it"
    notes = [
        f"Weights are fitted on {rows}; each validation row is scored by weights fitted without its fifth."
    ]
    if idle := [name for name, weight in network.trust.weights["all"].items() if not weight]:
        notes.append(f"Weight 0, since the others do as well without: {', '.join(idle)}.")
    notes += [f"Left out, since {reason}: {', '.join(names)}." for reason, names in model.missing().items()]
    if "dense_vote" in network.witnesses and network.memory is None:
        notes.append("The dense vote is empty: an index of the user's own can't be searched by our vectors.")
    return notes
