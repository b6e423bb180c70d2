"""TextCNN, BiGRU and FastText against plain loops over one text at a time."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from datamodules.batch import ClassificationBatch, ClassificationSpec
from tests.zoo.baselines.helpers import network_of, with_short_texts
from tests.zoo.baselines.pairs import windows
from tests.zoo.plain import numbers
from zoo.baselines.word_networks import BiGRU, FastText, TextCNN
from zoo.layers.bags import bigram_buckets
from zoo.tasks.model import Given


@pytest.fixture
def made(adapters: Any) -> tuple[ClassificationSpec, ClassificationBatch]:
    return with_short_texts(adapters("classification"))


def words_of(network: Any, batch: ClassificationBatch) -> list[Tensor]:
    return [network.words.table[batch.word[text[text != 0]]] for text in batch.text]


def compare(network: Any, batch: ClassificationBatch, expected: list[Tensor]) -> None:
    vectors = network.encode_texts(batch)
    torch.testing.assert_close(vectors, torch.stack(expected))
    logits = network(batch).logits
    torch.testing.assert_close(logits, network.classifier(vectors))
    assert not vectors[2].any()


def test_text_cnn(made: tuple[ClassificationSpec, ClassificationBatch]) -> None:
    spec, batch = made
    network = network_of(TextCNN(windows=(2, 3), filters=4, word_size=6), spec)
    expected = []
    for words in words_of(network, batch):
        parts = []
        for convolution in network.convolutions:
            weights = numbers(convolution)
            matrices = weights["kernel.weight"].reshape(convolution.window, 4, 6)
            states = windows(words.detach().numpy(), matrices) + weights["bias"]
            parts.append(states.max(axis=0, initial=0))
        expected.append(torch.from_numpy(np.concatenate(parts)).float())
    compare(network, batch, expected)


def test_bi_gru_is_pytorchs(made: tuple[ClassificationSpec, ClassificationBatch]) -> None:
    spec, batch = made
    network = network_of(BiGRU(hidden_size=5, word_size=6), spec)
    plain = nn.GRU(6, 5, bidirectional=True)
    plain.load_state_dict(network.gru.state_dict())
    expected = [
        plain(words)[1].flatten() if len(words) else torch.zeros(10) for words in words_of(network, batch)
    ]
    compare(network, batch, expected)


@pytest.mark.parametrize("num_buckets", [0, 40])
def test_fasttext(made: tuple[ClassificationSpec, ClassificationBatch], num_buckets: int) -> None:
    spec, batch = made
    network = network_of(FastText(num_buckets=num_buckets, word_size=6), spec)
    expected = []
    for text, words in zip(batch.text, words_of(network.bag, batch), strict=True):
        features = list(words)
        real = text[text != 0]
        for i in range(len(real) - 1 if num_buckets else 0):
            [[bucket]] = bigram_buckets(batch.word, real[None, i : i + 2], num_buckets).tolist()
            assert bucket >= 1
            features.append(network.bag.bigrams.table[bucket])
        expected.append(torch.stack(features).mean(dim=0) if features else torch.zeros(6))
    compare(network, batch, expected)


def test_buckets_depend_on_the_order_and_are_used_evenly() -> None:
    word = torch.arange(300)
    first, second = torch.meshgrid(torch.arange(1, 300), torch.arange(1, 300), indexing="ij")
    pairs = torch.stack([first.flatten(), second.flatten()], dim=1)
    buckets = bigram_buckets(word, pairs, 1000).flatten()
    assert buckets.min() == 1
    assert buckets.max() == 1000
    counts = torch.bincount(buckets, minlength=1001)[1:]
    # 89 pairs per bucket; with random numbers, 1 bucket in 30,000 would have more than 89 + 4.2 sqrt(89).
    assert counts.max() < 132
    reversed_pairs = bigram_buckets(word, pairs.flip(1), 1000).flatten()
    assert (reversed_pairs == buckets).float().mean() < 0.01  # equal words, and a thousandth of the others


def test_vectors_for_retrieval(made: tuple[ClassificationSpec, ClassificationBatch]) -> None:
    spec, batch = made
    model = TextCNN(windows=(2,), filters=4, word_size=6)
    model._build(Given(spec))
    assert model.encode_texts(batch).shape == (len(batch.text), model.vector_size)
