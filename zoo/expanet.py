"""Short texts expanded by retrieved texts: ExpaNet and MemNet.

Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short Text Expansion", KDD 2017. Equation numbers
below are the paper's. MemNet, a row of its Table 3, is the network of Sainbayar Sukhbaatar, Arthur Szlam, Jason Weston,
Rob Fergus: "End-To-End Memory Networks", NIPS 2015, with a text as its question and a class as its answer.

A short text is the mean of its words' vectors (matrix A), and so is each of its K memories (matrix B). In a hop, the
text attends to its memories, reads their weighted sum, and is expanded by it; the next hop starts from the expanded
text. A linear layer classifies from the text and its last expansion.

Shapes: B texts of at most T words, K memories per text, M distinct memories of at most S words, U distinct words in a
batch, d the size of all vectors, H hops, C classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from datamodules.core.types import Count, NotNegative, Positive, Probability
from zoo.layers.bags import TextBag
from zoo.layers.encoders import TextDropout
from zoo.layers.vote import masked_softmax, relative_scores
from zoo.tasks.classification.metrics import AttentionScores, ClassificationScores
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.model import Given
from zoo.tasks.outputs import ClassificationOutput
from zoo.training.trained_parts import total_steps

#: Standard deviation of the initial vectors.
DEVIATION = 0.1
#: Temperature of a hard read.
DRAW_TEMPERATURE = 2.0
#: The paper has up to four hops.
MOST_HOPS = 4


def drawn_weights(energy: Tensor, mask: Tensor, tau: float, straight_through: bool) -> Tensor:
    """Weigh memories by a Gumbel-softmax draw (Equations 5 and 7); shapes as in `masked_softmax`.

    A high temperature tau mixes memories. A falling temperature avoids that, and so does straight-through: the drawn
    memory alone is read, with the gradient of the mixture.
    """
    # Minus the logarithm of an exponential draw is a Gumbel draw.
    drawn = energy - energy.new_empty(energy.shape).exponential_().clamp_(min=1e-20).log()
    weights = masked_softmax(drawn / tau, mask)
    if not straight_through:
        return weights
    return one_hot_of_largest(drawn, mask) + weights - weights.detach()


def one_hot_of_largest(energy: Tensor, mask: Tensor) -> Tensor:
    """1 for the memory of the largest energy, the first among equals; 0 for all others [B, K]."""
    best = energy.masked_fill(~mask, torch.finfo(energy.dtype).min).argmax(dim=1)
    return functional.one_hot(best, energy.shape[1]).to(energy.dtype) * mask


class Expansion(nn.Module):
    """A gated recurrent unit: the part of a text that is replaced by the memories (Equations 8 to 11)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # Rows of Wz, Wr, W and of Uz, Ur, U; the paper has no biases.
        self.of_text = nn.Linear(size, 3 * size, bias=False)
        self.of_memories = nn.Linear(size, 3 * size, bias=False)

    def forward(self, text: Tensor, read: Tensor) -> Tensor:
        """The expanded text [B, d], from a text q [B, d] and the sum of its memories o [B, d]."""
        text_z, text_r, text_new = self.of_text(text).chunk(3, dim=1)
        read_z, read_r, read_new = self.of_memories(read).chunk(3, dim=1)
        z = (text_z + read_z).sigmoid()
        new = (text_new + (text_r + read_r).sigmoid() * read_new).tanh()
        return torch.lerp(text, new, z)


class MemoryNetwork(nn.Module):
    """Figure 1: a text, hops over its memories, a classifier."""

    def __init__(self, given: Given[ClassificationSpec], options: MemNet) -> None:
        super().__init__()
        self.hops, self.score_power = options.hops, options.score_power
        self.text = options.make_bag(given, options.bigrams)  # matrix A
        size = self.text.size
        #: matrix B (None: A), and that of the sum (None: that of the attention).
        self.memory = options.make_bag(given) if self.hops and not options.tie_matrices else None
        #: without it, a text is expanded to q + o, and the classifier reads no q.
        self.expand = Expansion(size) if self.hops and isinstance(options, ExpaNet) else None
        self.output = options.make_bag(given) if self.hops and self.expand is None else None
        #: [labels, d]: vectors of the memories' labels.
        self.label = None
        if self.hops and options.label_vectors:
            if not given.spec.memory_labels:
                raise InputError(
                    "model.label_vectors: the memories have no labels; omit it, or set --data.memory_label_column"
                )
            self.label = nn.Parameter(DEVIATION * torch.randn(len(given.spec.memory_labels), size))
        #: temperature of a hard read, which `ExpaNet` changes during the training; None = a soft read.
        self.tau: float | None = None
        if isinstance(options, ExpaNet) and options.read == "hard":
            self.tau, self.straight_through = options.tau, options.straight_through
        self.drop_text = TextDropout(options.text_dropout)
        features = size if self.expand is None else 2 * size
        self.classifier = nn.Linear(features, len(given.spec.labels), bias=False)

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes. Weights are means over the hops."""
        # In float32 whatever the precision: the matrix products are small, and softmax and means need it.
        with torch.autocast(batch.text.device.type, enabled=False):
            text = self.text(batch.word, batch.text)  # q [B, d]
            if not self.hops:
                return ClassificationOutput(self.classifier(text), torch.zeros_like(batch.memory_score))
            keys, values = self._memories(batch)  # [B, K, d] each
            query, weights = text, []
            text = expanded = self.drop_text(text)
            for _ in range(self.hops):
                energy = (keys @ query.unsqueeze(2)).squeeze(2)
                if self.score_power:
                    energy = energy + self.score_power * relative_scores(batch.memory_score)
                weights.append(self._weights(energy, batch.memory_mask))
                read = (weights[-1].unsqueeze(1) @ values).squeeze(1)  # o [B, d], Equations 4 and 6
                query = expanded = expanded + read if self.expand is None else self.expand(expanded, read)
            features = expanded if self.expand is None else torch.cat([text, expanded], dim=1)
            by_hop = torch.stack(weights, dim=1)  # [B, H, K]
            return ClassificationOutput(self.classifier(features), by_hop.mean(dim=1), by_hop)  # Equation 12

    def _weights(self, energy: Tensor, mask: Tensor) -> Tensor:
        if self.tau is None:
            return masked_softmax(energy, mask)  # Equation 3
        if not self.training:
            return one_hot_of_largest(energy, mask)
        return drawn_weights(energy, mask, self.tau, self.straight_through)

    def _memories(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """The memories' vectors d_i [B, K, d] (Equation 2) for the attention and for the sum."""
        labels: Tensor | None = None
        if self.label is not None:
            target = batch.memory_target
            labels = functional.embedding(target.clamp(min=0), self.label) * (target >= 0).unsqueeze(2)

        def encode(bag: TextBag) -> Tensor:
            # One empty text stands for the memories where there are none: its vector is 0.
            memories = batch.memory_text if len(batch.memory_text) else batch.text.new_zeros(1, 1)
            vectors = functional.embedding(batch.memory, bag(batch.word, memories, words_alone=True))
            return vectors if labels is None else vectors + labels

        keys = encode(self.text if self.memory is None else self.memory)
        return keys, keys if self.output is None else encode(self.output)


class MemNet(ReadsWordVectors, ClassificationTask):
    """End-to-end memory network, with a text as its question and a class as its answer.

    Args:
        hops: H, the number of times that the memories are read, 0 to 4; with 0, none are retrieved.
        score_power: p: adds p log(s_i / s_1), of the retriever's scores, to q.d_i; the paper's 0 ignores them.
        text_dropout: probability of hiding a training text, which is soon memorized; 0 in the paper.
        tie_matrices: encode texts and memories by one matrix (A = B).
        label_vectors: add a vector of its label to each memory's.
        bigrams: rows of a hashed table of vectors of word pairs, which join the mean of a text; 0 in the paper.
        dropout: probability of zeroing a component of a word's vector in training; the paper has none.
        log_attention: log the mean attention by hop and rank next to the scores.
        **shared: the paper's word vectors have 100 numbers (`word_size`), and its optimizer is Adam at 1e-2.
    """

    network_type = MemoryNetwork
    without_memory = "--model.hops 0"

    def __init__(
        self,
        hops: int = 2,
        score_power: NotNegative = 0.0,
        text_dropout: Probability = 0.0,
        tie_matrices: bool = False,
        label_vectors: bool = False,
        bigrams: Count = 0,
        dropout: float = 0.0,
        log_attention: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if not 0 <= hops <= MOST_HOPS:
            raise InputError(f"model.hops={hops}: use 0 (no memory) to {MOST_HOPS}")
        self.uses_memory = hops > 0
        self.hops, self.score_power = hops, score_power
        self.tie_matrices, self.label_vectors = tie_matrices, label_vectors
        self.bigrams, self.dropout, self.text_dropout = bigrams, dropout, text_dropout
        self.log_attention = log_attention

    def make_bag(self, given: Given[ClassificationSpec], bigrams: int = 0) -> TextBag:
        """Make an encoder of texts with a matrix of its own."""
        vectors = None if given.word_vectors is None else given.word_vectors.clone()
        return TextBag(self.make_words(replace(given, word_vectors=vectors)), bigrams, self.dropout)

    @override
    def new_scores(self) -> ClassificationScores:
        if not (self.log_attention and self.uses_memory):
            return super().new_scores()
        return AttentionScores(self.labels, self.hops, self.spec.num_memories)


class ExpaNet(MemNet):
    """The paper's model: ExpaNet-S (`read="soft"`) and ExpaNet-H (`read="hard"`).

    Args:
        read: `soft`: attention over all memories; `hard`: one, a Gumbel-softmax draw in training, else the arg max.
        tau: temperature of the draw.
        final_tau: temperature at the end; it falls by the same factor in each step. None = `tau`, as in the paper.
        straight_through: read the drawn memory alone, with the gradient of the mixture that the paper reads.
    """

    def __init__(
        self,
        read: Literal["soft", "hard"] = "soft",
        tau: Positive = DRAW_TEMPERATURE,
        final_tau: Positive | None = None,
        straight_through: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        hard = {"tau": tau != DRAW_TEMPERATURE, "final_tau": final_tau, "straight_through": straight_through}
        if read == "soft" and (idle := [name for name, is_set in hard.items() if is_set]):
            raise InputError(f"model.{idle[0]} changes a hard read only; omit it, or set --model.read hard")
        self.read, self.tau, self.final_tau = read, tau, final_tau
        self.straight_through = straight_through

    @override
    def on_train_batch_start(self, batch: ClassificationBatch, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        if self.final_tau is not None and self.uses_memory:
            # A function of the step alone, so that a resumed run equals an uninterrupted one.
            progress = self.trainer.global_step / max(1, total_steps(self.trainer.estimated_stepping_batches))
            self.network.tau = self.tau * (self.final_tau / self.tau) ** min(1.0, progress)
