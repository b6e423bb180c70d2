"""Answers that are words of a dialogue, unknown ones too: MemNN and Hierarchical Memory Networks.

Jiaming Xu, Jing Shi, Yiqun Yao, Suncong Zheng, Bo Xu, Bo Xu: "Hierarchical Memory Networks for Answer Selection on
Unknown Words", COLING 2016, and Sainbayar Sukhbaatar, Arthur Szlam, Jason Weston, Rob Fergus: "End-To-End Memory
Networks", NIPS 2015. Equation numbers below are the first paper's.

R hops over a memory of sentences give attention on the sentences (alpha_S) and a distribution over words (p_S): this is
MemNN. HMN keeps the k sentences with the most attention, and attention on their words, read in context by a BiGRU, is
a second distribution (p_W): a pointer to words of the dialogue, which need not be in a vocabulary.

What the paper lacks: words that training has not seen. Such a word has a vector that is drawn from its spelling, and it
is a choice of its own in its dialogue.

Shapes: a batch has B dialogues of at most N turns and L words, P questions, U distinct words; R + 1 tables of vectors
of size d (A, C_1, ..., C_R) stand side by side in one of width D = (R + 1) d; V + X choices (see `DialogueBatch`).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import DialogueBatch, DialogueSpec
from datamodules.core.errors import InputError
from zoo.layers.gru import AllStatesGRU
from zoo.tasks.base import check_choices, check_sizes
from zoo.tasks.dialogue.task import DialogueOutput, DialogueTask, Pointer, Readout

WordMemoryKind: TypeAlias = Literal["bigru", "gru", "embedding"]

#: Standard deviation of all vectors at first, and of those of unknown words for ever.
DEVIATION = 0.1


class OpenWords(nn.Module):
    """Vectors of words, in several tables side by side; of unknown words too.

    A word that the vocabulary lacks has in each table a vector of N(0, 0.1^2), drawn from its spelling, times one
    learned scale a table. In training, word dropout draws such vectors afresh for some known words as well, rare ones
    above all (probability strength / (strength + training dialogues with the word)): so the model cannot rely on what
    it knows of rare words, and unknown ones are no surprise.
    """

    def __init__(self, num_words: int, size: int, tables: int, dropout: float) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.table = nn.Parameter(DEVIATION * torch.randn(num_words, tables * size))
        self.scale = nn.Parameter(torch.ones(tables))

    def forward(self, batch: DialogueBatch) -> tuple[Tensor, Tensor]:
        """Vectors of the batch's distinct words [U, D], and which of them are not the table's [U]."""
        drawn = batch.spelling != 0
        spelled = drawn.nonzero().squeeze(1)
        noise = self.table.new_empty(len(drawn), self.table.shape[1])
        noise[spelled] = normal_of(batch.spelling[spelled], noise.shape[1]).to(noise.dtype)
        if self.training and self.dropout > 0:
            chance = self.dropout / (self.dropout + batch.frequency)
            dropped = torch.rand_like(chance) < chance
            noise[dropped] = torch.randn_like(noise[dropped])
            drawn = drawn | dropped
        places = drawn.nonzero().squeeze(1)
        scale = DEVIATION * self.scale.repeat_interleave(self.size)
        vectors = functional.embedding(batch.word, self.table)
        return vectors.index_copy(0, places, noise[places] * scale), drawn


def normal_of(seeds: Tensor, size: int) -> Tensor:
    """Standard normal numbers that depend on a seed alone: the same on every machine and in every batch.

    Counters are mixed as in SplitMix64 (Steele, Lea, Flood 2014), and two halves of a result make a normal number
    (Box and Muller).

    Args:
        seeds: int64 [n].
        size: numbers a seed.

    Returns:
        float32 [n, size].
    """
    counter = torch.arange(1, size + 1, device=seeds.device) * -0x61C8864680B583EB
    mixed = seeds.unsqueeze(1) + counter
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    first, second = _shifted(mixed, 40) + 1, mixed & 0xFFFFFF  # 24 bits each
    radius = (-2 * (first * 2.0**-24).log()).sqrt()
    return radius * torch.cos(2 * torch.pi * 2.0**-24 * second)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shift right as if without a sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def encode_positions(vectors: Tensor, words: Tensor, place: Tensor, counts: Tensor, size: int) -> Tensor:
    """Sums of word vectors weighed by position (Equations 1 to 3): sum_j l_gj x_jg.

    l_gj = (1 - j/J) - (g/d)(1 - 2j/J) is a sum of two products of something of j and something of g, so two sums of
    vectors with a weight a word do, and no vector of a single word is made.

    Args:
        vectors: [U, D], tables of d columns side by side.
        words: int64 [n], the words of all texts, rows of `vectors`.
        place: int64 [n], places in their text from 1: j.
        counts: int64 [S], words of each text: J.
        size: d.

    Returns:
        [S, D]; 0 for a text without words.
    """
    share = place.to(vectors.dtype) / counts.repeat_interleave(counts)
    starts = counts.cumsum(0) - counts
    level, slope = (
        functional.embedding_bag(words, vectors, starts, mode="sum", per_sample_weights=weight)
        for weight in (1 - share, 1 - 2 * share)
    )
    place_in_vector = torch.arange(1, size + 1, device=vectors.device, dtype=vectors.dtype) / size  # g/d
    return level - place_in_vector.repeat(vectors.shape[1] // size) * slope


class Sentences(NamedTuple):
    """What R hops over the sentences found."""

    #: [P, d]: u_R, the last hop's probe, and o_R + u_R.
    probe: Tensor
    found: Tensor
    #: [P, N]: alpha of the last hop; 0 where there is nothing to read.
    attention: Tensor


class SentenceMemory(nn.Module):
    """Sentences as memories, read in R hops (Equations 1 to 5)."""

    def __init__(self, spec: DialogueSpec, options: Any) -> None:
        super().__init__()
        self.size, self.hops = options.word_size, options.hops
        tables = self.hops + 1
        self.words = OpenWords(spec.num_words, self.size, tables, options.word_dropout)
        self.time = None
        if options.temporal_encoding:
            self.time = nn.Parameter(DEVIATION * torch.randn(spec.num_turns, tables * self.size))

    def forward(self, batch: DialogueBatch, vectors: Tensor) -> Sentences:
        """Read the memory; `vectors` [U, D] are those of `words`."""
        memory, probe = self._encode(batch, vectors)
        tables = [
            table.index_select(0, batch.dialogue)  # [P, N, d]
            for table in memory.view(*batch.age.shape, -1, self.size).unbind(2)
        ]
        lowest = torch.finfo(probe.dtype).min
        found, attention = probe, probe.new_zeros(batch.readable.shape)
        for hop in range(self.hops):
            # A_{r+1} = C_r and T_A^{r+1} = T_C^r (Equation 4): a hop's output memory is the next one's input.
            probe = found
            energy = (tables[hop] @ probe.unsqueeze(2)).squeeze(2)
            attention = energy.masked_fill(~batch.readable, lowest).softmax(dim=1) * batch.readable
            found = probe + (attention.unsqueeze(1) @ tables[hop + 1]).squeeze(1)
        return Sentences(probe, found, attention)

    def _encode(self, batch: DialogueBatch, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Memories of all tables [B, N, D] (Equation 2) and u_1 [P, d] (Equation 3)."""
        (dialogues, turns), is_word = batch.age.shape, batch.text != 0
        number = torch.arange(dialogues, device=batch.text.device).unsqueeze(1) * turns + batch.turn
        counts = torch.bincount(number[is_word], minlength=dialogues * turns)
        memory = encode_positions(vectors, batch.text[is_word], batch.place[is_word], counts, self.size)
        memory = memory.view(dialogues, turns, -1)
        if self.time is not None:
            # The latest turn has index 1; what is older than any turn of the training counts as the oldest.
            memory = memory + self.time[batch.age.clamp(max=len(self.time) - 1)]
        is_asked = batch.question != 0
        place = is_asked.cumsum(dim=1)
        table = vectors[:, : self.size]
        asked, counts = batch.question[is_asked], is_asked.sum(dim=1)
        return memory, encode_positions(table, asked, place[is_asked], counts, self.size)

    def answer(self, batch: DialogueBatch, found: Tensor, vectors: Tensor, drawn: Tensor) -> Tensor:
        """Logarithm of p_S (Equation 5) over the choices: log softmax(C_R (o_R + u_R)) [P, V + X].

        Args:
            batch: of U words.
            found: [P, d].
            vectors: [U, D].
            drawn: bool [U], the words whose vector is not the table's.
        """
        of_words = found @ vectors[:, -self.size :].T  # [P, U]
        of_vocabulary = found @ self.words.table[:, -self.size :].T  # [P, V]
        changed = (drawn & (batch.spelling == 0)).nonzero().squeeze(1)
        of_vocabulary = of_vocabulary.index_copy(1, batch.word[changed], of_words[:, changed])
        own = batch.own[batch.dialogue]  # [P, X]
        energy = torch.cat([of_vocabulary, of_words.gather(1, own)], dim=1)
        is_choice = torch.cat([own.new_ones(of_vocabulary.shape), own], dim=1) != 0
        is_choice[:, :2] = False  # padding, and the vocabulary's "unknown word"
        return energy.masked_fill(~is_choice, torch.finfo(energy.dtype).min).log_softmax(dim=1)


class MemNNNetwork(nn.Module):
    """A memory of sentences alone: p_S."""

    def __init__(self, spec: DialogueSpec, options: Any) -> None:
        super().__init__()
        self.sentences = SentenceMemory(spec, options)

    def forward(self, batch: DialogueBatch) -> DialogueOutput:
        """Answer the questions of a batch; see `DialogueBatch` for the shapes."""
        # Sums and softmaxes are float32 whatever the precision.
        with torch.autocast(batch.text.device.type, enabled=False):
            vectors, drawn = self.sentences.words(batch)
            read = self.sentences(batch, vectors)
            return DialogueOutput(self.sentences.answer(batch, read.found, vectors, drawn), read.attention)


class WordMemory(nn.Module):
    """The words of a dialogue in context (Section 3.4): m_t, and attention on those of some sentences."""

    def __init__(self, size: int, kind: WordMemoryKind) -> None:
        super().__init__()
        self.gru = None
        if kind != "embedding":
            self.gru = AllStatesGRU(size, size, bidirectional=kind == "bigru")
        self.probe = nn.Linear(size, size, bias=False)  # W
        self.memory = nn.Linear(size, size, bias=False)  # U
        self.v = nn.Parameter(torch.empty(size))
        # As all of the paper's weights.
        for weight in self.parameters():
            nn.init.normal_(weight, std=DEVIATION)

    def states(self, vectors: Tensor, text: Tensor) -> Tensor:
        """m_t: the sum of the GRUs' states, of vectors [U, d] where `text` [B, L] says; [B, L, d]."""
        if self.gru is None:
            return vectors[text]
        states: Tensor = self.gru(vectors, text, (text != 0).sum(dim=1))
        return states.sum(dim=2)

    def attend(self, states: Tensor, probe: Tensor, place: Tensor, mask: Tensor, dialogue: Tensor) -> Tensor:
        """alpha_W = softmax_t(v . tanh(W u_R + U m_t)) over the kept words (Equation 6).

        Args:
            states: [B, L, d].
            probe: [P, d].
            place: int64 [P, M], places of the kept words in their dialogue.
            mask: bool [P, M], True where there is one.
            dialogue: int64 [P].

        Returns:
            [P, M], 0 where there is no word.
        """
        length = states.shape[1]
        projected = self.memory(states).flatten(0, 1)  # [B * L, d]
        kept = functional.embedding(dialogue.unsqueeze(1) * length + place, projected)  # [P, M, d]
        energy = (self.probe(probe).unsqueeze(1) + kept).tanh() @ self.v
        alpha: Tensor = energy.masked_fill(~mask, torch.finfo(energy.dtype).min).softmax(dim=1) * mask
        return alpha


def places_of_turns(batch: DialogueBatch, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The words of some turns.

    Args:
        batch: dialogues of L words, whose turns are runs of words.
        kept: int64 [P, k], turns; -1 = none.

    Returns:
        Places in the dialogue [P, M], M = k times the words of the longest turn; and whether there is a word.
    """
    is_word = batch.text != 0
    counts = torch.zeros_like(batch.age).scatter_add(1, batch.turn, is_word.long())  # [B, N]
    starts = counts.cumsum(dim=1) - counts
    of_turn, longest = kept.clamp(min=0), int(counts.max())
    count, start = (part[batch.dialogue].gather(1, of_turn) for part in (counts, starts))  # [P, k]
    step = torch.arange(longest, device=kept.device)
    mask = (step < count.unsqueeze(2)) & (kept >= 0).unsqueeze(2)  # [P, k, longest]
    place = (start.unsqueeze(2) + step).where(mask, 0)
    return place.flatten(1), mask.flatten(1)


class HMNNetwork(nn.Module):
    """Figure 1: a memory of sentences, k-max pooling, a memory of words."""

    def __init__(self, spec: DialogueSpec, options: Any) -> None:
        super().__init__()
        self.k = options.k
        self.sentences = SentenceMemory(spec, options)
        self.word_memory = WordMemory(options.word_size, options.word_memory)

    def forward(self, batch: DialogueBatch) -> DialogueOutput:
        """Answer the questions of a batch; see `DialogueBatch` for the shapes."""
        sentences = self.sentences
        with torch.autocast(batch.text.device.type, enabled=False):
            vectors, drawn = sentences.words(batch)
            read = sentences(batch, vectors)
            log_sentence = sentences.answer(batch, read.found, vectors, drawn)
            states = self.word_memory.states(vectors[:, -sentences.size :], batch.text)
            pointer = self._point(batch, read, states, log_sentence.shape[1])
        return DialogueOutput(log_sentence, read.attention, pointer)

    def _point(self, batch: DialogueBatch, read: Sentences, states: Tensor, choices: int) -> Pointer:
        """k-max pooling (Section 3.3), attention on words (Equation 6), and its sum by word (Equation 7)."""
        energy = read.attention.detach().masked_fill(~batch.readable, -1)
        strongest = energy.topk(min(self.k, energy.shape[1]), dim=1)
        kept = strongest.indices.masked_fill(strongest.values < 0, -1)
        place, mask = places_of_turns(batch, kept)
        weight = self.word_memory.attend(states, read.probe, place, mask, batch.dialogue)
        choice = batch.choice[batch.dialogue.unsqueeze(1), place]  # [P, M]
        by_choice = weight.new_zeros(len(place), choices).scatter_add(1, choice, weight)
        return Pointer(kept, place, weight, by_choice)


class MemNN(DialogueTask):
    """End-to-end memory network; MemNN-H1 is `hops=1`, MemNN-NT `temporal_encoding=False`.

    Example:
        >>> model = MemNN(hops=3)
    """

    paper = "Sukhbaatar, Szlam, Weston, Fergus: End-To-End Memory Networks (NIPS 2015)"

    def __init__(
        self,
        word_size: int = 100,
        hops: int = 3,
        temporal_encoding: bool = True,
        word_dropout: float = 3.0,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            word_size: d, of words, sentences and states.
            hops: R, how often the sentences are read.
            temporal_encoding: tell the network how long ago a sentence was said.
            word_dropout: strength s: in training, a word that n training dialogues have is unknown with probability
                s / (s + n). 0 = never, as in the paper.
            **shared: options of `DialogueTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "word_size", "hops")
        if word_dropout < 0:
            raise InputError(f"model.word_dropout={word_dropout}: must be 0 or more")

    @override
    def build_network(
        self, spec: DialogueSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return MemNNNetwork(spec, self.options)


class HMN(MemNN):
    """Hierarchical memory network with its three read-outs: HMN-Sent, HMN-Word, HMN-Joint.

    Example:
        >>> model = HMN(readout="joint", k=4)
    """

    paper = (
        "Xu, Shi, Yao, Zheng, Xu, Xu: Hierarchical Memory Networks for Answer Selection on Unknown Words"
        " (COLING 2016)"
    )
    readouts = ("sentence", "word", "joint")

    def __init__(
        self,
        readout: Readout = "joint",
        word_memory: WordMemoryKind = "bigru",
        k: int = 4,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            readout: what answers: `sentence` (p_S), `word` (p_W) or `joint` (both). All are trained together, and
                the scores of all are told; the epoch is chosen by this one.
            word_memory: how words are read in context: `bigru`, `gru` or `embedding` (not at all).
            k: sentences that are kept for the attention on words.
            **shared: options of `MemNN`, `DialogueTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "k")
        check_choices(
            self.options,
            readout=("sentence", "word", "joint"),
            word_memory=("bigru", "gru", "embedding"),
        )

    @property
    @override
    def readout(self) -> Readout:
        chosen: Readout = self.options.readout
        return chosen

    @override
    def build_network(
        self, spec: DialogueSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return HMNNetwork(spec, self.options)
