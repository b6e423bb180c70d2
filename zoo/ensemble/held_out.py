"""What the witnesses say of labelled rows that they have not learned from: what weights are fitted on.

Validation rows are such rows. Where they are few, training rows join them by cross-fitting: each is judged by
witnesses that were fitted without its fold. A vote needs no fold: a training row finds neither itself nor its copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch
from datamodules.classification.dataset import ClassificationDataset, label_numbers
from datamodules.core.errors import InputError
from datamodules.sampling import LengthBucketSampler
from datamodules.text_rows import TextSplit
from zoo.ensemble.kernel import KernelMachine
from zoo.ensemble.lexical import LexicalLinear
from zoo.ensemble.network import WitnessNetwork, ballots_of
from zoo.ensemble.weights import Ballots, Opinions, Scores, folds_of
from zoo.tasks.predictor import evaluating, on_device
from zoo.training.fitted import planes_of
from zoo.training.trained_parts import freeze, parameter_groups

#: Rows that go through the network together.
_ROWS = 256
#: Weights of errors that the classifier on top of a frozen encoder chooses from, and rows that it chooses on.
HEAD_COSTS = (0.3, 1.0, 3.0, 10.0, 30.0)
_HEAD_ROWS = 3000


class HeldOut(NamedTuple):
    """n rows with known classes, and what the witnesses say of them."""

    opinions: dict[str, Opinions]
    #: int64 [n].
    target: Tensor

    def select(self, rows: NDArray[np.int64]) -> HeldOut:
        """Those of some rows."""
        return HeldOut({name: said.select(rows) for name, said in self.opinions.items()}, self.target[rows])

    def known(self, num_classes: int) -> HeldOut:
        """Without rows whose label the model does not know."""
        is_known = (self.target >= 0) & (self.target < num_classes)
        return self.select(np.flatnonzero(is_known.numpy()))


def joined(parts: Sequence[HeldOut]) -> HeldOut:
    """Several as one; each has the same witnesses."""
    opinions: dict[str, Opinions] = {}
    for name, first in parts[0].opinions.items():
        said = [part.opinions[name] for part in parts]
        if isinstance(first, Ballots):
            ballots = [one for one in said if isinstance(one, Ballots)]
            score, mask, target = (
                torch.cat([getattr(one, column).cpu() for one in ballots])
                for column in ("score", "mask", "classes")
            )
            opinions[name] = Ballots(score, mask, target, first.num_classes)
        else:
            opinions[name] = Scores(torch.cat([one.scores.cpu() for one in said if isinstance(one, Scores)]))
    return HeldOut(opinions, torch.cat([part.target.cpu() for part in parts]))


def judge(model: Any, split: TextSplit, vectors: NDArray[np.float32] | None = None) -> HeldOut:
    """What the model's witnesses say of a split's rows, in their order.

    Args:
        model: a `WitnessEnsemble`.
        split: rows that it has not learned from.
        vectors: [n, l], of the texts, where they are known.
    """
    parts, network, start = [], model.network, 0
    with evaluating(model):
        for batch in batches_of(model, split):
            end = start + len(batch.target)
            if vectors is not None:
                batch = batch._replace(text_vector=torch.from_numpy(vectors[start:end]).to(model.device))
            opinions, _ = network.opinions(batch)
            parts.append(HeldOut(opinions, batch.target))
            start = end
    return joined(parts)


def batches_of(model: Any, split: TextSplit) -> Iterator[ClassificationBatch]:
    """All rows of a split, in their order."""
    with model.data_side.dataset_for_now(split) as dataset:
        for start in range(0, len(dataset), _ROWS):
            yield on_device(dataset.__getitems__(range(start, min(start + _ROWS, len(dataset)))), model)


def bags_of(model: Any, split: TextSplit) -> NDArray[np.float32]:
    """The bags of a split's texts [n, d]."""
    network = model.network
    with torch.no_grad():
        bags = [network.bag(batch, network.bag_words).cpu() for batch in batches_of(model, split)]
    found: NDArray[np.float32] = torch.cat(bags).numpy()
    return found


def fit_head(
    vectors: NDArray[np.float32], target: NDArray[np.int64], num_classes: int
) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression on vectors of length 1; its regularisation is chosen by three folds.

    Args:
        vectors: float32 [n, l].
        target: int64 [n]; a class may be missing, which then loses everywhere.
        num_classes: C.

    Returns:
        Weight [C, l] and bias [C].
    """
    from sklearn.linear_model import LogisticRegression  # a second, that other models need not pay
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    weight, bias = torch.zeros(num_classes, vectors.shape[1]), torch.full((num_classes,), -10.0)
    present, counts = np.unique(target, return_counts=True)
    if len(present) == 1:
        bias[present] = 10.0
        return weight, bias
    cost = 1.0
    few = np.random.default_rng(0).permutation(len(target))[:_HEAD_ROWS]
    several = np.isin(target[few], present[counts >= 6])
    chosen = few[several]
    if len(np.unique(target[chosen])) > 1 and np.unique(target[chosen], return_counts=True)[1].min() >= 3:
        folds = StratifiedKFold(3)

        def worth(cost: float) -> float:
            machine = LogisticRegression(C=cost, max_iter=200)
            scores = cross_val_score(
                machine, vectors[chosen], target[chosen], cv=folds, scoring="neg_log_loss"
            )
            return float(scores.mean())

        cost = max(HEAD_COSTS, key=worth)
    machine = LogisticRegression(C=cost, max_iter=500).fit(vectors, target)
    weight[present], bias[present] = (torch.from_numpy(part).float() for part in planes_of(machine))
    return weight, bias


class CrossFit:
    """Judges training rows by witnesses that were fitted without them."""

    def __init__(
        self, model: Any, split: TextSplit, folds: int, bags: NDArray[np.float32] | None = None
    ) -> None:
        """Cut the rows into folds.

        Args:
            model: a `WitnessEnsemble` whose own witnesses are fitted.
            split: its training rows.
            folds: how many.
            bags: [n, d], of the rows, where a witness reads them. How rare words are is no label: all rows may tell.
        """
        self.model, self.network, self.split = model, model.network, split
        self.target = label_numbers(split.rows, model.spec.labels)
        self.folds = folds_of(self.target, min(folds, len(self.target)))
        self.texts = split.rows.texts[:]
        self.left_out: list[Any] = []
        if "dense_vote" in self.network.witnesses and self.network.memory is not None:
            self.left_out = self.network.memory.memory.excluded_rows(self.texts, split.rows.ids)
        self.bags = bags

    def judge(self) -> HeldOut:
        """What the witnesses say of the rows, in their order; of all that are new to the model that it started from."""
        order, parts = [], []
        for fold in np.unique(self.folds):
            rows, others = np.flatnonzero(self.folds == fold), np.flatnonzero(self.folds != fold)
            self.model.tell(f"weights: held-out predictions, fold {fold + 1} of {self.folds.max() + 1}")
            parts.append(HeldOut(self._fold(rows, others), torch.from_numpy(self.target[rows])))
            order.append(rows)
        judged = joined(parts).select(np.argsort(np.concatenate(order), kind="stable"))
        return judged.select(np.flatnonzero(self.model.unseen(self.split)))

    def _fold(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, Opinions]:
        """What witnesses that were fitted on `others` say of `rows`."""
        network, options = self.network, self.model.options
        found: dict[str, Opinions] = {}
        if "lexical" in network.witnesses:
            linear = LexicalLinear(options.max_ngram, options.max_letters, network.num_classes)
            linear.fit([self.texts[row] for row in others], self.target[others], options.c)
            found["lexical"] = Scores(linear([self.texts[row] for row in rows]))
        if network.encoder is not None:
            found |= self._frozen(rows, others) if network.is_frozen else self._trained(rows, others)
        if self.bags is not None:
            found["bag"] = self._read(self.bags, rows, others)
        if "lexical_vote" in network.witnesses:
            with self.model.data_side.dataset_for_now(self.split) as dataset:
                batch = dataset.__getitems__(rows.tolist())
            found["lexical_vote"] = Ballots(
                batch.memory_score, batch.memory_mask, batch.memory_target, network.num_classes
            )
        return {name: found[name] for name in network.witnesses}

    def _frozen(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, Opinions]:
        vectors = self.model.vectors_of(self.split)
        found: dict[str, Opinions] = {"encoder": self._read(vectors, rows, others)}
        if "dense_vote" in self.network.witnesses:
            memory = self.network.memory
            found["dense_vote"] = self._votes(memory, vectors[rows], rows)
        return found

    def _read(
        self, vectors: NDArray[np.float32], rows: NDArray[np.int64], others: NDArray[np.int64]
    ) -> Opinions:
        """What a kernel machine that was fitted on `others` says of `rows`; vectors [n, d] are of all rows."""
        machine = KernelMachine(vectors.shape[1], self.network.num_classes)
        machine.fit(vectors[others], self.target[others])
        return Scores(machine(torch.from_numpy(vectors[rows])))

    def _trained(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, Opinions]:
        """An encoder of its own for the fold, trained as long as the best one was."""
        model, network = self.model, self.network
        fresh = model.fresh_network()
        with model.data_side.dataset_for_now(self.split) as dataset, torch.random.fork_rng():
            # Every process trains it by itself, with the same dropout.
            torch.manual_seed(model.data_side.seed)
            train(fresh, dataset, others, model)
        kept, model.network = network, fresh.to(model.device)
        try:
            with model.data_side.dataset_for_now(self.split) as dataset, evaluating(model):
                batches = [
                    on_device(dataset.__getitems__(rows[start : start + _ROWS].tolist()), model)
                    for start in range(0, len(rows), _ROWS)
                ]
                vectors = torch.cat([fresh.encode_texts(batch) for batch in batches])
                found: dict[str, Opinions] = {"encoder": Scores(fresh.classify(vectors).cpu())}
                if "dense_vote" in network.witnesses:
                    memory = None if network.memory is None else network.memory.encoded_by(model.encode)
                    queries = functional.normalize(vectors.float(), dim=1).cpu().numpy()
                    found["dense_vote"] = self._votes(memory, queries, rows)
        finally:
            model.network = kept
        return found

    def _votes(self, memory: Any, queries: NDArray[np.float32], rows: NDArray[np.int64]) -> Opinions:
        network = self.network
        exclude = [self.left_out[row] for row in rows]
        return ballots_of(
            memory, network.memory_target, queries, network.num_memories, network.num_classes, exclude
        )[0]


def train(
    network: WitnessNetwork, dataset: ClassificationDataset, rows: NDArray[np.int64], model: Any
) -> None:
    """Train an encoder on some rows of a data set, for as many epochs as the model's own best one was."""
    freeze(network.to(model.device), model.frozen)
    clip = None if model._trainer is None else model.trainer.gradient_clip_val
    optimizer = model.make_optimizer(parameter_groups(network, model.options.learning_rates))
    for batch in _batches(dataset, rows, model):
        optimizer.zero_grad()
        loss = functional.cross_entropy(network.encoder_logits(batch), batch.target)
        loss.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        if not bool(loss.isfinite()):
            raise InputError(
                "training diverged while the weights were cross-fitted; use a lower learning rate"
            )


def _batches(dataset: ClassificationDataset, rows: NDArray[np.int64], model: Any) -> Iterator[Any]:
    options = model.data_side.options
    lengths = dataset.lengths[rows]
    sampler = LengthBucketSampler(lengths, options.batch_size, training=True, seed=model.data_side.seed)
    for epoch in range(model.encoder_epochs_used):
        sampler.set_epoch(epoch)
        for places in sampler:
            yield on_device(dataset.__getitems__(rows[places].tolist()), model)
