"""Short texts expanded by what a search finds for them: ExpaNet and MemNet.

Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short Text Expansion", KDD 2017. Equation numbers
below are the paper's. MemNet, a row of its Table 3, is the network of Sainbayar Sukhbaatar, Arthur Szlam, Jason Weston,
Rob Fergus: "End-To-End Memory Networks", NIPS 2015, with a text as its question and a class as its answer.

A short text is the mean of its words' vectors (matrix A), and so is each of its K memories (matrix B). In a hop, the
text pays attention to its memories, reads what they say together, and is expanded by it; the next hop starts from the
expanded text. A linear layer classifies from the text and its last expansion.

Shapes: B texts of at most T words, K memories a text, M distinct memories of at most S words, U distinct words in a
batch, d the size of all vectors, H hops, C classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from zoo.layers.bags import TextBag
from zoo.layers.encoders import WordEncoder
from zoo.layers.text_dropout import TextDropout
from zoo.layers.vote import relative_scores
from zoo.tasks.base import check_choices, check_sizes
from zoo.tasks.classification.metrics import AttentionScores, ClassificationScores
from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask
from zoo.tasks.encoders import WordVectors

ReadKind: TypeAlias = Literal["soft", "hard"]

#: Standard deviation of all vectors at first.
DEVIATION = 0.1
#: The paper grows its memory networks to four hops.
MOST_HOPS = 4


class SoftRead(nn.Module):
    """Attention over all memories."""

    def forward(self, energy: Tensor, copies: Tensor) -> Tensor:
        """Weights of memories (Equation 3).

        Args:
            energy: float32 [B, K], q.d_i times the sharpness.
            copies: float32 [B, K], how often each memory is there; 0 = no memory.

        Returns:
            float32 [B, K]; they add up to 1, or are all 0 where there is no memory.
        """
        return softmax_of_copies(energy, copies)


class HardRead(nn.Module):
    """One memory, drawn by its attention: Gumbel-softmax in training, the arg max in evaluation.

    With a high temperature, training reads a mix of memories that evaluation never sees. Two cures: the temperature
    falls in the course of training, or what is read is the drawn memory alone, with the gradient of the mix
    (straight-through).
    """

    def __init__(self, tau: float, straight_through: bool) -> None:
        super().__init__()
        #: the temperature of Equation 7; changed by who trains.
        self.tau = tau
        self.straight_through = straight_through

    def forward(self, energy: Tensor, copies: Tensor) -> Tensor:
        """Weights of memories (Equations 5 and 7); arguments and result as in `SoftRead.forward`."""
        if not self.training:
            return one_hot_of_largest(energy, copies > 0)
        # Minus the logarithm of an exponential draw is a Gumbel draw. The largest draw of several copies is as likely
        # as one draw plus the logarithm of their number.
        noise = -torch.empty_like(energy).exponential_().clamp_(min=1e-20).log()
        drawn = energy + copies.clamp(min=1).log() + noise
        weights = softmax_of_copies(drawn / self.tau, (copies > 0).float())
        if not self.straight_through:
            return weights
        return one_hot_of_largest(drawn, copies > 0) + weights - weights.detach()


def softmax_of_copies(energy: Tensor, copies: Tensor) -> Tensor:
    """Softmax over K memories of which each is there so many times; all arguments and the result [B, K]."""
    there = copies > 0
    repeated = energy + copies.clamp(min=1).log()
    return repeated.masked_fill(~there, torch.finfo(energy.dtype).min).softmax(dim=1) * there


def one_hot_of_largest(energy: Tensor, mask: Tensor) -> Tensor:
    """1 for the memory of the largest energy, the first of several; 0 elsewhere, and where there is none: [B, K]."""
    best = energy.masked_fill(~mask, torch.finfo(energy.dtype).min).argmax(dim=1)
    return functional.one_hot(best, energy.shape[1]).to(energy.dtype) * mask


class Expansion(nn.Module):
    """A gated recurrent unit that decides how much of a text is replaced by what was read (Equations 8 to 11)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # Wz, Wr, W and Uz, Ur, U below each other; the paper has no biases.
        self.of_text = nn.Linear(size, 3 * size, bias=False)
        self.of_memories = nn.Linear(size, 3 * size, bias=False)

    def forward(self, text: Tensor, read: Tensor) -> Tensor:
        """The expanded text [B, d] from a text q [B, d] and what was read o [B, d]."""
        text_z, text_r, text_new = self.of_text(text).chunk(3, dim=1)
        read_z, read_r, read_new = self.of_memories(read).chunk(3, dim=1)
        z = (text_z + read_z).sigmoid()
        new = (text_new + (text_r + read_r).sigmoid() * read_new).tanh()
        return torch.lerp(text, new, z)


class Sum(nn.Module):
    """MemNet's way: what was read is added to the text."""

    def forward(self, text: Tensor, read: Tensor) -> Tensor:
        """q + o [B, d]."""
        return text + read


class MemoryNetwork(nn.Module):
    """Figure 1: a text, hops over its memories, a classifier."""

    def __init__(self, spec: ClassificationSpec, options: Any, model: MemNet, vectors: Tensor | None) -> None:
        """Make the parts.

        Args:
            spec: vocabulary and labels.
            options: of `MemNet` or `ExpaNet`.
            model: makes what differs between the two.
            vectors: pre-trained word vectors, for every matrix.
        """
        super().__init__()
        self.hops: int = options.hops
        self.duplicates: bool = options.duplicate_memories
        self.sharpness: float = options.sharpness
        self.score_power: float = options.score_power
        self.drop_text = TextDropout(options.text_dropout)

        def new_words() -> WordEncoder:
            return model.make_words(spec, None if vectors is None else vectors.clone())

        self.text = TextBag(new_words(), options.bigrams, options.dropout)  # matrix A
        size = self.text.size
        #: what is read of a memory, where that is not what attention compares.
        self.output: TextBag | None = None
        #: a vector for each label of a memory.
        self.label: nn.Parameter | None = None
        if self.hops:
            #: matrix B; None = that of the texts.
            self.memory = None if options.tie_matrices else TextBag(new_words(), dropout=options.dropout)
            if model.has_output_matrix:
                self.output = TextBag(new_words(), dropout=options.dropout)
            self.read, self.expand = model.new_read(), model.new_expansion(size)
            if options.label_vectors:
                self.label = nn.Parameter(DEVIATION * torch.randn(len(spec.memory_labels), size))
        self.keeps_text = bool(self.hops and model.keeps_text)
        self.classifier = nn.Linear(size * (1 + self.keeps_text), len(spec.labels), bias=False)

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes.

        A memory's weight is the mean of its attention over the hops.
        """
        # In float32 whatever the precision: the matrix products are small, and softmax and means need it.
        with torch.autocast(batch.text.device.type, enabled=False):
            text = self.text(batch.word, batch.text)  # q [B, d]
            if not self.hops:
                return ClassificationOutput(self.classifier(text), torch.zeros_like(batch.memory_score))
            compared, spoken = self._memories(batch)  # [B, K, d] each
            copies = count_copies(batch.memory_mask) if self.duplicates else batch.memory_mask.float()
            asked, weights = text, []
            text = expanded = self.drop_text(text)
            for _ in range(self.hops):
                energy = self.sharpness * (compared @ asked.unsqueeze(2)).squeeze(2)
                if self.score_power:
                    energy = energy + self.score_power * relative_scores(batch.memory_score)
                weights.append(self.read(energy, copies))
                said = (weights[-1].unsqueeze(1) @ spoken).squeeze(1)  # o [B, d], Equations 4 and 6
                asked = expanded = self.expand(expanded, said)
            found = torch.cat([text, expanded], dim=1) if self.keeps_text else expanded
            by_hop = torch.stack(weights, dim=1)  # [B, H, K]
            return ClassificationOutput(self.classifier(found), by_hop.mean(dim=1), by_hop)  # Equation 12

    def _memories(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """What attention compares with the text, and what is read: d_i [B, K, d] (Equation 2), twice."""
        labels: Tensor | None = None
        if self.label is not None:
            target = batch.memory_target
            labels = functional.embedding(target.clamp(min=0), self.label) * (target >= 0).unsqueeze(2)

        def of(bag: TextBag) -> Tensor:
            # One empty text stands for the memories where there are none: its vector is 0.
            memories = batch.memory_text if len(batch.memory_text) else batch.text.new_zeros(1, 1)
            vectors = functional.embedding(batch.memory, bag(batch.word, memories, words_alone=True))
            return vectors if labels is None else vectors + labels

        compared = of(self.text if self.memory is None else self.memory)
        return compared, compared if self.output is None else of(self.output)


def count_copies(mask: Tensor) -> Tensor:
    """How often each memory is there when those that were found fill all K places, in turn from the best.

    The paper repeats memories at random where a search finds fewer than K.

    Args:
        mask: bool [B, K], True where there is a memory.

    Returns:
        float32 [B, K], 0 where there is no memory.
    """
    places, found = mask.shape[1], mask.sum(dim=1, keepdim=True).clamp(min=1)
    rank = mask.cumsum(dim=1) - 1
    return ((places - rank - 1).div(found, rounding_mode="floor") + 1) * mask.float()


class MemNet(WordVectors, ClassificationTask):
    """End-to-end memory network, with a text as its question and a class as its answer.

    Example:
        >>> model = MemNet(hops=2)
    """

    paper = "Sukhbaatar, Szlam, Weston, Fergus: End-To-End Memory Networks (NIPS 2015)"

    without_memory = "--model.hops 0"
    #: whether what is read of a memory has a matrix of its own.
    has_output_matrix = True
    #: whether the classifier sees the text beside its expansion.
    keeps_text = False

    def __init__(
        self,
        hops: int = 2,
        sharpness: float = 1.0,
        score_power: float = 0.0,
        text_dropout: float = 0.0,
        tie_matrices: bool = False,
        label_vectors: bool = False,
        bigrams: int = 0,
        dropout: float = 0.0,
        duplicate_memories: bool = False,
        log_attention: bool = False,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            hops: H, how often the memories are read, 0 to 4; 0 = never: then none are retrieved.
            sharpness: factor of q.d_i before the softmax. Means of many vectors are short, so with the paper's 1 the
                attention is nearly the same on all memories.
            score_power: p: attention goes to memories as the retriever ranks them, too, by p log(s_i / s_1) beside
                q.d_i; the paper's 0 leaves the retriever's scores aside.
            text_dropout: probability of hiding a training text from expansion and classifier, which otherwise learn to
                trust the text alone: it is soon known by heart, while memories look in training as they do later. The
                paper has none.
            tie_matrices: encode texts and memories by one matrix (A = B).
            label_vectors: add a vector of its label to each memory's.
            bigrams: rows of a table of vectors of pairs of words, which join the mean of a text (not of its memories);
                pairs share rows by their hash. 0 = words alone, as in the paper.
            dropout: probability of zeroing a component of a word's vector in training; the paper has none.
            duplicate_memories: where fewer than K memories are found, have them fill all K places, as in the paper, in
                place of leaving places empty.
            log_attention: tell the mean attention by hop and rank with the scores.
            **shared: options of `WordVectors` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "word_size")
        if not 0 <= hops <= MOST_HOPS:
            raise InputError(f"model.hops={hops}: use 0 (no memory) to {MOST_HOPS}")
        if not sharpness > 0 or score_power < 0:
            raise InputError(
                f"model.sharpness={sharpness}, model.score_power={score_power}: use more than 0, and 0 or more"
            )
        if not 0 <= text_dropout < 1:
            raise InputError(f"model.text_dropout={text_dropout}: must be 0 or more and below 1")
        if bigrams < 0:
            raise InputError(f"model.bigrams={bigrams}: must be 0 (no pairs of words) or more")

    # --- what differs in ExpaNet ---

    def new_read(self) -> nn.Module:
        """How memories are weighed, see `SoftRead`."""
        return SoftRead()

    def new_expansion(self, size: int) -> nn.Module:
        """How a text of this size is expanded, see `Expansion`."""
        return Sum()

    # --- the task's ---

    @property
    @override
    def uses_memory(self) -> bool:
        return bool(self.options.hops)

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        if self.options.label_vectors and self.uses_memory and not spec.memory_labels:
            raise InputError(
                "model.label_vectors is on, but the memories have no labels; leave it out, or give"
                " --data.memory_label_column"
            )
        return MemoryNetwork(spec, self.options, self, word_vectors)

    @override
    def row_names(self, name: str, weight: Tensor, data: Mapping[str, Any]) -> Sequence[Hashable] | None:
        if name == "network.label":
            labels: list[str] = data.get("memory_labels", [])
            return labels
        return super().row_names(name, weight, data)

    @override
    def new_scores(self) -> ClassificationScores:
        if not (self.options.log_attention and self.uses_memory):
            return super().new_scores()
        assert self.spec is not None
        return AttentionScores(self.spec.labels, self.options.hops, self.spec.num_memories)

    @override
    def count(self, scores: ClassificationScores, batch: ClassificationBatch) -> None:
        output = self(batch)
        scores.update(output.logits, batch.target, batch.weight, batch.is_copy)
        if isinstance(scores, AttentionScores):
            scores.update_attention(output.hop_weight, batch.memory_mask, batch.weight)


class ExpaNet(MemNet):
    """The paper's model: ExpaNet-S (`read="soft"`) and ExpaNet-H (`read="hard"`).

    Example:
        >>> model = ExpaNet(read="soft", hops=2)
    """

    paper = "Tang, Wang, Zheng, Mei: End-to-end Learning for Short Text Expansion (KDD 2017)"
    has_output_matrix = False
    keeps_text = True

    def __init__(
        self,
        read: ReadKind = "soft",
        tau: float = 2.0,
        final_tau: float | None = None,
        straight_through: bool = False,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            read: `soft`, attention over all memories; or `hard`, one memory: a Gumbel-softmax draw in training, the
                arg max in evaluation.
            tau: temperature of the draw.
            final_tau: where the temperature ends; it falls by the same factor a step. None = it stays, as in the paper.
            straight_through: read the drawn memory alone, with the gradient of the mix that the paper reads.
            **shared: options of `MemNet`, `WordVectors` and `Task`.
        """
        super().__init__(**shared)
        check_choices(self.options, read=("soft", "hard"))
        for name in ("tau", "final_tau"):
            if (value := self.options[name]) is not None and not value > 0:
                raise InputError(f"model.{name}={value}: must be more than 0")

    @override
    def new_read(self) -> nn.Module:
        options = self.options
        return SoftRead() if options.read == "soft" else HardRead(options.tau, options.straight_through)

    @override
    def new_expansion(self, size: int) -> nn.Module:
        return Expansion(size)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        first, last = self.options.tau, self.options.final_tau
        if last is not None and self.uses_memory:
            # Of the step alone, so that a resumed run goes on where it stopped.
            progress = self.trainer.global_step / max(1, self.trainer.estimated_stepping_batches)
            self.network.read.tau = first * (last / first) ** min(1.0, progress)
