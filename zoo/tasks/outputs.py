"""The outputs: what passes from a network to its task, its predictor and its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor


class ClassificationOutput(NamedTuple):
    """Output of a classification network."""

    #: float32 [B, C]; of sets of labels, [B, 2, C]: that a label is missing, and that it is present.
    logits: Tensor
    #: float32 [B, K]: weight of each memory; 0 where there is none.
    memory_weight: Tensor
    #: float32 [B, H, K]: the weights in each of H hops; None where a network reads its memories once.
    hop_weight: Tensor | None = None
    #: float32 [B, l]: vectors of the texts, of length 1 or not; None where no encoder made them.
    text_vector: Tensor | None = None
    #: member of an ensemble -> values of the shape of the logits; they add up to these.
    contributions: Mapping[str, Tensor] = MappingProxyType({})
    #: of each member that searches a memory by itself: its rows, int64 [B, K], -1 where there are fewer than K; their
    #: scores, float32 [B, K]; and their shares of all votes, which add up to 1 with those of `memory_weight`.
    retrieved: Sequence[tuple[Tensor, Tensor, Tensor]] = ()
    #: row of an ensemble's answer -> int64 [B], classes, or [B, C], sets; empty unless the table is measured.
    table: Mapping[str, Tensor] = MappingProxyType({})
    #: float32 [B]: how much an ensemble finds texts like those of its classes, unbounded; None of other networks.
    familiarity: Tensor | None = None
    #: int64 [B, C]: the sets of labels that are the answer, of 0 and 1; None of a network that predicts one label.
    chosen: Tensor | None = None


class MatchingOutput(NamedTuple):
    """Output of a matching network."""

    #: float32 [P, spec.num_outputs]: score of a pair to rank; of one to classify, logits of "no match" and "match".
    logits: Tensor
    #: float32 [P, T, S]: interaction of a pair's words, 0 where there is none; None where a model compares no words.
    interaction: Tensor | None = None

    @property
    def score(self) -> Tensor:
        """float32 [P]: higher = matches better."""
        if self.logits.shape[1] == 1:
            return self.logits[:, 0]
        return self.logits[:, 1] - self.logits[:, 0]


class Pointer(NamedTuple):
    """Attention on the words of the sentences that were kept for a question; M words at most."""

    #: int64 [P, k]: the kept turns, 0..N-1; -1 where a dialogue has fewer.
    kept: Tensor
    #: int64 [P, M]: positions in `DialogueBatch.text`; 0 where there is no word.
    position: Tensor
    #: float32 [P, M]: attention, adds up to 1; 0 where there is no word.
    weight: Tensor
    #: float32 [P, V + X]: attention summed by choice (p_W).
    choice: Tensor


class DialogueOutput(NamedTuple):
    """Output of a network for P questions: probabilities over V + X choices, and its attention."""

    #: float32 [P, V + X]: logarithm of p_S, the sentence-level read-out.
    log_sentence: Tensor
    #: float32 [P, N]: attention on the turns in the last hop; 0 where there is none to read.
    attention: Tensor
    #: attention on words; None where the model has none.
    pointer: Pointer | None = None

    def choices(self) -> dict[str, Tensor]:
        """Probabilities [P, V + X] of each read-out."""
        sentence = self.log_sentence.exp()
        if self.pointer is None:
            return {"sentence": sentence}
        word = self.pointer.choice
        # Equation 8, halved to be a distribution; the order stays the same.
        return {"sentence": sentence, "word": word, "joint": (sentence + word) / 2}
