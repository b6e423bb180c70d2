"""The members of the ensemble, and the references that its table compares them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from zoo.ensemble.member import Input, Member, Pipeline, Readings, Sizes
from zoo.ensemble.outputs import Outputs, Scores, Votes
from zoo.layers import tfidf
from zoo.layers.kernel_machine import KernelMachine
from zoo.tasks.classification.guides import UNLABELLED
from zoo.tasks.classification.multilabel import row_scores

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

#: The pipelines of the reference: n-grams, and classifiers with weights of errors as they are often set.
_KINDS = ("words and letters", "words", "letters")
_CLASSIFIERS = {
    "linear SVM": partial(tfidf.support_vectors, c=0.5),
    "logistic regression": partial(tfidf.logistic_regression, c=10.0),
}
#: Labels of sets, drawn at random, that its pipeline is chosen for.
_CHOOSING_LABELS = 100
#: Weight of errors of a regression on vectors, as it is often set.
COST = 10.0
#: Those of labelled rows among texts without labels to choose from, by parts of the rows, if a class has enough.
_COSTS, _PARTS, _CHOOSING_ROWS = (10.0, 5.0, 3.0), 5, 5
#: Labelled rows that the member learns from: with more of them, it brings nothing.
_ROWS = 3000
#: Rows a class up to which the names of classes help n-grams.
NAMED_ROWS = 50
#: Times that texts without labels are classified and learned from, and that probabilities are scaled to shares.
_ROUNDS, _SCALINGS = 5, 20
#: Labelled rows of a class that say as much about the shares of texts without labels as a first guess of these.
_SHARE_ROWS = 3


class Lexical(Member):
    """A linear support vector machine of words, n-grams of words and n-grams of letters."""

    name = "lexical"
    title = "linear SVM of words and letters"
    reads: ClassVar[frozenset[Input]] = frozenset({"ngrams"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.linear = tfidf.SparseLinear(sizes.num_classes)

    def fit_planes(self, vectors: csr_matrix, target: NDArray[np.int64]) -> tfidf.Planes:
        """The planes of the classes that have texts."""
        return tfidf.support_vectors(vectors, target, self.sizes.c)

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        self.linear.fit(self._vectors(readings), target, self.fit_planes)

    @override
    def forward(self, readings: Readings) -> Scores:
        return Scores(self.linear(self._vectors(readings)), self.sizes.multilabel)

    def _vectors(self, readings: Readings) -> csr_matrix:
        from scipy.sparse import hstack

        assert readings.ngrams is not None
        return hstack(readings.ngrams, format="csr", dtype=np.float32)


class Named(Lexical):
    """The same, which learns from the classes' own words as from rows; its scores are 0 where there are none."""

    name = "named"
    title = "linear SVM of words and letters with class names"
    learns_from: ClassVar[frozenset[Input]] = frozenset({"guides"})

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        from scipy.sparse import vstack

        self.linear.set_extra_state({})
        guides = readings.guides
        if guides is None or guides.ngrams is None:
            return
        vectors = [self._vectors(readings), self._vectors(Readings([], ngrams=guides.ngrams))]
        of_words = guides.sets(self.sizes.num_classes) if self.sizes.multilabel else guides.target
        of_words = of_words[guides.target != UNLABELLED]
        self.linear.fit(vstack(vectors, format="csr"), np.concatenate([target, of_words]), self.fit_planes)


class NaiveBayes(Lexical):
    """Complement naive Bayes of the same n-grams."""

    name = "naive_bayes"
    title = "naive Bayes of words and letters"

    @override
    def fit_planes(self, vectors: csr_matrix, target: NDArray[np.int64]) -> tfidf.Planes:
        return tfidf.naive_bayes(vectors, target, self.sizes.multilabel)


class Encoder(Member):
    """A kernel machine on the vectors of a pre-trained encoder."""

    name = "encoder"
    title = "encoder"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.machine = KernelMachine(sizes.vector_size, sizes.num_classes, sizes.ridge)

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        self.machine.fit(self._vectors(readings).numpy(), target)

    @override
    def forward(self, readings: Readings) -> Scores:
        return Scores(self.machine(self._vectors(readings)), self.sizes.multilabel)

    def _vectors(self, readings: Readings) -> Tensor:
        assert readings.vectors is not None
        return readings.vectors


class Bag(Encoder):
    """A kernel machine on the weighted mean of the words' pre-trained vectors."""

    name = "bag"
    title = "bag of word vectors, kernel"
    reads: ClassVar[frozenset[Input]] = frozenset({"bags"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes._replace(vector_size=sizes.bag_size))

    @override
    def _vectors(self, readings: Readings) -> Tensor:
        assert readings.bags is not None
        return readings.bags


class LexicalVote(Member):
    """The memories that the retriever returned vote for their own classes."""

    name = "lexical_vote"
    title = "vote of lexical neighbors"
    reads: ClassVar[frozenset[Input]] = frozenset({"neighbors"})

    @override
    def forward(self, readings: Readings) -> Votes:
        assert readings.neighbors is not None
        # A sum over the words that are shared, which are fewer, the longer a text is.
        words = torch.tensor([max(1, len(text.split())) for text in readings.texts])
        score = readings.neighbors.score
        return replace(readings.neighbors, standard=score / words.sqrt()[:, None].to(score.device))


class DenseVote(Member):
    """The memories whose vectors are nearest to the text's vote for their own classes; none without a memory."""

    name = "dense_vote"
    title = "vote of dense neighbors"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors", "memory"})

    @override
    def forward(self, readings: Readings) -> Votes:
        assert readings.vectors is not None
        vectors, sizes = readings.vectors.float(), self.sizes
        if readings.memory is None:
            nothing = vectors.new_zeros(len(vectors), sizes.num_memories)
            none = nothing.long() - 1
            classes = none[:, :, None] if sizes.multilabel else none
            return Votes(nothing, nothing > 0, classes, sizes.num_classes, none, nothing)
        queries = functional.normalize(vectors, dim=1).cpu().numpy()
        hits = readings.memory.encoded.search(queries, sizes.num_memories, readings.excluded)
        scores, rows = torch.from_numpy(hits.scores), torch.from_numpy(hits.rows.astype(np.int64))
        # Row -1 (no memory) reads the appended -1.
        target = readings.memory.target
        classes = torch.cat([target, target.new_full((1, *target.shape[1:]), -1)])[rows]
        mean, deviation = readings.memory.encoded.spread
        standard = (scores - mean) / deviation
        return Votes(scores, rows >= 0, classes, sizes.num_classes, rows, standard).to(vectors.device)


class LabelCounts(Member):
    """A reference: the most frequent class; of sets, a member: how frequent each label is, which needs no text."""

    name = "majority"
    title = "majority class"
    reads: ClassVar[frozenset[Input]] = frozenset()

    counts: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.register_buffer("counts", torch.zeros(sizes.num_classes))

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        if self.sizes.multilabel:  # the odds of each label, as if one of two further texts had it
            target = target.sum(axis=0)
            self.counts.copy_(torch.from_numpy(np.log((target + 0.5) / (len(readings.texts) - target + 0.5))))
        else:
            self.counts.copy_(torch.from_numpy(np.bincount(target, minlength=len(self.counts))))

    @override
    def forward(self, readings: Readings) -> Scores:
        return Scores(self.counts.expand(len(readings.texts), -1), self.sizes.multilabel)


class BestOfSix(Lexical):
    """A reference: the best of six usual pipelines of scikit-learn on a fifth of the rows, fitted again to all rows.

    A linear support vector machine or logistic regression classifies TF-IDF vectors of words, of letters, or of both.
    The columns of n-grams that a pipeline does not read are empty when it is fitted.
    """

    name = "six"
    title = "best of six lines of scikit-learn"
    further = 0.2

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        pipeline = self.sizes.pipeline or self._best(readings, target)
        self.chosen = {"pipeline": pipeline}
        self._fit(self.linear, pipeline, readings, target)

    def _best(self, readings: Readings, target: NDArray[np.int64]) -> Pipeline:
        held_out, others = np.split(np.random.default_rng(0).permutation(len(target)), [len(target) // 5])
        learned, rows, right = readings.select(others), readings.select(held_out), dict[Pipeline, float]()
        if self.sizes.multilabel:
            target = target[:, np.random.default_rng(0).permutation(target.shape[1])[:_CHOOSING_LABELS]]
        for pipeline in product(_KINDS, _CLASSIFIERS):
            linear = tfidf.SparseLinear(self.sizes.num_classes)
            self._fit(linear, pipeline, learned, target[others])
            scores = linear(self._vectors(rows))
            predicted = (scores > 0).long() if self.sizes.multilabel else scores.argmax(dim=1)
            right[pipeline] = float(row_scores(predicted, torch.from_numpy(target[held_out])).sum())
        return max(right, key=lambda pipeline: right[pipeline])

    def _fit(
        self, linear: tfidf.SparseLinear, pipeline: Pipeline, readings: Readings, target: NDArray[np.int64]
    ) -> None:
        from scipy.sparse import csr_matrix

        kinds, classifier = pipeline
        ngrams = [
            part if kind in kinds else csr_matrix(part.shape)
            for kind, part in zip(("words", "letters"), readings.ngrams or [], strict=True)
        ]
        linear.fit(self._vectors(readings._replace(ngrams=ngrams)), target, _CLASSIFIERS[classifier])


class Regression(Member):
    """A reference: multinomial logistic regression on the vectors of an encoder as it was published."""

    name = "regression"
    title = "logistic regression on the transformer as published"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors", "published"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.linear = nn.Linear(sizes.vector_size, sizes.num_classes).requires_grad_(False)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        from sklearn.linear_model import LogisticRegression

        vectors, present = self._vectors(readings).numpy(), np.unique(target)
        if self.sizes.multilabel:
            self.fit_labels(vectors, target)
        elif len(present) > 1:
            self.use_planes(LogisticRegression(C=COST, max_iter=500).fit(vectors, target))
        else:
            self.linear.weight.zero_()
            self.linear.bias.fill_(-10.0)[present] = 10.0

    def fit_labels(
        self, vectors: NDArray[np.float32], sets: NDArray[np.int64], weight: NDArray[np.float64] | None = None
    ) -> None:
        """Fit a regression for each label to vectors [n, l] of sets [n, C], with weights [n] of their errors."""
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=COST, max_iter=500)
        fitted = tfidf.planes_by_label(lambda *rows: tfidf.planes_of(model.fit(*rows, weight)), vectors, sets)
        for part, values in zip((self.linear.weight, self.linear.bias), fitted, strict=True):
            part.copy_(torch.from_numpy(values))

    def use_planes(self, model: LogisticRegression) -> None:
        """Take the planes of a regression; a class that it has not seen never wins."""
        self.linear.weight.zero_()
        self.linear.bias.fill_(-10.0)
        weight, bias = (torch.from_numpy(part).to(self.linear.weight) for part in tfidf.planes_of(model))
        self.linear.weight[model.classes_], self.linear.bias[model.classes_] = weight, bias

    def _vectors(self, readings: Readings) -> Tensor:
        is_tuned = "published" in self.reads and readings.published is not None
        vectors = readings.published if is_tuned else readings.vectors
        assert vectors is not None
        return vectors

    @override
    def forward(self, readings: Readings) -> Scores:
        vectors = functional.normalize(self._vectors(readings).float(), dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            return Scores(self.linear(vectors), self.sizes.multilabel)


class SelfTrained(Regression):
    """Logistic regression on the vectors of labelled rows, of the classes' own words, and of texts without labels.

    Texts without labels are classified, then learned from with the most probable class, five times (self-training:
    Scudder, "Probability of error of some adaptive pattern-recognition machines", 1965; Lee, "Pseudo-Label", ICML
    workshop 2013). Their probabilities are scaled to shares of the classes between those of the labelled rows and those
    that they have (distribution alignment: Berthelot et al., "ReMixMatch", ICLR 2020, Section 3.1): labels are often as
    many for each class, but guesses by two rows of a class say less. All of them weigh as much as the labelled rows
    together, or more, where rows that were left out are then more likely. Its scores are 0 where there are neither.
    """

    name = "self_trained"
    title = "regression with class names and unlabelled texts"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors"})
    learns_from: ClassVar[frozenset[Input]] = frozenset({"guides"})

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        guides = readings.guides
        if guides is None or guides.vectors is None:
            return
        rows = np.random.default_rng(0).permutation(len(target))[: 0 if guides.stand_alone else _ROWS]
        target = target[rows]
        directions = functional.normalize(guides.vectors.float(), dim=1).numpy()
        is_known = guides.target != UNLABELLED
        vectors = functional.normalize(self._vectors(readings)[rows].float(), dim=1).numpy()
        named, others = directions[is_known], directions[~is_known]
        if self.sizes.multilabel:
            vectors = np.concatenate([vectors, named])
            sets = np.concatenate([target, guides.sets(target.shape[1])[is_known]])
            self.fit_labels(vectors, sets)
            if len(others):
                guessed = guess_sets(self._classify(others), target)
                vectors, weight = _with_others(vectors, others)
                self.fit_labels(vectors, np.concatenate([sets, guessed]), weight)
            return

        def fit_to(rows: NDArray[np.int64], cost: float) -> None:
            classes = np.concatenate([target[rows], guides.target[is_known]])
            self.linear.weight.zero_()
            self.linear.bias.zero_()
            if len(np.unique(classes)) > 1:
                counts = np.bincount(target[rows], minlength=self.sizes.num_classes) + 1.0
                learned = np.concatenate([vectors[rows], named])
                weights = "balanced" if guides.stand_alone else None
                self.use_planes(_self_trained(learned, classes, others, counts, cost, weights))

        cost, self.further = self.sizes.cost or COST, 1.0
        if self.sizes.cost is None and len(others) and len(target) >= _CHOOSING_ROWS * self.sizes.num_classes:
            cost, self.further = self._best_cost(vectors, target, fit_to), 1 / (1 + _PARTS * len(_COSTS))
        self.chosen = {"cost": cost}
        fit_to(np.arange(len(target)), cost)

    def _classify(self, vectors: NDArray[np.float32]) -> Tensor:
        return self.linear(torch.from_numpy(vectors).to(self.linear.weight.device)).cpu()

    def _best_cost(
        self, vectors: NDArray[np.float32], target: NDArray[np.int64], fit_to: Callable[..., None]
    ) -> float:
        """The cost with which n rows, with vectors [n, l], are the most likely where a fit lacks them."""
        from sklearn.model_selection import KFold

        classes, losses = torch.from_numpy(target), dict[float, float]()
        for cost in _COSTS:
            scores = torch.zeros(len(target), self.sizes.num_classes)
            for learned, held_out in KFold(_PARTS, shuffle=True, random_state=0).split(vectors):
                fit_to(learned, cost)
                scores[held_out] = self._classify(vectors[held_out])
            output = Scores(scores)
            probabilities = output.log_probabilities(output.best_calibration(classes))
            losses[cost] = float(functional.nll_loss(probabilities, classes))
        return min(losses, key=losses.__getitem__)


#: Members by name; those that read texts precede the votes.
MEMBERS: dict[str, type[Member]] = {
    member.name: member
    for member in (Lexical, Named, NaiveBayes, Encoder, SelfTrained, Bag, LexicalVote, DenseVote)
}

REFERENCES: dict[str, type[Member]] = {member.name: member for member in (LabelCounts, BestOfSix, Regression)}


def is_reference(name: str, multilabel: bool) -> bool:
    """Return whether a member is one that the table compares with."""
    return name in REFERENCES and not (multilabel and name == "majority")


class Members(nn.ModuleDict):
    """Members or references by name, which are fitted, and classify, together."""

    def __init__(self, names: Iterable[str], sizes: Sizes) -> None:
        kinds = REFERENCES | MEMBERS
        super().__init__({name: kinds[name](sizes) for name in names})

    @property
    def by_name(self) -> dict[str, Member]:
        """Name -> member."""
        return cast("dict[str, Member]", dict(self.items()))

    def fitted_on(self, names: Iterable[str]) -> set[Input]:
        """The inputs that some of them are fitted on."""
        fitted = [member for name in names if (member := self.by_name[name]).has_fit]
        return {each for member in fitted for each in member.reads | member.learns_from}

    def inputs_of(self, names: Iterable[str]) -> set[Input]:
        """The inputs that some of them read."""
        return {each for name in names for each in self.by_name[name].reads}

    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        """Fit them to n training texts; see `Member.fit`."""
        for member in self.by_name.values():
            member.fit(readings, target)

    def classify(self, readings: Readings, names: Iterable[str]) -> dict[str, Outputs]:
        """The outputs of some of them."""
        return {name: self[name](readings) for name in names}


def titles() -> dict[str, str]:
    """Name -> name in tables, of all members and references."""
    return {name: member.title for name, member in (REFERENCES | MEMBERS).items()}


def _self_trained(
    vectors: NDArray[np.float32],
    classes: NDArray[np.int64],
    others: NDArray[np.float32],
    counts: NDArray[np.floating],
    cost: float,
    class_weight: str | None,
) -> LogisticRegression:
    """A regression on vectors [n, l] with classes [n], and on others [m, l] with those that it gives them."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=cost, max_iter=300, warm_start=True, class_weight=class_weight)
    model.fit(vectors, classes)
    if len(others):
        vectors, weight = _with_others(vectors, others, COST / cost)
        for _ in range(_ROUNDS):
            guessed = _guess(model, others, counts[model.classes_])
            model.fit(vectors, np.append(classes, guessed), weight)
    return model


def _with_others(
    vectors: NDArray[np.float32], others: NDArray[np.float32], share: float = 1.0
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Vectors [n, l] and others [m, l], with weights by which the others weigh as much together, times the share."""
    weight = np.append(np.ones(len(vectors)), np.full(len(others), share * len(vectors) / len(others)))
    return np.concatenate([vectors, others]), weight


def guess_sets(scores: Tensor, sets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sets of texts by scores of labels [m, C]: each label has the share of the texts that it has of sets [n, C]."""
    rank = (-scores).argsort(dim=0).argsort(dim=0).numpy()
    return (rank < np.rint(sets.mean(axis=0) * len(rank))).astype(np.int64)


def _guess(
    model: LogisticRegression, vectors: NDArray[np.float32], counts: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Classes [m] of texts by a regression, with shares between those of the labels, counts [C], and its own."""
    probabilities = model.predict_proba(vectors)
    trust = min(1.0, _SHARE_ROWS * len(counts) / counts.sum())
    shares = trust * counts / counts.sum() + (1 - trust) * probabilities.mean(axis=0)
    for _ in range(_SCALINGS):
        probabilities *= shares / np.maximum(probabilities.mean(axis=0), 1e-9)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
    return model.classes_[probabilities.argmax(axis=1)]
