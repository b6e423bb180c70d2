"""Answers that are words of a dialogue, unknown words included: MemNN and Hierarchical Memory Networks.

Jiaming Xu, Jing Shi, Yiqun Yao, Suncong Zheng, Bo Xu, Bo Xu: "Hierarchical Memory Networks for Answer Selection on
Unknown Words", COLING 2016, and Sainbayar Sukhbaatar, Arthur Szlam, Jason Weston, Rob Fergus: "End-To-End Memory
Networks", NIPS 2015. Equation numbers below are the first paper's.

R hops over a memory of sentences give attention on the sentences (alpha_S) and a distribution over words (p_S): this is
MemNN. HMN keeps the k sentences with the most attention; attention on their words, read in context by a BiGRU, is a
second distribution (p_W): a pointer to words of the dialogue, which need not be in a vocabulary.

In addition to the paper, words that the training lacks have vectors drawn from their spelling, and are choices of their
own in their dialogue.

Shapes: a batch has B dialogues of at most N turns and L words, P questions, U distinct words; R + 1 tables of vectors
of size d (A, C_1, ..., C_R) stand side by side in one of width D = (R + 1) d; V + X choices (see `DialogueBatch`).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import DialogueBatch, DialogueSpec
from datamodules.core.types import NotNegative, Size
from zoo.layers.recurrent import AllStatesGRU
from zoo.layers.vote import masked_softmax
from zoo.tasks.dialogue.task import DialogueTask, Readout
from zoo.tasks.model import Given
from zoo.tasks.outputs import DialogueOutput, Pointer

#: Standard deviation of the initial vectors, and of those of unknown words.
DEVIATION = 0.1


class OpenWords(nn.Module):
    """Vectors of known and unknown words in several tables side by side.

    A word that the vocabulary lacks has in each table a vector of N(0, 0.1^2), drawn from its spelling, times a learned
    scale of the table. In training, word dropout draws such vectors for some known words, too, mostly rare ones
    (probability strength / (strength + training dialogues with the word)), so that the model learns to read them.
    """

    def __init__(self, num_words: int, size: int, tables: int, dropout: float) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.table = nn.Parameter(DEVIATION * torch.randn(num_words, tables * size))
        self.scale = nn.Parameter(torch.ones(tables))

    def forward(self, batch: DialogueBatch) -> tuple[Tensor, Tensor]:
        """Vectors of the batch's distinct words [U, D], and bool [U], the words with a drawn vector."""
        drawn = batch.spelling != 0
        unknown = drawn.nonzero().squeeze(1)
        noise = self.table.new_empty(len(drawn), self.table.shape[1])
        noise[unknown] = normal_of(batch.spelling[unknown], noise.shape[1]).to(noise.dtype)
        if self.training and self.dropout > 0:
            chance = self.dropout / (self.dropout + batch.frequency)
            dropped = torch.rand_like(chance) < chance
            chosen = dropped.nonzero().squeeze(1)  # indexing by a mask synchronizes the GPU each time
            noise[chosen] = torch.randn_like(noise[chosen])
            drawn = drawn | dropped
        rows = drawn.nonzero().squeeze(1)
        scale = DEVIATION * self.scale.repeat_interleave(self.size)
        vectors = functional.embedding(batch.word, self.table)
        return vectors.index_copy(0, rows, noise[rows] * scale), drawn


def normal_of(seeds: Tensor, size: int) -> Tensor:
    """Standard normal numbers, float32 [n, size], of seeds, int64 [n]: the same on every machine and in every batch.

    SplitMix64 (Steele, Lea, Flood 2014) mixes counters; two halves of each result make a normal number (Box, Muller).
    """
    counter = torch.arange(1, size + 1, device=seeds.device) * -0x61C8864680B583EB
    mixed = seeds.unsqueeze(1) + counter
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    first, second = _shifted(mixed, 40) + 1, mixed & 0xFFFFFF  # 24 bits each
    radius = (-2 * (first * 2.0**-24).log()).sqrt()
    return radius * torch.cos(2 * torch.pi * 2.0**-24 * second)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Shift right as if unsigned."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


WordMemoryKind: TypeAlias = Literal["bigru", "gru", "embedding"]


def encode_positions(vectors: Tensor, text: Tensor, place: Tensor, counts: Tensor, size: int) -> Tensor:
    """Sums of word vectors weighted by position (Equations 1 to 3): sum_j l_gj x_jg [S, D]; 0 for a text without words.

    l_gj = (1 - j/J) - (g/d)(1 - 2j/J) is a sum of two products of a function of j and a function of g. Two weighted
    sums of vectors suffice, without a vector for each occurrence of a word.

    `vectors` [U, D] are tables of d = `size` columns side by side; `text` has the words of all texts one after the
    other, 0 = padding, at places j in their text, from 1; `counts` [S] is J.
    """
    read = text.flatten().nonzero().squeeze(1)  # indexing by a mask synchronizes the GPU each time
    words, position = (part.flatten()[read] for part in (text, place))
    # `output_size` avoids a synchronization of the GPU.
    share = position.to(vectors.dtype) / counts.repeat_interleave(counts, output_size=len(words))
    starts = counts.cumsum(0) - counts
    level, slope = (
        functional.embedding_bag(words, vectors, starts, mode="sum", per_sample_weights=weight)
        for weight in (1 - share, 1 - 2 * share)
    )
    column = torch.arange(1, size + 1, device=vectors.device, dtype=vectors.dtype) / size  # g/d
    return level - column.repeat(vectors.shape[1] // size) * slope


class SentenceMemory(nn.Module):
    """Sentences as memories, read in R hops (Equations 1 to 5)."""

    def __init__(self, spec: DialogueSpec, options: MemNN) -> None:
        super().__init__()
        self.size, self.hops = options.word_size, options.hops
        tables = self.hops + 1
        self.words = OpenWords(spec.num_words, self.size, tables, options.word_dropout)
        self.time = None
        if options.temporal_encoding:
            self.time = nn.Parameter(DEVIATION * torch.randn(spec.num_turns, tables * self.size))

    def forward(self, batch: DialogueBatch, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read the memory; `vectors` [U, D] are those of `words`.

        Returns:
            u_R [P, d], the last hop's probe; o_R + u_R [P, d]; and its alpha [P, N], 0 for turns that are not readable.
        """
        counts = words_of_turns(batch).flatten()
        memory = encode_positions(vectors, batch.text, batch.place, counts, self.size)  # Equation 2
        memory = memory.view(*batch.age.shape, -1)  # [B, N, D]
        if self.time is not None:
            # The latest turn has index 1; turns older than any of the training count as the oldest.
            memory = memory + self.time[batch.age.clamp(max=len(self.time) - 1)]
        is_word = batch.question != 0
        place, counts = is_word.cumsum(dim=1), is_word.sum(dim=1)
        # u_1 [P, d] (Equation 3).
        output = encode_positions(vectors[:, : self.size], batch.question, place, counts, self.size)
        parts = memory.view(*batch.age.shape, -1, self.size).unbind(2)
        tables = [part.index_select(0, batch.dialogue) for part in parts]  # [P, N, d] each
        probe, attention = output, output.new_zeros(batch.readable.shape)
        for hop in range(self.hops):
            # A_{r+1} = C_r and T_A^{r+1} = T_C^r (Equation 4): a hop's output memory is the next one's input.
            probe = output
            energy = (tables[hop] @ probe.unsqueeze(2)).squeeze(2)
            attention = masked_softmax(energy, batch.readable)
            output = probe + (attention.unsqueeze(1) @ tables[hop + 1]).squeeze(1)
        return probe, output, attention

    def answer(self, batch: DialogueBatch, output: Tensor, vectors: Tensor, drawn: Tensor) -> Tensor:
        """Logarithm of p_S (Equation 5) over the choices: log softmax(C_R (o_R + u_R)) [P, V + X].

        `output` [P, d] is o_R + u_R; `drawn` bool [U] marks the words whose vector in `vectors` [U, D] is drawn.
        """
        of_words = output @ vectors[:, -self.size :].T  # [P, U]
        of_vocabulary = output @ self.words.table[:, -self.size :].T  # [P, V]
        changed = (drawn & (batch.spelling == 0)).nonzero().squeeze(1)
        of_vocabulary = of_vocabulary.index_copy(1, batch.word[changed], of_words[:, changed])
        own = batch.own[batch.dialogue]  # [P, X]
        energy = torch.cat([of_vocabulary, of_words.gather(1, own)], dim=1)
        is_choice = torch.cat([own.new_ones(of_vocabulary.shape), own], dim=1) != 0
        is_choice[:, :2] = False  # padding, and the vocabulary's "unknown word"
        return energy.masked_fill(~is_choice, torch.finfo(energy.dtype).min).log_softmax(dim=1)


class WordMemory(nn.Module):
    """The words of a dialogue in context (Section 3.4): m_t, and attention on the words of some sentences."""

    def __init__(self, size: int, kind: WordMemoryKind, k: int) -> None:
        super().__init__()
        self.k = k
        self.gru = None
        if kind != "embedding":
            self.gru = AllStatesGRU(size, size, bidirectional=kind == "bigru")
        self.probe = nn.Linear(size, size, bias=False)  # W
        self.memory = nn.Linear(size, size, bias=False)  # U
        self.v = nn.Parameter(torch.empty(size))
        for weight in self.parameters():
            nn.init.normal_(weight, std=DEVIATION)

    def states(self, vectors: Tensor, text: Tensor) -> Tensor:
        """m_t [B, L, d]: the sum of the GRUs' states over vectors [U, d], for words `text` [B, L]."""
        if self.gru is None:
            return vectors[text]
        states: Tensor = self.gru(vectors, text, (text != 0).sum(dim=1))
        return states.sum(dim=2)

    def forward(
        self, batch: DialogueBatch, probe: Tensor, attention: Tensor, vectors: Tensor, choices: int
    ) -> Pointer:
        """k-max pooling (Section 3.3), attention on words [U, d] (Equation 6), and its sum by choice (Equation 7)."""
        alpha = attention.detach().masked_fill(~batch.readable, -1)
        strongest = alpha.topk(min(self.k, alpha.shape[1]), dim=1)
        kept = strongest.indices.masked_fill(strongest.values < 0, -1)
        position, mask = positions_of_turns(batch, kept)
        dialogue = batch.dialogue.unsqueeze(1)
        projected = self.memory(self.states(vectors, batch.text))  # U m_t [B, L, d]
        row = dialogue * projected.shape[1] + position
        words = functional.embedding(row, projected.flatten(0, 1))  # [P, M, d]
        # alpha_W = softmax_t(v . tanh(W u_R + U m_t)) over the kept words
        energy = (self.probe(probe).unsqueeze(1) + words).tanh() @ self.v
        weight = masked_softmax(energy, mask)
        choice = batch.choice[dialogue, position]  # [P, M]
        by_choice = weight.new_zeros(len(kept), choices).scatter_add(1, choice, weight)
        return Pointer(kept, position, weight, by_choice)


def words_of_turns(batch: DialogueBatch) -> Tensor:
    """Number of words of each turn, int64 [B, N]."""
    return torch.zeros_like(batch.age).scatter_add(1, batch.turn, (batch.text != 0).long())


def positions_of_turns(batch: DialogueBatch, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Positions [P, M] of the words of `kept` turns [P, k], -1 = none; and bool [P, M], True where there is a word."""
    counts = words_of_turns(batch)
    starts = counts.cumsum(dim=1) - counts
    turn, longest = kept.clamp(min=0), int(counts.max())
    count, start = (part[batch.dialogue].gather(1, turn) for part in (counts, starts))  # [P, k]
    step = torch.arange(longest, device=kept.device)
    mask = (step < count.unsqueeze(2)) & (kept >= 0).unsqueeze(2)  # [P, k, longest]
    position = (start.unsqueeze(2) + step).where(mask, 0)
    return position.flatten(1), mask.flatten(1)


class HMNNetwork(nn.Module):
    """Figure 1: a memory of sentences, k-max pooling, a memory of words; MemNN has none of words."""

    def __init__(self, given: Given[DialogueSpec], options: MemNN) -> None:
        super().__init__()
        self.sentences, self.word_memory = SentenceMemory(given.spec, options), None
        if options.word_memory is not None:
            self.word_memory = WordMemory(options.word_size, options.word_memory, options.k)

    def forward(self, batch: DialogueBatch) -> DialogueOutput:
        """Answer the questions of a batch; see `DialogueBatch` for the shapes."""
        # Sums and softmaxes are float32 whatever the precision.
        with torch.autocast(batch.text.device.type, enabled=False):
            vectors, drawn = self.sentences.words(batch)
            probe, output, attention = self.sentences(batch, vectors)
            log_sentence = self.sentences.answer(batch, output, vectors, drawn)
            pointer = None
            if self.word_memory is not None:
                of_words = vectors[:, -self.sentences.size :]
                pointer = self.word_memory(batch, probe, attention, of_words, log_sentence.shape[1])
            return DialogueOutput(log_sentence, attention, pointer)


class MemNN(DialogueTask):
    """End-to-end memory network; MemNN-H1 is `hops=1`, MemNN-NT `temporal_encoding=False`.

    Args:
        word_size: d, of words, sentences and states.
        hops: R, the number of times that the sentences are read.
        temporal_encoding: encode the age of each sentence (T_A, T_C).
        word_dropout: s: in training, a word of n dialogues is unknown with probability s / (s + n); 0 in the paper.
    """

    network_type = HMNNetwork
    #: encoder of the words in context, and number of sentences that are kept for it; None = there is no such memory.
    word_memory: WordMemoryKind | None = None
    k: int = 0

    def __init__(
        self,
        word_size: Size = 100,
        hops: Size = 3,
        temporal_encoding: bool = True,
        word_dropout: NotNegative = 3.0,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.word_size, self.hops = word_size, hops
        self.temporal_encoding, self.word_dropout = temporal_encoding, word_dropout


class HMN(MemNN):
    """Hierarchical memory network with its three read-outs: HMN-Sent, HMN-Word, HMN-Joint.

    Args:
        readout: source of the answers, which selects the epoch: `sentence` (p_S), `word` (p_W) or `joint` (both).
        word_memory: encoder of the words in context: `bigru`, `gru`, or `embedding`, the word vectors alone.
        k: number of sentences that are kept for the attention on words.
    """

    readouts = ("sentence", "word", "joint")

    def __init__(
        self, readout: Readout = "joint", word_memory: WordMemoryKind = "bigru", k: Size = 4, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.readout, self.word_memory, self.k = readout, word_memory, k
