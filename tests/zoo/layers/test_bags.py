"""Bags of words."""

import torch
from torch.nn import functional

from zoo.layers.bags import TextBag
from zoo.layers.encoders import WordEncoder


def test_the_words_of_the_whole_batch_give_the_same_vectors() -> None:
    """A GPU encodes the words of the batch, and a CPU those of the texts alone."""
    torch.manual_seed(0)
    bag = TextBag(WordEncoder(20, 6))
    word = torch.tensor([0, 7, 3, 19, 4, 1, 1])
    text = torch.tensor([[1, 2, 2], [5, 6, 0], [0, 0, 0]])
    sums = functional.embedding_bag(text, bag.words(word), mode="sum")
    # Of the words of the texts, and of the batch.
    vectors = bag(word, text), sums / torch.tensor([[3], [2], [1]])
    torch.testing.assert_close(*vectors)
    gradients = [torch.autograd.grad(each[:, 1].sum(), bag.words.table)[0] for each in vectors]
    torch.testing.assert_close(*gradients)
    table = bag.words.table
    expected = torch.stack([(table[7] + 2 * table[3]) / 3, table[1], 0 * table[0]])
    torch.testing.assert_close(vectors[0], expected)
