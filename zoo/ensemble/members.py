"""The members of the ensemble, and the references that its table compares them with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.member import Input, Member, Readings, Sizes
from zoo.ensemble.outputs import Outputs, Scores, Votes
from zoo.layers.kernel_machine import KernelMachine
from zoo.layers.tfidf import TfidfLinear, planes_of

#: Weights of errors that a regression chooses from by three folds, and the number of rows to choose on.
_COSTS = (0.3, 1.0, 3.0, 10.0, 30.0)
_COST_ROWS = 3000


class Lexical(Member):
    """A linear classifier of words, n-grams of words and n-grams of letters."""

    name = "lexical"
    title = "lexical: TF-IDF, linear"
    reads: ClassVar[frozenset[Input]] = frozenset({"texts"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.linear, self.c = TfidfLinear(sizes.max_ngram, sizes.max_letters, sizes.num_classes), sizes.c

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        self.linear.fit(readings.texts, target, self.c)

    @override
    def forward(self, readings: Readings) -> Scores:
        return Scores(self.linear(readings.texts))


class Encoder(Member):
    """The classifier that was trained with the encoder; or, on a frozen encoder, a kernel machine."""

    name = "encoder"
    title = "encoder"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        is_frozen = not sizes.trains_encoder
        machine = KernelMachine(sizes.vector_size, sizes.num_classes, sizes.ridge)
        self.machine = machine if is_frozen else None

    @property
    @override
    def fitted_on(self) -> frozenset[Input]:
        return frozenset() if self.machine is None else self.reads

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        if self.machine is not None:
            assert readings.vectors is not None
            self.machine.fit(readings.vectors.numpy(), target)

    @override
    def forward(self, readings: Readings) -> Scores:
        if self.machine is None:
            assert readings.logits is not None
            return Scores(readings.logits)
        assert readings.vectors is not None
        return Scores(self.machine(readings.vectors))


class Bag(Member):
    """A kernel machine on the weighted mean of the words' pre-trained vectors."""

    name = "bag"
    title = "bag of word vectors, kernel"
    reads: ClassVar[frozenset[Input]] = frozenset({"bags"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.machine = KernelMachine(sizes.bag_size, sizes.num_classes, sizes.ridge)

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        assert readings.bags is not None
        self.machine.fit(readings.bags.numpy(), target)

    @override
    def forward(self, readings: Readings) -> Scores:
        assert readings.bags is not None
        return Scores(self.machine(readings.bags))


class Vote(Member):
    """Base of the members that have nothing to fit: memories vote for their own classes."""

    @property
    @override
    def fitted_on(self) -> frozenset[Input]:
        return frozenset()

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        pass


class LexicalVote(Vote):
    """The memories that the retriever returned."""

    name = "lexical_vote"
    title = "vote of lexical neighbors"
    reads: ClassVar[frozenset[Input]] = frozenset({"neighbors"})

    @override
    def forward(self, readings: Readings) -> Votes:
        assert readings.neighbors is not None
        return readings.neighbors


class DenseVote(Vote):
    """The memories whose vectors are nearest to the text's; no votes without a memory."""

    name = "dense_vote"
    title = "vote of dense neighbors"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors", "memory"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.num_memories, self.num_classes = sizes.num_memories, sizes.num_classes
        # The memory is in no checkpoint.
        self.memory: EncodedMemory | None = None
        self.target = torch.zeros(0, dtype=torch.int64)

    @override
    def search(self, memory: EncodedMemory | None, target: Tensor) -> None:
        self.memory, self.target = memory, target

    @override
    def forward(self, readings: Readings) -> Votes:
        assert readings.vectors is not None
        vectors = readings.vectors.float()
        shape = len(vectors), self.num_memories
        if self.memory is None:
            nothing = vectors.new_zeros(shape)
            return Votes(nothing, nothing > 0, nothing.long(), self.num_classes, np.full(shape, -1))
        queries = functional.normalize(vectors, dim=1).cpu().numpy()
        hits = self.memory.search(queries, self.num_memories, readings.excluded)
        rows = torch.from_numpy(hits.rows.astype(np.int64))
        # Row -1 (no memory) reads the appended -1.
        classes = torch.cat([self.target, self.target.new_tensor([-1])])[rows]
        score, mask, classes = (
            part.to(vectors.device) for part in (torch.from_numpy(hits.scores), rows >= 0, classes)
        )
        return Votes(score, mask, classes, self.num_classes, rows.numpy())


class Majority(Member):
    """A reference: the most frequent class."""

    name = "majority"
    title = "majority class"
    reads: ClassVar[frozenset[Input]] = frozenset()

    counts: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.register_buffer("counts", torch.zeros(sizes.num_classes))

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        self.counts.copy_(torch.from_numpy(np.bincount(target, minlength=len(self.counts))))

    @override
    def forward(self, readings: Readings) -> Scores:
        return Scores(self.counts.expand(len(readings.texts), -1))


class SupportVectors(Lexical):
    """A reference: the usual support vector machine of words and pairs of words."""

    name = "svm"
    title = "TF-IDF (1, 2) + linear SVM"

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes._replace(max_ngram=2, max_letters=0, c=1.0))


class Regression(Member):
    """A reference: multinomial logistic regression on the vectors of a frozen encoder."""

    name = "regression"
    title = "logistic regression on the transformer"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.linear = nn.Linear(sizes.vector_size, sizes.num_classes).requires_grad_(False)

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        assert readings.vectors is not None
        weight, bias = fit_regression(readings.vectors.numpy(), target, self.linear.out_features)
        self.linear.weight.copy_(weight)
        self.linear.bias.copy_(bias)

    @override
    def forward(self, readings: Readings) -> Scores:
        assert readings.vectors is not None
        vectors = functional.normalize(readings.vectors.float(), dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            return Scores(self.linear(vectors))


#: Members by name; those that read texts precede the votes.
MEMBERS: dict[str, type[Member]] = {
    member.name: member for member in (Lexical, Encoder, Bag, LexicalVote, DenseVote)
}

REFERENCES: dict[str, type[Member]] = {
    member.name: member for member in (Majority, SupportVectors, Regression)
}


class Members(nn.ModuleDict):
    """Members or references by name, which are fitted, and classify, together."""

    def __init__(self, names: Iterable[str], sizes: Sizes) -> None:
        kinds = REFERENCES | MEMBERS
        super().__init__({name: kinds[name](sizes) for name in names})

    @property
    def by_name(self) -> dict[str, Member]:
        """Name -> member."""
        return cast("dict[str, Member]", dict(self.items()))

    @property
    def reads(self) -> set[Input]:
        """The inputs that they read."""
        return {each for member in self.by_name.values() for each in member.reads}

    @property
    def fitted_on(self) -> set[Input]:
        """The inputs that they are fitted on."""
        return {each for member in self.by_name.values() for each in member.fitted_on}

    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        """Fit them to n training texts; see `Member.fit`."""
        for member in self.by_name.values():
            member.fit(readings, target)

    def search(self, memory: EncodedMemory | None, target: Tensor | None) -> None:
        """Search a memory by vectors, whose rows have these classes (negative: none; C and above: new ones)."""
        classes = torch.zeros(0, dtype=torch.int64) if target is None else target
        for member in self.by_name.values():
            member.search(memory, classes)

    def classify(self, readings: Readings, names: Iterable[str] | None = None) -> dict[str, Outputs]:
        """The outputs of some of them, or all."""
        members = self.by_name
        return {name: members[name](readings) for name in (members if names is None else names)}


def titles() -> dict[str, str]:
    """Name -> name in tables, of all members and references."""
    return {name: member.title for name, member in (REFERENCES | MEMBERS).items()}


def fit_regression(
    vectors: NDArray[np.float32], target: NDArray[np.int64], num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return weight [C, l] and bias [C] of a regression on vectors [n, l] of length 1; a missing class never wins."""
    from sklearn.linear_model import LogisticRegression

    weight, bias = torch.zeros(num_classes, vectors.shape[1]), torch.full((num_classes,), -10.0)
    present = np.unique(target)
    if len(present) == 1:
        bias[present] = 10.0
        return weight, bias
    classifier = LogisticRegression(C=_best_cost(vectors, target), max_iter=500).fit(vectors, target)
    weight[present], bias[present] = (torch.from_numpy(part).float() for part in planes_of(classifier))
    return weight, bias


def _best_cost(vectors: NDArray[np.float32], target: NDArray[np.int64]) -> float:
    """The weight of errors with the highest likelihood on held-out folds; 1 where rows are too few for folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    present, counts = np.unique(target, return_counts=True)
    few = np.random.default_rng(0).permutation(len(target))[:_COST_ROWS]
    rows = few[np.isin(target[few], present[counts >= 6])]
    sizes = np.unique(target[rows], return_counts=True)[1]
    if len(sizes) < 2 or sizes.min() < 3:
        return 1.0
    model, folds = LogisticRegression(max_iter=200), StratifiedKFold(3)
    search = GridSearchCV(model, {"C": _COSTS}, scoring="neg_log_loss", cv=folds, refit=False)
    return float(search.fit(vectors[rows], target[rows]).best_params_["C"])
