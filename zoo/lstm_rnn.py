"""Embedding of sentences for retrieval by a recurrent network that is trained on clicks: LSTM-RNN.

Hamid Palangi, Li Deng, Yelong Shen, Jianfeng Gao, Xiaodong He, Jianshu Chen, Xinying Song, Rabab Ward: "Deep Sentence
Embedding Using Long Short-Term Memory Networks: Analysis and Application to Information Retrieval", IEEE/ACM
Transactions on Audio, Speech, and Language Processing 24(4), 2016.

    l(t)   counts of the letter trigrams of word t
    y_g(t) = tanh(W4 l(t) + R4 y(t-1) + b4)
    i(t)   = sigmoid(W3 l(t) + R3 y(t-1) + b3)
    c(t)   = c(t-1) + i(t) * y_g(t)
    o(t)   = sigmoid(W1 l(t) + R1 y(t-1) + b1)
    y(t)   = o(t) * tanh(c(t))                                              (Equation 2)

A sentence's embedding is y at its last word; its relevance to a query is the cosine of the two embeddings (Equation 3).
As in the paper's experiments, there are neither peepholes P nor a forget gate (f = 1); so the model runs on the fast
kernels of `zoo.layers.recurrent`. The paper's other networks are y(t) = tanh(W l(t) + R y(t-1) + b) (Equation 1), and
one that reads sentences in both directions and concatenates both embeddings.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from datamodules.batch import ClickSpec
from datamodules.core.types import Size
from zoo.layers.dual_encoder import Tower, TrigramLayer
from zoo.layers.recurrent import last_states
from zoo.tasks.retrieval.task import TrigramRetrieval

#: Names of the states and gates of a trace: y, c, i and o of the equations.
TRACED = ("state", "cell", "input_gate", "output_gate")


class RecurrentTower(Tower):
    """The embedding of a text: the recurrent network's state at its last word."""

    def __init__(self, spec: ClickSpec, options: LSTMRNN) -> None:
        super().__init__()
        self.cell, self.hidden_size = options.cell, options.hidden_size
        self.directions = 2 if options.bidirectional else 1
        #: rows of R and columns of W, in this order.
        self.gates = ("state",) if self.cell == "rnn" else ("input", "output", "cell")
        hidden_size, rows = self.hidden_size, len(self.gates) * self.hidden_size
        # W of all gates and directions: each word's product is computed once, however often the word occurs.
        columns = self.directions * rows
        self.hashing = TrigramLayer(spec.num_chars, options.trigrams(spec), columns, hidden_size)
        self.recurrent = nn.Parameter(torch.empty(self.directions, rows, hidden_size))  # R
        self.bias = nn.Parameter(torch.zeros(self.directions, rows))
        bound = hidden_size**-0.5
        nn.init.uniform_(self.recurrent, -bound, bound)
        self.size = self.directions * hidden_size

    def forward(self, words: Tensor, text: Tensor) -> Tensor:
        """Embed texts int64 [N, T], positions in `words`, 0 = padding: [N, size]; 0 for a text without words.

        `words` [U, directions * gates * H] are the products W l of the batch's distinct words.
        """
        lengths = (text != 0).sum(dim=1)
        if self.cell == "lstm":
            return last_states(self._products(words), self.recurrent, text, lengths)
        states = self.trace(words, text)["state"]
        last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, self.hidden_size)
        forward = states[..., : self.hidden_size].gather(1, last).squeeze(1)
        # The last state of a backward network is at the first word.
        return torch.cat([forward, states[:, 0, self.hidden_size :]], dim=1)

    def trace(self, words: Tensor, text: Tensor) -> dict[str, Tensor]:
        """Compute the equations step by step, both directions at once; arguments as in `forward`.

        Returns:
            Those of `TRACED` that the network has, at each word: float32 [N, T, directions * H], 0 after a text's end.
        """
        n, length = text.shape
        products, lengths = self._products(words), (text != 0).sum(dim=1)
        position = torch.arange(length, device=text.device)
        reverse = (lengths.unsqueeze(1) - 1 - position).clamp(min=0)  # [N, T]
        read = torch.stack([text, text.gather(1, reverse)][: self.directions])  # [directions, N, T]
        state = products.new_zeros(self.directions, n, self.hidden_size)
        cell = torch.zeros_like(state)
        direction = torch.arange(self.directions, device=text.device).unsqueeze(1)
        steps: list[tuple[Tensor, ...]] = []
        for t in range(length):
            # [directions, N, gates * H]: the sums in parentheses.
            before = products[direction, read[:, :, t]] + torch.bmm(state, self.recurrent.transpose(1, 2))
            # Steps after a text's end are zeroed below, and no word follows them.
            if self.cell == "rnn":
                state = before.tanh()
                steps.append((state,))
                continue
            i, o, g = torch.split(before, self.hidden_size, dim=2)
            i, o = i.sigmoid(), o.sigmoid()
            cell = cell + i * g.tanh()
            state = o * cell.tanh()
            steps.append((state, cell, i, o))
        is_word = (position < lengths.unsqueeze(1)).view(1, n, length, 1)
        parts = []
        for values in zip(*steps, strict=True):
            part = torch.stack(values, dim=2) * is_word  # [directions, N, T, H]
            if self.directions == 2:
                order = reverse.view(1, n, length, 1).expand(1, -1, -1, self.hidden_size)
                part = torch.cat([part[:1], part[1:].gather(2, order) * is_word])
            parts.append(part.permute(1, 2, 0, 3).flatten(2))
        return dict(zip(TRACED, parts, strict=False))

    def _products(self, words: Tensor) -> Tensor:
        """W l + b: [directions, U, gates * H]."""
        rows = self.bias.shape[1]
        return words.float().view(len(words), self.directions, rows).transpose(0, 1) + self.bias.unsqueeze(1)


class LSTMRNN(TrigramRetrieval):
    """The paper's model. The data must keep the letters of words, as it does by default.

    Args:
        cell: `lstm`, or `rnn` for a recurrent network without gates.
        hidden_size: H, size of one direction's state (the paper's: 32, 64 and 96 for `lstm`, 288 for `rnn`).
        bidirectional: read texts in both directions, and concatenate both embeddings.
    """

    def __init__(
        self,
        cell: Literal["lstm", "rnn"] = "lstm",
        hidden_size: Size = 96,
        bidirectional: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.cell, self.hidden_size, self.bidirectional = cell, hidden_size, bidirectional

    @override
    def make_tower(self, spec: ClickSpec) -> RecurrentTower:
        return RecurrentTower(spec, self)

    @override
    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if not gradient_clip_val or gradient_clip_algorithm == "value":
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        # As in the paper's Algorithm 1, each network has a norm of its own.
        for tower in dict.fromkeys((self.network.query, self.network.document)):
            nn.utils.clip_grad_norm_(tower.parameters(), gradient_clip_val)
