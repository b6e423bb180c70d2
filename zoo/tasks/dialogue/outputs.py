"""Output of the dialogue networks."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
