"""The network against the paper's equations, written as plain loops over numbers in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from tests.zoo.plain import Vector, cosine, drawn_spellings, drawn_texts, enlarge, lstm_states, numbers
from zoo import KNNBiLSTM
from zoo.knn_bilstm import KNNNetwork, SharpAttention
from zoo.tasks.model import Given

CLASSES = 3
B, K, M, U = 4, 5, 7, 12


def make_network(memory_labels: list[str] | None = None, **options: Any) -> KNNNetwork:
    labels = [str(c) for c in range(CLASSES)]
    spec = ClassificationSpec(U, 9, labels, labels if memory_labels is None else memory_labels, K)
    sizes = {"hidden_size": 4, "word_size": 5, "char_hidden_size": 2}
    torch.manual_seed(0)
    network = KNNBiLSTM(**{**sizes, **options}).build_network(Given(spec))
    enlarge(network)
    return network


def make_batch(memory_classes: int = CLASSES) -> ClassificationBatch:
    """Texts of 1 to 6 words; some ranks have no memory, and some memories no known label."""
    random = np.random.default_rng(1)

    char = drawn_spellings(random, U, 4, 9)
    mask = random.random((B, K)) < 0.7
    mask[0], mask[1] = False, True
    target = random.integers(0, memory_classes, size=(B, K))
    target[random.random((B, K)) < 0.3] = -100
    target[1, 0] = -100
    memory = random.integers(0, M, size=(B, K))
    memory[2, 1] = memory[2, 2]  # the same text twice
    arrays = ClassificationBatch(
        word=np.arange(U),
        char=char,
        text=drawn_texts(random, B, 6, U),
        memory_text=drawn_texts(random, M, 5, U),
        memory=memory * mask,
        memory_mask=mask,
        memory_score=random.random((B, K)).astype(np.float32) * mask,
        memory_target=np.where(mask, target, -100),
        target=random.integers(0, CLASSES, size=B),
        weight=np.ones(B, np.float32),
        row=np.arange(B),
    )
    given = [np.ascontiguousarray(array) for array in arrays if array is not None]
    return ClassificationBatch(*map(torch.from_numpy, given))


def plain_word(network: KNNNetwork, batch: ClassificationBatch, position: int) -> Vector:
    """A word's vector, with the last state of the LSTM over its characters."""
    words = network.encoder.words
    weights = numbers(words)
    vector = weights["table"][batch.word[position]]
    if words.char_table is None:
        return vector
    characters = [weights["char_table.weight"][c] for c in batch.char[position].tolist() if c != 0]
    return np.concatenate([vector, lstm_states(numbers(words.char_lstm), "", characters)[-1]])


def plain_text(network: KNNNetwork, batch: ClassificationBatch, text: list[int]) -> Vector:
    """Equation 1: the last forward and the last backward state."""
    weights = numbers(network.encoder.lstm)
    words = [plain_word(network, batch, position) for position in text if position != 0]
    forward = lstm_states(weights, "", words)[-1]
    backward = lstm_states(weights, "_reverse", words[::-1])[-1]
    return np.concatenate([forward, backward])


def plain_features(
    network: KNNNetwork, batch: ClassificationBatch, row: int, memory_classes: int
) -> tuple[dict[str, Vector], Vector]:
    """The three features of a text, and its neighbours' mean similarities."""
    h = plain_text(network, batch, batch.text[row].tolist())
    weight = network.similarity.weight
    views = [np.ones(len(h))] if weight is None else list(weight.detach().double().numpy())
    label = np.zeros((len(views), memory_classes))
    neighbor = np.zeros((len(views), len(h)))
    similarities = np.zeros((K, len(views)))
    for k in range(K):
        if not batch.memory_mask[row, k]:
            continue
        h_k = plain_text(network, batch, batch.memory_text[batch.memory[row, k]].tolist())
        for i, w in enumerate(views):
            s = cosine(w * h, w * h_k)  # Equation 3
            similarities[k, i] = s
            y = int(batch.memory_target[row, k])
            if y >= 0:
                label[i, y] += s  # Equation 4
            neighbor[i] += s * h_k  # Equation 5
    features = {"text": h, "label": label.reshape(-1), "neighbor": neighbor.reshape(-1)}
    return features, similarities.mean(axis=1)


#: Table 2 of the paper.
TABLE_2 = {
    "M1": ["text"],
    "M2": ["label"],
    "M3": ["neighbor"],
    "M4": ["label", "neighbor"],
    "M5": ["text", "label"],
    "M6": ["text", "neighbor"],
    "M7": ["text", "label", "neighbor"],
}


@pytest.mark.parametrize(
    "options",
    [
        *({"features": name, "num_perspectives": views} for name in TABLE_2 for views in (0, 1, 5)),
        {"features": "M1", "characters": False},
        # Memories may have other classes than the texts: the label feature has a column for each of them.
        {"features": "M7", "num_perspectives": 2, "memory_labels": ["a", "b", "c", "d", "e"]},
    ],
    ids=str,
)
def test_equations(options: dict[str, Any]) -> None:
    network, features = make_network(**options), options["features"]
    memory_classes = len(options.get("memory_labels", range(CLASSES)))
    batch = make_batch(memory_classes)
    assert int(batch.memory_target.max()) == memory_classes - 1
    with torch.no_grad():
        output = network(batch)
    classifier = numbers(network.classifier)
    for row in range(B):
        if features == "M1":
            values = {"text": plain_text(network, batch, batch.text[row].tolist())}
            weights = np.zeros(K)
        else:
            values, weights = plain_features(network, batch, row, memory_classes)
        joined = np.concatenate([values[name] for name in TABLE_2[features]])
        expected = classifier["weight"] @ joined + classifier["bias"]
        # The network computes in float32.
        np.testing.assert_allclose(output.logits[row], expected, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(output.memory_weight[row], weights, rtol=2e-5, atol=2e-6)


def test_sizes_of_the_paper() -> None:
    """200 units a text, 5 perspectives, 4 classes: 200 + 5 * 4 + 5 * 200 features for M7."""
    spec = ClassificationSpec(U, 9, list("abcd"), list("abcd"), 5)
    network = KNNBiLSTM().build_network(Given(spec))
    assert network.similarity.weight.shape == (5, 200)
    assert network.classifier.weight.shape == (4, 1220)
    assert network.encoder.lstm.input_size == 350


def test_pretrained_vectors_are_fixed_unless_the_option_trains_them() -> None:
    spec = ClassificationSpec(U, 0, list("ab"), list("ab"), 1)
    vectors = torch.rand(U, 6)
    for train in (False, True):
        network = KNNBiLSTM(characters=False, train_word_vectors=train).build_network(Given(spec, vectors))
        table = network.encoder.words.table
        assert torch.equal(table, vectors)
        assert table.requires_grad == train
    # Random vectors are always trained.
    assert KNNBiLSTM(characters=False).build_network(Given(spec)).encoder.words.table.requires_grad


def test_the_memories_features_are_float32_whatever_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    network, batch = make_network(features="M4"), make_batch()
    classify = network._classify
    monkeypatch.setattr(
        network, "_classify", lambda read, *others: seen.append(read) or classify(read, *others)
    )
    encoded = network.encode(batch)
    monkeypatch.setattr(network, "encode", lambda batch: encoded)
    network(batch)
    with torch.autocast("cpu", torch.bfloat16):
        network(batch)
    for exact, mixed in zip(*seen, strict=True):
        assert mixed.dtype == torch.float32
        assert torch.equal(exact, mixed)


def test_labels_of_memories_without_labels_are_refused() -> None:
    with pytest.raises(InputError, match=r"M2 reads .*use M3 or M6.*--data\.memory_label_column"):
        make_network(memory_labels=[], features="M2")


def test_sharp_attention_is_a_softmax_of_cosine_and_score() -> None:
    attention = SharpAttention(num_perspectives=2)
    with torch.no_grad():
        attention.log_tau.copy_(torch.tensor([0.0, 1.5]))
    similarity = torch.tensor([[[0.9, -0.2], [0.1, 0.4], [0.7, 0.3]]])  # [1, K=3, I=2]
    score, mask = torch.tensor([[8.0, 4.0, 9.9]]), torch.tensor([[True, True, False]])
    score = score * mask
    weights = attention(similarity, score, mask)
    for view, tau in enumerate((1.0, math.exp(1.5))):
        unnormalised = [
            math.exp(tau * float(similarity[0, k, view])) * (float(score[0, k]) / 8) ** 3 for k in range(2)
        ]
        expected = [value / sum(unnormalised) for value in unnormalised]
        assert weights[0, :, view].tolist() == pytest.approx([*expected, 0.0], abs=1e-6)


def test_text_dropout_hides_whole_text_features_in_training_only() -> None:
    network = make_network(features="M5", attention="softmax", text_dropout=0.5)
    torch.manual_seed(0)
    hidden = (network.drop_text(torch.ones(1000, 4)) == 0).all(dim=1).float().mean()
    assert 0.4 < float(hidden) < 0.6
    network.eval()
    assert bool((network.drop_text(torch.ones(1000, 4)) == 1).all())
