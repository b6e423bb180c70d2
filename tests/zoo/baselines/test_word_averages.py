"""SkipGram, LINE and PTE against gensim, plain loops and counts."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gensim.models import Word2Vec
from sklearn.svm import LinearSVC
from torch import Tensor

from datamodules import ClassificationDataModule
from datamodules.classification import label_numbers
from tests.datamodules.kinds import prepared
from tests.zoo.adapters import Classification
from tests.zoo.baselines.helpers import finished
from tests.zoo.conftest import write_table
from zoo.baselines.word_averages import (
    LINE,
    PTE,
    Corpus,
    SkipGram,
    WordAverages,
    draw_edge,
    noise_tables,
    read_corpus,
    sample_edges,
)

#: Three texts of five words, one without any, one memory.
CORPUS = Corpus(
    np.array([2, 3, 4, 5, 6, 2, 2, 3, 7, 8, 9], np.int32),
    np.array([0, 5, 5, 7, 8, 11]),
    np.array([0, 1, 0, 1, -1]),
)
TEXT_OF = np.repeat(np.arange(5), np.diff(CORPUS.offsets))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Classification:
    return Classification(tmp_path_factory.mktemp("averages"))


def vectors_of(model: Any, data: Any, name: str) -> Tensor:
    batches = data.dataset(data.split(name)).batches(16)
    return torch.cat([model.vectors(batch)[0] for batch in batches])


@pytest.mark.parametrize("model", [SkipGram(word_size=6, expand="join"), PTE(word_size=6, expand="separate")])
def test_means_are_over_the_words_of_a_text_and_its_memories(adapter: Classification, model: Any) -> None:
    finished(model, adapter.data)
    batch, table = adapter.batch, model.fitted["vectors"]
    vectors, shares = model.vectors(batch)
    assert torch.equal(shares, model(batch).memory_weight)
    assert not batch.memory_mask[0].any()
    for row, mask in enumerate(batch.memory_mask):
        texts = [batch.text[row], *batch.memory_text[batch.memory[row]][batch.memory_mask[row]]]
        words = (batch.word[each[each != 0]] for each in texts)
        text, *memories = (each[model.fitted["known"][each]] for each in words)
        parts = [[text, *memories]] if model.expand == "join" else [[text], memories]
        means = [table[torch.cat(part)].mean(dim=0) if part else torch.zeros(6) for part in parts]
        torch.testing.assert_close(vectors[row], torch.cat(means))
        shared = sum(map(len, parts[-1]))
        torch.testing.assert_close(shares[row][mask], torch.tensor([len(each) / shared for each in memories]))
    assert not model.fitted["known"][:2].any()  # padding, the unknown word


def test_separate_means_have_their_own_weights(adapter: Classification) -> None:
    data, batch = adapter.data, adapter.batch
    model = finished(PTE(word_size=6, epochs=20, expand="separate"), data)
    vectors, _ = model.vectors(batch)
    machine = LinearSVC(random_state=0, dual=False).fit(
        vectors_of(model, data, "train").numpy(), label_numbers(data.split("train").rows, data.spec.labels)
    )
    assert machine.coef_.shape == (3, 12)
    expected = torch.from_numpy(machine.decision_function(vectors.numpy())).float()
    torch.testing.assert_close(model(batch).logits, expected)


def test_the_corpus_is_cut_and_has_other_tables_memories(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", [("a b c d", "x"), ("e a", "y")] * 3)
    memory = write_table(tmp_path / "m.csv", [("a z y w",), ("e",)], ("text",))
    files = {"train_file": str(table), "validation_file": str(table), "memory": str(memory)}
    data = prepared(ClassificationDataModule(**files, num_memories=2, max_length=3, memory_max_length=2))

    def texts_of(corpus: Corpus) -> list[str]:
        words = [data.words.vocabulary.words[number] for number in corpus.words]
        ends = corpus.offsets
        return [" ".join(words[start:end]) for start, end in pairwise(ends)]

    labels = np.array([0, 1] * 3)
    assert texts_of(read_corpus(data, labels, with_memories=False)) == ["a b c", "e a"] * 3
    corpus = read_corpus(data, labels, with_memories=True)
    assert sorted(texts_of(corpus)[6:]) == ["a z", "e"]
    assert corpus.labels.tolist() == [*labels, -1, -1]


def test_the_seed_decides(adapter: Classification) -> None:
    for model in (SkipGram, LINE, PTE):
        fits = []
        for adapter.data.seed in (1, 1, 2):
            fits.append(finished(model(word_size=5, epochs=3), adapter.data).fitted)
        for name in ("vectors", "weight"):
            assert torch.equal(fits[0][name], fits[1][name])
        assert not torch.equal(fits[0]["vectors"], fits[2]["vectors"])


def test_skip_gram_is_gensims(adapter: Classification) -> None:
    adapter.data.seed = 0
    model = finished(SkipGram(word_size=6, epochs=4), adapter.data)
    texts = [text.split() for text in adapter.data.split("train").rows.texts]
    reference = Word2Vec(texts, sg=1, vector_size=6, epochs=4, min_count=1, workers=1, seed=0)
    number = {word: i for i, word in enumerate(adapter.data.words.vocabulary.words)}
    for word in reference.wv.index_to_key:
        vector = model.fitted["vectors"][number[word]].numpy()
        np.testing.assert_array_equal(vector, reference.wv[word])


def plain_edges(network: int, window: int) -> Counter[tuple[int, int]]:
    edges: Counter[tuple[int, int]] = Counter()
    for text, (start, end) in enumerate(pairwise(CORPUS.offsets)):
        words = CORPUS.words[start:end].tolist()
        for position, word in enumerate(words):
            if network == 0:
                for other in range(max(0, position - window), min(len(words), position + window + 1)):
                    edges[word, words[other]] += other != position
            elif network == 1:
                edges[word, text] += 1
            elif CORPUS.labels[text] >= 0:
                edges[word, int(CORPUS.labels[text])] += 1
    return +edges


@pytest.mark.parametrize("network", [0, 1, 2])
def test_edges_are_drawn_by_their_weights(network: int) -> None:
    state, drawn, draws = np.uint64(12345), Counter[tuple[int, int]](), 60_000
    for _ in range(draws):
        word, end, state = draw_edge(network, state, CORPUS.words, TEXT_OF, CORPUS.offsets, CORPUS.labels, 2)
        if end >= 0:
            drawn[int(word), int(end)] += 1
    expected = plain_edges(network, window=2)
    assert drawn.keys() == expected.keys()
    for edge, weight in expected.items():
        share = weight / expected.total()
        error = (share * (1 - share) / drawn.total()) ** 0.5
        assert abs(drawn[edge] / drawn.total() - share) < 5 * error, edge


def test_negatives_are_drawn_by_degree() -> None:
    tables = noise_tables(CORPUS, 12, window=2)
    for network, table in enumerate(tables):
        degree: Counter[int] = Counter()
        for (word, _), weight in plain_edges(network, window=2).items():
            degree[word] += weight
        share = np.array([degree[word] for word in range(12)]) ** 0.75
        frequencies = np.bincount(table, minlength=12) / len(table)
        np.testing.assert_allclose(frequencies, share / share.sum(), atol=1e-5)


def test_a_step_is_the_gradient_of_the_loss() -> None:
    """One edge and one negative word: log s(u.v) + log s(-n.v) rises."""
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    corpus = Corpus(np.array([2], np.int32), np.array([0, 1]), np.array([0]))
    learned = vectors.numpy().copy()
    noise = np.full((3, 8), 3, np.int32)
    starts = np.array([-1, 5, -1])
    sample_edges(learned, *corpus, np.array([0]), starts, noise, 2, 1, 1, 0.1, 7)
    word, negative, text = (vectors[row].clone().requires_grad_() for row in (2, 3, 5))
    loss = -torch.sigmoid(word @ text).log() - torch.sigmoid(-negative @ text).log()
    loss.backward()
    for row, vector in ((2, word), (3, negative), (5, text)):
        np.testing.assert_allclose(learned[row], (vectors[row] - 0.1 * vector.grad).numpy(), atol=1e-6)
    assert (learned[[0, 1, 4]] == vectors[[0, 1, 4]].numpy()).all()


def test_labels_bring_the_words_of_a_class_together(adapter: Classification) -> None:
    data = adapter.data
    labels = data.split("train").rows.labels

    def share_explained(model: WordAverages) -> float:
        """The share of the variance of the texts' means that is between classes."""
        finished(model, data)
        means = vectors_of(model, data, "train").numpy()
        classes = [means[np.array(labels) == label] for label in set(labels)]
        between = sum(len(rows) * ((rows.mean(axis=0) - means.mean(axis=0)) ** 2).sum() for rows in classes)
        return float(between / ((means - means.mean(axis=0)) ** 2).sum())

    options: dict[str, Any] = {"word_size": 8, "epochs": 60}
    assert share_explained(PTE(**options)) > 1.3 * share_explained(LINE(**options))
