"""A training step of the kNN-augmented BiLSTM compared with the plainest correct PyTorch version of it.

The plain version encodes each text and each of its neighbours as a row of its own, every word by table and
character LSTM where it stands, with `nn.LSTM` on packed sequences. Both compute the same loss from the same
weights (checked first). Texts are seeded draws with Zipf's distribution; a neighbour is shared by some texts of a
batch, as neighbours are.

    python -m tests.benchmarks.model_step [--threads 2] [--steps 5]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from datamodules.batch import ClassificationBatch, ClassificationSpec
from zoo import KNNBiLSTM
from zoo.knn_bilstm import KNNNetwork

BATCH, K, WORDS, VOCABULARY, CHARS, CLASSES = 64, 5, 40, 30_000, 60, 4


def make_batch(random: np.random.Generator) -> ClassificationBatch:
    """A batch of texts of 20 to 60 words with 5 neighbours each, drawn from 240 distinct ones."""
    weights = 1 / np.arange(1, VOCABULARY)
    weights /= weights.sum()
    distinct_memories = 240

    def draw(rows: int) -> np.ndarray:
        ids = random.choice(np.arange(1, VOCABULARY), size=(rows, WORDS + 20), p=weights)
        lengths = random.integers(WORDS - 20, WORDS + 21, size=rows)
        return np.where(np.arange(WORDS + 20) < lengths[:, None], ids, 0)

    texts, memories = draw(BATCH), draw(distinct_memories)
    words, positions = np.unique(np.concatenate([[0], texts.ravel(), memories.ravel()]), return_inverse=True)
    positions = positions[1:]
    spelling = np.random.default_rng(1).integers(1, CHARS, size=(VOCABULARY, 12))
    spelling[:, 3:] *= np.arange(3, 12) < np.random.default_rng(2).integers(3, 13, size=(VOCABULARY, 1))
    spelling[0] = 0
    return ClassificationBatch(
        word=torch.from_numpy(words),
        char=torch.from_numpy(spelling[words]),
        text=torch.from_numpy(positions[: texts.size].reshape(texts.shape)),
        memory_text=torch.from_numpy(positions[texts.size :].reshape(memories.shape)),
        memory=torch.from_numpy(random.integers(0, distinct_memories, size=(BATCH, K))),
        memory_mask=torch.ones(BATCH, K, dtype=torch.bool),
        memory_score=torch.ones(BATCH, K),
        memory_target=torch.from_numpy(random.integers(0, CLASSES, size=(BATCH, K))),
        target=torch.from_numpy(random.integers(0, CLASSES, size=BATCH)),
        weight=torch.ones(BATCH),
        row=torch.arange(BATCH),
    )


def plain_logits(network: KNNNetwork, batch: ClassificationBatch) -> Tensor:
    """The paper's M7 as one would write it down, with the network's weights."""
    words, encoder = network.encoder.words, network.encoder

    def last_states(lstm: torch.nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = torch.nn.LSTM.forward(lstm, packed)
        return last.transpose(0, 1).flatten(1)

    def encode(texts: Tensor) -> Tensor:
        mask = texts != 0
        ids, chars = batch.word[texts][mask], batch.char[texts][mask]  # [tokens], [tokens, L]
        spelled = last_states(words.char_lstm, words.char_table(chars), (chars != 0).sum(1))
        vectors = texts.new_zeros(*texts.shape, words.size, dtype=torch.float32)
        vectors[mask] = torch.cat([words.table[ids], spelled], dim=1)
        return last_states(encoder.lstm, vectors, mask.sum(1))

    h = encode(batch.text)
    neighbors = encode(batch.memory_text[batch.memory.flatten()]).view(BATCH, K, -1)
    label, text = [], []
    for weight in network.similarity.weight:
        s = functional.cosine_similarity(weight * h.unsqueeze(1), weight * neighbors, dim=2)
        label.append(s.unsqueeze(1) @ functional.one_hot(batch.memory_target, CLASSES).float())
        text.append(s.unsqueeze(1) @ neighbors)
    features = [h, torch.cat(label, 2).squeeze(1), torch.cat(text, 2).squeeze(1)]
    return network.classifier(torch.cat(features, dim=1))


def main() -> None:
    """Check that both agree, then time them in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = KNNBiLSTM(features="M7")
    spec = ClassificationSpec(VOCABULARY, CHARS, list("abcd"), list("abcd"), K)
    network = model.build_network(spec, torch.randn(VOCABULARY, 300), None)
    batches = [make_batch(random) for _ in range(options.steps)]
    difference = (network(batches[0]).logits - plain_logits(network, batches[0])).abs().max().item()
    print(f"largest difference of a logit: {difference:.1e}")
    assert difference < 1e-4

    contenders = {"zoo": lambda b: network(b).logits, "plain": lambda b: plain_logits(network, b)}
    cpu, wall = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0.0)
    for batch in batches:
        for name, logits in contenders.items():
            before = time.process_time(), time.perf_counter()
            network.zero_grad()
            functional.cross_entropy(logits(batch), batch.target).backward()
            cpu[name] += (time.process_time() - before[0]) / options.steps
            wall[name] += (time.perf_counter() - before[1]) / options.steps
    for name in contenders:
        print(f"{name:6s} {1000 * cpu[name]:8.0f} CPU ms a step  {1000 * wall[name]:8.0f} ms")
    print(f"plain / zoo: {cpu['plain'] / cpu['zoo']:.2f} x CPU, {wall['plain'] / wall['zoo']:.2f} x time")


if __name__ == "__main__":
    main()
