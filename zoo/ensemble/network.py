"""The witnesses side by side in one network, and what each of them adds to a class's score."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.bag import BagOfVectors
from zoo.ensemble.kernel import KernelMachine
from zoo.ensemble.lexical import LexicalLinear
from zoo.ensemble.weights import Ballots, Opinions, Scores, Trust
from zoo.layers.encoders import BiLSTMEncoder, TransformerEncoder, WordEncoder
from zoo.layers.vote import count_votes

#: The witnesses by their names: what the text says, and what its memories say.
TEXT_WITNESSES = ("lexical", "encoder", "bag")
VOTES = ("lexical_vote", "dense_vote")
#: The score of a class that is not there.
NEVER = -1e4


class FoundMemories(NamedTuple):
    """Memories that the network found by itself, beside those of the batch."""

    #: int64 [B, K], rows of the memory, -1 where there are fewer than K.
    rows: NDArray[np.int64]
    #: float32 [B, K], retrieval scores.
    score: Tensor
    #: float32 [B, K], what each counted for.
    weight: Tensor


class EnsembleOutput(NamedTuple):
    """A prediction and its evidence; the first two are those of every classifier."""

    #: float32 [B, C].
    logits: Tensor
    #: float32 [B, K]: what each memory of the batch counted for, all memories of a text together 1; 0 where there
    #: is none.
    memory_weight: Tensor
    #: of networks that read their memories several times; see `ClassificationOutput`.
    hop_weight: Tensor | None = None
    #: witness -> float32 [B, C]; they add up to the logits.
    contributions: Mapping[str, Tensor] = MappingProxyType({})
    #: None where no memory is searched by vectors.
    found: FoundMemories | None = None
    #: row of the answer's table -> float32 [B, C]; empty unless they were asked for.
    said: Mapping[str, Tensor] = MappingProxyType({})


class WitnessNetwork(nn.Module):
    """Witnesses and their weights; while the encoder learns, the encoder alone."""

    def __init__(
        self,
        spec: ClassificationSpec,
        witnesses: tuple[str, ...],
        encoder: BiLSTMEncoder | TransformerEncoder | None,
        words: WordEncoder | None,
        options: Any,
    ) -> None:
        """Make the parts.

        Args:
            spec: the labels.
            witnesses: those that can say something about this data.
            encoder: of texts; None where no witness needs it.
            words: the vectors of words that a bag is made of; None where no witness needs them.
            options: of `WitnessEnsemble`.
        """
        super().__init__()
        self.witnesses, self.num_classes, self.num_memories = witnesses, len(spec.labels), spec.num_memories
        #: whether the encoder is taken as it is, and only a classifier on top of it is fitted.
        self.is_frozen = options.transformer is not None and not options.train_transformer
        self.encoder = encoder
        if encoder is not None:
            self.classifier = nn.Linear(encoder.size, self.num_classes)
        if encoder is not None and self.is_frozen:
            #: what reads a frozen encoder; the classifier is then a reference.
            self.machine = KernelMachine(encoder.size, self.num_classes)
        if words is not None:
            if encoder is None:
                self.words = words
            self.bag = BagOfVectors(spec.num_words)
            self.bag_machine = KernelMachine(words.table.shape[1], self.num_classes)
        if encoder is None or self.is_frozen:
            self.requires_grad_(False)
            # Nothing learns, but DistributedDataParallel refuses a module in which nothing could.
            self.unused = nn.Parameter(torch.zeros(()))
            self.train()
        self.lexical = LexicalLinear(options.max_ngram, options.max_letters, self.num_classes)
        #: the usual reference, for the answer's table.
        self.svm = LexicalLinear(max_ngram=2, max_letters=0, num_classes=self.num_classes)
        self.trust: Trust | None = None
        #: training rows of each class.
        self.counts: list[int] = []
        #: the memory that is searched by vectors and its rows' classes; it is in no checkpoint.
        self.memory: EncodedMemory | None = None
        self.memory_target = torch.zeros(0, dtype=torch.int64)
        #: classes behind the C that only the memory knows: how much more often each would be found if it had as many
        #: rows as the others.
        self.new_classes = torch.ones(0)
        #: a text does not find copies of itself there: on where texts come from the table of the memory.
        self.excludes_duplicates = False
        #: say what every row of the answer's table says, even what has no weight.
        self.says_all = False

    def train(self, mode: bool = True) -> WitnessNetwork:
        """A frozen encoder has no training mode: its encodings are the same every time."""
        super().train(mode)
        if self.is_frozen and self.encoder is not None:
            self.encoder.eval()
        return self

    @property
    def bag_words(self) -> WordEncoder:
        """The vectors of words that a bag is made of."""
        words: Any = self.words if self.encoder is None else self.encoder.words
        found: WordEncoder = words
        return found

    @property
    def num_new(self) -> int:
        """N, classes that only the memory knows."""
        return len(self.new_classes)

    def count_new(self, target: NDArray[np.int64] | None, num_new: int) -> None:
        """Expect new classes in the memory.

        Args:
            target: [n], the classes of the memory's rows; None = they are not at hand.
            num_new: N.
        """
        counts = np.bincount(np.zeros(0, np.int64) if target is None else target[target >= 0], minlength=1)
        counts = np.append(counts, np.zeros(max(0, self.num_classes + num_new - len(counts))))
        old, new = counts[: self.num_classes].mean(), counts[self.num_classes :]
        # A class of few rows is rarely found. Its vote counts for more, by the root of what it lacks: all of it would
        # take too many texts away from the classes that training knew.
        rarity = np.sqrt(np.maximum(old, 1) / np.maximum(new, 1)) if target is not None else np.ones(num_new)
        self.new_classes = torch.from_numpy(np.maximum(rarity, 1.0)).float()

    def use_memory(self, memory: EncodedMemory | None, target: NDArray[np.int64]) -> None:
        """Search this memory, whose rows have these classes [n] (negative: none; C and more: new ones)."""
        self.memory, self.memory_target = memory, torch.from_numpy(target)

    def forward(self, batch: ClassificationBatch) -> EnsembleOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes."""
        if self.trust is None:
            return EnsembleOutput(self.encoder_logits(batch), torch.zeros_like(batch.memory_score))
        opinions, rows = self.opinions(batch)
        shapes, weights = self.trust.shapes, self.trust.weights["all"]
        logs = {
            name: said.log_probabilities(shapes[name]) for name, said in opinions.items() if name in shapes
        }
        contributions = {
            name: weights[name] * (log - log.mean(dim=1, keepdim=True))
            for name, log in logs.items()
            if weights[name]
        }
        # Where no witness is worth anything, all classes are equal.
        nothing = torch.zeros(len(batch.row), self.num_classes, device=batch.row.device)
        logits = sum(contributions.values(), start=nothing)
        if self.num_new:
            logits, contributions = self._with_new_classes(logits, contributions, opinions)
        memory_weight, found = self._memory_weights(opinions, rows, batch)
        said = {}
        if self.says_all:
            said = table_rows(self.trust, logs, self.references(opinions))
            said["all"] = logits
        return EnsembleOutput(logits, memory_weight, None, contributions, found, said)

    def encoder_logits(self, batch: ClassificationBatch) -> Tensor:
        """[B, C] of the encoder alone, on the way to the whole; 0 where it is not to be trained."""
        if self.encoder is None or self.is_frozen:
            return batch.memory_score.new_zeros(len(batch.row), self.num_classes) + self.unused * 0.0
        return self.classify(self.encode_texts(batch))

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The texts' vectors [B, l]."""
        if batch.text_vector is not None:
            return batch.text_vector
        assert self.encoder is not None
        vectors: Tensor = self.encoder(batch.word, batch.char, batch.text)
        return vectors

    def classify(self, vectors: Tensor) -> Tensor:
        """float32 [B, C] from vectors [B, l]; of a frozen encoder only their directions count."""
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            scores: Tensor = self.classifier(
                functional.normalize(vectors, dim=1) if self.is_frozen else vectors
            )
            return scores

    def speaking(self) -> tuple[str, ...]:
        """The witnesses that are heard: those with a weight, or all."""
        if self.trust is None or self.says_all:
            return self.witnesses
        weights = self.trust.weights
        combinations = ("all", "memory") if self.num_new else ("all",)
        return tuple(
            name for name in self.witnesses if any(weights.get(one, {}).get(name) for one in combinations)
        )

    def opinions(self, batch: ClassificationBatch) -> tuple[dict[str, Opinions], NDArray[np.int64] | None]:
        """What each witness that is heard says of a batch, and references; rows [B, K] that the dense vote found."""
        names, found = self.speaking(), None
        opinions: dict[str, Opinions] = {}
        if "lexical" in names:
            assert batch.text_string is not None
            opinions["lexical"] = Scores(self.lexical(batch.text_string))
        if "encoder" in names or "dense_vote" in names:
            vectors = self.encode_texts(batch)
            if "encoder" in names:
                read = self.machine if self.is_frozen else self.classify
                opinions["encoder"] = Scores(read(vectors))
        if "bag" in names:
            opinions["bag"] = Scores(self.bag_machine(self.bag(batch, self.bag_words)))
        if "lexical_vote" in names:
            opinions["lexical_vote"] = Ballots(
                batch.memory_score, batch.memory_mask, batch.memory_target, self.num_classes
            )
        if "dense_vote" in names:
            opinions["dense_vote"], found = self.dense_vote(vectors, batch.text_string)
        if self.says_all:
            assert batch.text_string is not None
            counts = torch.tensor(self.counts, dtype=torch.float32, device=batch.row.device)
            opinions["majority"] = Scores(counts.expand(len(batch.row), -1))
            opinions["svm"] = Scores(self.svm(batch.text_string))
            if "encoder" in names and self.is_frozen:
                opinions["regression"] = Scores(self.classify(vectors))
        return opinions, found

    def references(self, opinions: Mapping[str, Opinions]) -> dict[str, Tensor]:
        """[n, C] of what stands in the answer's table beside the witnesses."""
        return {
            name: one.scores
            for name, one in opinions.items()
            if isinstance(one, Scores) and name not in self.witnesses
        }

    def dense_vote(self, vectors: Tensor, texts: list[str] | None) -> tuple[Ballots, NDArray[np.int64]]:
        """The vote of the memories whose vectors are nearest to vectors [B, l]; and their rows [B, K]."""
        size, k = len(vectors), self.num_memories
        if self.memory is None:
            nothing = vectors.new_zeros(size, k, dtype=torch.float32)
            return Ballots(nothing, nothing > 0, nothing.long(), self.num_classes), np.full((size, k), -1)
        queries = functional.normalize(vectors.float(), dim=1).cpu().numpy()
        exclude = self.memory.memory.excluded_rows(texts or []) if self.excludes_duplicates else None
        return ballots_of(
            self.memory, self.memory_target, queries, k, self.num_classes, exclude, vectors.device
        )

    def _with_new_classes(
        self, logits: Tensor, contributions: Mapping[str, Tensor], opinions: Mapping[str, Opinions]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits [B, C + N] with classes that only the memory knows, and what they are made of.

        The votes alone say how probable a new class is; what is left is divided among the old classes as without it:
        p(new) = q(new), p(old) = (1 - q(any new)) p'(old). A class that none of a text's memories has is not there at
        all: without memories, and with those of an older version, predictions are what they were.
        """
        assert self.trust is not None
        weights = self.trust.weights.get("memory", {})
        votes: dict[str, Tensor] = {}
        found = logits.new_zeros(len(logits), self.num_classes + self.num_new)
        for name, said in opinions.items():
            if isinstance(said, Ballots) and weights.get(name):
                ballots = said.over(self.num_classes + self.num_new)
                found += count_votes(ballots.mask.float(), ballots.target, ballots.num_classes)
                votes[name] = weights[name] * ballots.log_probabilities(self.trust.shapes[name])
        old, new = slice(0, self.num_classes), slice(self.num_classes, None)
        if not votes:
            nothing = logits.new_full((len(logits), self.num_new), NEVER)
            return torch.cat([logits, nothing], dim=1), {
                name: torch.cat([part, nothing / len(contributions)], dim=1)
                for name, part in contributions.items()
            }
        together = torch.stack(list(votes.values())).sum(dim=0)
        share = together + torch.cat([torch.ones(self.num_classes), self.new_classes]).log().to(logits.device)
        share[:, new] = share[:, new].masked_fill(found[:, new] == 0, NEVER)
        share = share.log_softmax(dim=1)
        rest = share[:, old].logsumexp(dim=1, keepdim=True) - logits.logsumexp(dim=1, keepdim=True)
        blank = logits.new_zeros(len(logits), self.num_new)
        parts = {name: torch.cat([part, blank], dim=1) for name, part in contributions.items()}
        for name, vote in votes.items():
            old_part = parts.get(name, torch.zeros_like(vote))[:, old]
            parts[name] = torch.cat([old_part, vote[:, new]], dim=1)
        scale = (share - together)[:, new]
        parts["known by memory alone"] = torch.cat([rest.expand(-1, self.num_classes), scale], dim=1)
        return torch.cat([logits + rest, share[:, new]], dim=1), parts

    def _memory_weights(
        self, opinions: Mapping[str, Opinions], rows: NDArray[np.int64] | None, batch: ClassificationBatch
    ) -> tuple[Tensor, FoundMemories | None]:
        """What each memory counted for: its share of its vote, and the vote's of all votes."""
        assert self.trust is not None
        weights = {name: self.trust.weights["all"].get(name, 0.0) for name in VOTES}
        total, found = max(sum(weights.values()), 1e-9), None
        lexical, dense = opinions.get("lexical_vote"), opinions.get("dense_vote")
        shown = torch.zeros_like(batch.memory_score)
        if isinstance(lexical, Ballots):
            shown = lexical.shares(self.trust.shapes["lexical_vote"][0]) * (weights["lexical_vote"] / total)
        if isinstance(dense, Ballots) and rows is not None:
            share = dense.shares(self.trust.shapes["dense_vote"][0]) * (weights["dense_vote"] / total)
            found = FoundMemories(rows, dense.score, share)
        return shown, found

    def get_extra_state(self) -> dict[str, Any]:
        """For the state dict: plain values."""
        return {"trust": None if self.trust is None else self.trust.describe(), "counts": self.counts}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """From the state dict."""
        self.trust = None if state["trust"] is None else Trust.of(state["trust"])
        self.counts = list(state["counts"])


def ballots_of(
    memory: EncodedMemory,
    target: Tensor,
    queries: NDArray[np.float32],
    k: int,
    num_classes: int,
    exclude: list[Any] | None,
    device: Any = "cpu",
) -> tuple[Ballots, NDArray[np.int64]]:
    """The k nearest memories of each vector [n, l] as a vote, and their rows [n, k]; `target` are all rows' classes."""
    hits = memory.search(queries, k, exclude)
    rows = torch.from_numpy(hits.rows.astype(np.int64))
    # A row -1 (no memory) reads the appended -1.
    classes = torch.cat([target, target.new_tensor([-1])])[rows]
    score, mask, classes = (part.to(device) for part in (torch.from_numpy(hits.scores), rows >= 0, classes))
    return Ballots(score, mask, classes, num_classes), rows.numpy()


def table_rows(
    trust: Trust, logs: Mapping[str, Tensor], references: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Row of the answer's table -> [n, C]: references, each witness alone, and the combinations."""
    names = {"text": "without memory", "memory": "memory alone", "all": "all"}
    combined = {title: trust.combine(logs, name) for name, title in names.items() if name in trust.weights}
    return {**references, **logs, **combined}
