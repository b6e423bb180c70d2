"""Training steps of two of the papers' models, compared with the plainest correct PyTorch version of each.

| model | plain version |
|---|---|
| KNNBiLSTM | encodes each text and each neighbour as a row of its own, and each word where it stands |
| ExpaNet | encodes each text and each memory as a row of its own, and Adam updates both tables whole |

All contenders of a model start from the same weights, see the same batches in turns, and must have the same losses. A
step is forward, backward and Adam. Texts are seeded draws with Zipf's distribution; a memory is shared by some texts
of a batch.

    python -m tests.benchmarks.training_steps [--models ExpaNet] [--threads 1] [--steps 20]
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from datamodules.batch import ClassificationBatch, ClassificationSpec
from tests.benchmarks.timing import alternate, parser, zipf
from zoo import ExpaNet, KNNBiLSTM
from zoo.layers.encoders import WordEncoder
from zoo.layers.row_adam import update_by_rows
from zoo.tasks.model import Given


class Contender(NamedTuple):
    """A network, its loss for a batch, and the update of its weights."""

    network: nn.Module
    loss: Callable[[Any], Tensor]
    optimizer: torch.optim.Optimizer


def contender(network: nn.Module, loss: Callable[[Any], Tensor], fused: bool = True) -> Contender:
    """With dense Adam."""
    return Contender(network, loss, torch.optim.Adam(network.parameters(), lr=1e-3, fused=fused or None))


def race(contenders: dict[str, Contender], batches: Iterator[ClassificationBatch], steps: int) -> None:
    """Print CPU times of steps, relative to those of the zoo."""
    losses: dict[str, list[float]] = {name: [] for name in contenders}
    shared = dict(zip(contenders, itertools.tee(batches, len(contenders)), strict=True))

    def step(name: str) -> None:
        _, loss_of, optimizer = contenders[name]
        optimizer.zero_grad()
        loss = loss_of(next(shared[name]))
        loss.backward()
        optimizer.step()
        losses[name].append(float(loss.detach()))

    works = {name: (lambda name=name: step(name)) for name in contenders}
    seconds = alternate(works, steps)
    for name, taken in seconds.items():
        largest = max(abs(a - b) for a, b in zip(losses[name], losses["zoo"], strict=True))
        assert largest < 1e-3, f"{name}: another loss"
        print(
            f"  {name:26} {1000 * taken:8.1f} CPU ms a step, {taken / seconds['zoo']:6.2f} x the zoo's;"
            f" losses differ by {largest:.0e}",
            flush=True,
        )


def classification_batches(
    rows: int, k: int, lengths: tuple[int, int], words: int, distinct: int, chars: int = 0
) -> Iterator[ClassificationBatch]:
    """Batches of texts of 6 classes with k memories each, of a number of distinct memories."""
    random = np.random.default_rng(0)
    spelling = random.integers(1, max(2, chars), size=(words, 12))
    spelling[:, 3:] *= np.arange(3, 12) < random.integers(3, 13, size=(words, 1))
    spelling[0] = 0
    while True:
        ids = zipf(random, (rows + distinct, lengths[1]), words - 1)
        longest = random.integers(lengths[0], lengths[1] + 1, size=len(ids))
        ids[np.arange(lengths[1]) >= longest[:, None]] = 0
        word, places = np.unique(np.concatenate([[0], ids.ravel()]), return_inverse=True)
        texts = torch.from_numpy(places.ravel()[1:].reshape(ids.shape))
        yield ClassificationBatch(
            word=torch.from_numpy(word),
            char=torch.from_numpy(spelling[word] if chars else spelling[word][:, :0]),
            text=texts[:rows],
            memory_text=texts[rows:],
            memory=torch.from_numpy(random.integers(0, distinct, size=(rows, k))),
            memory_mask=torch.ones(rows, k, dtype=torch.bool),
            memory_score=torch.ones(rows, k),
            memory_target=torch.from_numpy(random.integers(0, 6, size=(rows, k))),
            target=torch.from_numpy(random.integers(0, 6, size=rows)),
            weight=torch.ones(rows),
            row=torch.arange(rows),
        )


def spec_of(words: int, chars: int, k: int) -> ClassificationSpec:
    return ClassificationSpec(words, chars, list("abcdef"), list("abcdef"), k)


def knn_bilstm(steps: int) -> None:
    """M7 with 5 neighbours of 20 to 60 words."""
    given = Given(spec_of(30_000, 60, 5), torch.randn(30_000, 300))
    network: Any = KNNBiLSTM(features="M7").build_network(given)
    plain = copy.deepcopy(network)
    race(
        {
            "zoo": contender(network, lambda b: functional.cross_entropy(network(b).logits, b.target)),
            "plain": contender(plain, lambda b: functional.cross_entropy(plain_knn(plain, b), b.target)),
        },
        classification_batches(64, 5, (20, 60), 30_000, 240, chars=60),
        steps,
    )


def plain_knn(network: Any, batch: ClassificationBatch) -> Tensor:
    """The paper's M7 as one would write it down, with the network's weights."""
    words, encoder = network.encoder.words, network.encoder

    def last_states(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = nn.LSTM.forward(lstm, packed)
        return last.transpose(0, 1).flatten(1)

    def encode(texts: Tensor) -> Tensor:
        mask = texts != 0
        ids, chars = batch.word[texts][mask], batch.char[texts][mask]  # [tokens], [tokens, L]
        spelled = last_states(words.char_lstm, words.char_table(chars), (chars != 0).sum(1))
        vectors = texts.new_zeros(*texts.shape, words.size, dtype=torch.float32)
        vectors[mask] = torch.cat([words.table[ids], spelled], dim=1)
        return last_states(encoder.lstm, vectors, mask.sum(1))

    h = encode(batch.text)
    neighbors = encode(batch.memory_text[batch.memory.flatten()]).view(*batch.memory.shape, -1)
    label, text = [], []
    for weight in network.similarity.weight:
        s = functional.cosine_similarity(weight * h.unsqueeze(1), weight * neighbors, dim=2)
        label.append(s.unsqueeze(1) @ functional.one_hot(batch.memory_target, 6).float())
        text.append(s.unsqueeze(1) @ neighbors)
    features = [h, torch.cat(label, 2).squeeze(1), torch.cat(text, 2).squeeze(1)]
    return network.classifier(torch.cat(features, dim=1))


def expanet(steps: int) -> None:
    """H = 3, 20 titles of 15 words, 30,000 words."""
    network: Any = ExpaNet(hops=3, word_size=100).build_network(Given(spec_of(30_000, 0, 20)))
    contenders = {}
    for name, fused in (("plain, dense Adam", False), ("plain, fused dense Adam", True)):
        plain = PlainExpaNet(network)
        contenders[name] = contender(
            plain, lambda b, plain=plain: functional.cross_entropy(plain(b), b.target), fused
        )
    tables = [module for module in network.modules() if isinstance(module, WordEncoder)]
    own = contender(network, lambda b: functional.cross_entropy(network(b).logits, b.target))
    contenders["zoo"] = own._replace(optimizer=update_by_rows(own.optimizer, tables))
    race(contenders, classification_batches(32, 20, (15, 15), 30_000, 500), steps)


class PlainExpaNet(nn.Module):
    """The paper's equations as one would write them down."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        tables = network.text.words.table, network.memory.words.table
        self.a, self.b = (
            nn.Embedding.from_pretrained(table.detach().clone(), freeze=False, padding_idx=0)
            for table in tables
        )
        size = self.a.embedding_dim
        self.gates = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(6))
        self.head = copy.deepcopy(network.classifier)
        with torch.no_grad():
            given = [*network.expand.of_text.weight.chunk(3), *network.expand.of_memories.weight.chunk(3)]
            for gate, weight in zip(self.gates, given, strict=True):
                gate.weight.copy_(weight)

    def forward(self, batch: ClassificationBatch) -> Tensor:
        """Logits of texts without padding."""
        wz, wr, w, uz, ur, u = self.gates
        q = self.a(batch.word[batch.text]).mean(dim=1)
        d = self.b(batch.word[batch.memory_text[batch.memory]]).mean(dim=2)
        expanded = q
        for _ in range(3):
            a = torch.softmax(torch.einsum("bd,bkd->bk", expanded, d), dim=1)
            o = torch.einsum("bk,bkd->bd", a, d)
            z = torch.sigmoid(wz(expanded) + uz(o))
            r = torch.sigmoid(wr(expanded) + ur(o))
            expanded = (1 - z) * expanded + z * torch.tanh(w(expanded) + r * u(o))
        return self.head(torch.cat([q, expanded], dim=1))


RACES: dict[str, Callable[[int], None]] = {"KNNBiLSTM": knn_bilstm, "ExpaNet": expanet}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", choices=RACES, default=list(RACES))
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--steps", type=int, default=20)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_flush_denormal(True)
    for name in given.models:
        print(f"{name}: {RACES[name].__doc__}", flush=True)
        torch.manual_seed(0)
        RACES[name](given.steps)


if __name__ == "__main__":
    main()
