"""A training step of ExpaNet compared with the plainest correct PyTorch version of it, with dense gradients.

The plain version encodes each text and each memory as a row of its own from `nn.Embedding` tables, and Adam goes over
both tables whole. Both start from the same weights and see the same batches, and their losses are compared. Texts are
seeded draws with Zipf's distribution; a memory is shared by some texts of a batch, as memories are. A step is timed
whole: forward, backward and optimizer.

    python -m tests.benchmarks.expanet_step [--threads 1] [--steps 40] [--words 30000]
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch, ClassificationSpec
from zoo import ExpaNet
from zoo.expanet import MemoryNetwork
from zoo.layers.row_adam import RowTable, update_by_rows

BATCH, K, LENGTH, SIZE, HOPS, CLASSES = 32, 20, 15, 100, 3, 6


def make_batch(random: np.random.Generator, vocabulary: int) -> ClassificationBatch:
    """32 texts with 20 memories each of 15 words, the memories drawn from 500 distinct ones."""
    weights = 1 / np.arange(1, vocabulary)
    weights /= weights.sum()
    distinct = 500
    ids = random.choice(np.arange(1, vocabulary), size=(BATCH + distinct, LENGTH), p=weights)
    words, positions = np.unique(np.concatenate([[0], ids.ravel()]), return_inverse=True)
    positions = positions[1:].reshape(ids.shape)
    return ClassificationBatch(
        word=torch.from_numpy(words),
        char=torch.zeros(len(words), 0, dtype=torch.long),
        text=torch.from_numpy(positions[:BATCH]),
        memory_text=torch.from_numpy(positions[BATCH:]),
        memory=torch.from_numpy(random.integers(0, distinct, size=(BATCH, K))),
        memory_mask=torch.ones(BATCH, K, dtype=torch.bool),
        memory_score=torch.ones(BATCH, K),
        memory_target=torch.from_numpy(random.integers(0, CLASSES, size=(BATCH, K))),
        target=torch.from_numpy(random.integers(0, CLASSES, size=BATCH)),
        weight=torch.ones(BATCH),
        row=torch.arange(BATCH),
    )


class Plain(nn.Module):
    """The paper's equations as one would write them down."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__()
        tables = network.text.words.table, network.memory.words.table
        self.a, self.b = (
            nn.Embedding.from_pretrained(table.detach().clone(), freeze=False, padding_idx=0)
            for table in tables
        )
        self.gates = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(6))
        self.head = nn.Linear(2 * SIZE, CLASSES, bias=False)
        with torch.no_grad():
            given = [*network.expand.of_text.weight.chunk(3), *network.expand.of_memories.weight.chunk(3)]
            for gate, weight in zip(self.gates, given, strict=True):
                gate.weight.copy_(weight)
            self.head.weight.copy_(network.classifier.weight)

    def forward(self, text: Tensor, memories: Tensor) -> Tensor:
        """Logits of texts [B, T] with memories [B, K, S], both vocabulary ids."""
        wz, wr, w, uz, ur, u = self.gates
        q = self.a(text).mean(dim=1)
        d = self.b(memories).mean(dim=2)
        expanded = q
        for _ in range(HOPS):
            a = torch.softmax(torch.einsum("bd,bkd->bk", expanded, d), dim=1)
            o = torch.einsum("bk,bkd->bd", a, d)
            z = torch.sigmoid(wz(expanded) + uz(o))
            r = torch.sigmoid(wr(expanded) + ur(o))
            expanded = (1 - z) * expanded + z * torch.tanh(w(expanded) + r * u(o))
        return self.head(torch.cat([q, expanded], dim=1))


def main() -> None:
    """Check that both agree, then time them in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--words", type=int, default=30_000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    spec = ClassificationSpec(options.words, 0, list("abcdef"), list("abcdef"), K)
    network = ExpaNet(hops=HOPS, word_size=SIZE).build_network(spec, None, None)
    assert isinstance(network, MemoryNetwork)
    contenders: dict[
        str, tuple[nn.Module, torch.optim.Optimizer, Callable[[ClassificationBatch], Tensor]]
    ] = {}
    for name, fused in (("plain, dense Adam", False), ("plain, fused dense Adam", True)):
        plain = Plain(network)
        contenders[name] = (
            plain,
            torch.optim.Adam(plain.parameters(), lr=1e-3, fused=fused or None),
            lambda batch, plain=plain: plain(
                batch.word[batch.text], batch.word[batch.memory_text[batch.memory]]
            ),
        )
    dense = copy.deepcopy(network)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(dense.parameters(), lr=1e-3, fused=True)
    contenders["zoo, fused dense Adam"] = dense, optimizer, lambda batch: dense(batch).logits
    tables = [module for module in network.modules() if isinstance(module, RowTable)]
    optimizer = update_by_rows(torch.optim.Adam(network.parameters(), lr=1e-3, fused=True), tables)
    contenders["zoo"] = network, optimizer, lambda batch: network(batch).logits

    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    losses: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.steps):
        batch = make_batch(random, options.words)
        for name, (_, optimizer, logits) in contenders.items():
            before = time.process_time()
            optimizer.zero_grad()
            loss = functional.cross_entropy(logits(batch), batch.target)
            loss.backward()
            optimizer.step()
            cpu[name].append(time.process_time() - before)
            losses[name].append(float(loss.detach()))
    difference = max(abs(a - b) for a, b in zip(losses["zoo"], losses["plain, dense Adam"], strict=True))
    print(f"largest difference of a loss in {options.steps} steps: {difference:.1e}")
    assert difference < 1e-3
    # The first steps warm caches up.
    medians = {name: float(np.median(times[3:])) for name, times in cpu.items()}
    for name, seconds in medians.items():
        ratio = seconds / medians["zoo"]
        print(
            f"{name:24s} {1000 * seconds:7.1f} CPU ms a step {BATCH / seconds:8.0f} examples a CPU second"
            f" {ratio:6.2f} x"
        )


if __name__ == "__main__":
    main()
