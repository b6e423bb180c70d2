"""The members of the ensemble, and the references that its table compares them with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from zoo.ensemble.member import Input, Member, Readings, Sizes
from zoo.ensemble.outputs import Outputs, Scores, Votes
from zoo.ensemble.regression import Regression, SelfTrained
from zoo.layers.kernel_machine import KernelMachine
from zoo.layers.tfidf import Planes, SparseLinear, naive_bayes, support_vectors

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class Lexical(Member):
    """A linear support vector machine of words, n-grams of words and n-grams of letters."""

    name = "lexical"
    title = "linear SVM of words and letters"
    reads: ClassVar[frozenset[Input]] = frozenset({"ngrams"})
    #: the kinds of n-grams that it reads, words first.
    kinds: ClassVar[slice] = slice(None)

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.linear = SparseLinear(sizes.num_classes)

    def fit_planes(self, vectors: csr_matrix, target: NDArray[np.int64]) -> Planes:
        """The planes of the classes that have texts."""
        return support_vectors(vectors, target, self.sizes.c)

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        self.linear.fit(self._vectors(readings), target, self.fit_planes)

    @override
    def forward(self, readings: Readings) -> Scores:
        return Scores(self.linear(self._vectors(readings)))

    def _vectors(self, readings: Readings) -> csr_matrix:
        from scipy.sparse import hstack

        assert readings.ngrams is not None
        return hstack(readings.ngrams[self.kinds], format="csr", dtype=np.float32)


class NaiveBayes(Lexical):
    """Complement naive Bayes of the same n-grams."""

    name = "naive_bayes"
    title = "naive Bayes of words and letters"

    @override
    def fit_planes(self, vectors: csr_matrix, target: NDArray[np.int64]) -> Planes:
        return naive_bayes(vectors, target)


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
        assert readings.vectors is not None
        self.machine.fit(readings.vectors.numpy(), target)

    @override
    def forward(self, readings: Readings) -> Scores:
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


class LexicalVote(Member):
    """The memories that the retriever returned vote for their own classes."""

    name = "lexical_vote"
    title = "vote of lexical neighbors"
    reads: ClassVar[frozenset[Input]] = frozenset({"neighbors"})
    has_fit = False

    @override
    def forward(self, readings: Readings) -> Votes:
        assert readings.neighbors is not None
        return readings.neighbors


class DenseVote(Member):
    """The memories whose vectors are nearest to the text's vote for their own classes; none without a memory."""

    name = "dense_vote"
    title = "vote of dense neighbors"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors", "memory"})
    has_fit = False

    @override
    def forward(self, readings: Readings) -> Votes:
        assert readings.vectors is not None
        vectors, sizes = readings.vectors.float(), self.sizes
        if readings.memory is None:
            nothing = vectors.new_zeros(len(vectors), sizes.num_memories)
            none = nothing.long() - 1
            return Votes(nothing, nothing > 0, none, sizes.num_classes, none)
        queries = functional.normalize(vectors, dim=1).cpu().numpy()
        hits = readings.memory.encoded.search(queries, sizes.num_memories, readings.excluded)
        scores, rows = torch.from_numpy(hits.scores), torch.from_numpy(hits.rows.astype(np.int64))
        # Row -1 (no memory) reads the appended -1.
        classes = functional.pad(readings.memory.target, (0, 1), value=-1)[rows]
        return Votes(scores, rows >= 0, classes, sizes.num_classes, rows).to(vectors.device)


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


class WordSVM(Lexical):
    """A reference: the usual support vector machine of words and pairs of words."""

    name = "svm"
    title = "linear SVM of words"
    kinds: ClassVar[slice] = slice(0, 1)


#: Members by name; those that read texts precede the votes.
MEMBERS: dict[str, type[Member]] = {
    member.name: member for member in (Lexical, NaiveBayes, Encoder, SelfTrained, Bag, LexicalVote, DenseVote)
}

REFERENCES: dict[str, type[Member]] = {member.name: member for member in (Majority, WordSVM, Regression)}


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
        return self.inputs_of(self)

    @property
    def fitted_on(self) -> set[Input]:
        """The inputs that they are fitted on."""
        fitted = {name: member for name, member in self.by_name.items() if member.has_fit}
        return self.inputs_of(fitted).union(*(member.learns_from for member in fitted.values()))

    def inputs_of(self, names: Iterable[str]) -> set[Input]:
        """The inputs that some of them read."""
        return {each for name in names for each in self.by_name[name].reads}

    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        """Fit them to n training texts; see `Member.fit`."""
        for member in self.by_name.values():
            member.fit(readings, target)

    def classify(self, readings: Readings, names: Iterable[str] | None = None) -> dict[str, Outputs]:
        """The outputs of some of them, or all."""
        members = self.by_name
        return {name: members[name](readings) for name in (members if names is None else names)}


def titles() -> dict[str, str]:
    """Name -> name in tables, of all members and references."""
    return {name: member.title for name, member in (REFERENCES | MEMBERS).items()}
