"""LSTM-RNN against the paper's equations, its fast form against its slow one, its size and its loss."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules.batch import ClickBatch, ClickSpec
from datamodules.text.trigrams import distinct_trigrams
from tests.zoo.plain import sigmoid
from zoo.baselines.dssm import RetrievalCLSM, RetrievalDSSM
from zoo.layers import recurrent
from zoo.layers.dual_encoder import TrigramLayer, without_words
from zoo.lstm_rnn import LSTMRNN, TRACED, RecurrentTower
from zoo.tasks.model import Given

TEXT = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 0, 0, 0], [0, 0, 0, 0, 0], [4, 0, 0, 0, 0]])
SPEC = ClickSpec(num_words=20, num_chars=9, trigrams=[])


def tower(**options: Any) -> RecurrentTower:
    torch.manual_seed(1)
    made = LSTMRNN(**{"num_trigrams": 50, "hidden_size": 4, **options}).make_tower(SPEC)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(std=0.6)
    return made


def products(made: RecurrentTower) -> Tensor:
    """Sums of the trigrams of 7 words; word 0 is padding."""
    width = made.directions * made.bias.shape[1]
    words = torch.randn(7, width, generator=torch.Generator().manual_seed(2))
    words[0] = 0
    return words


def read(made: RecurrentTower, words: Tensor, text: list[int], direction: int) -> dict[str, list[Any]]:
    """Equations 1 and 2, a word after another, in float64."""
    h, rows = made.hidden_size, made.bias.shape[1]
    own = words.double().numpy()[:, direction * rows : (direction + 1) * rows]
    R, b = (weight.detach().double().numpy()[direction] for weight in (made.recurrent, made.bias))
    at = {name: slice(i * h, (i + 1) * h) for i, name in enumerate(made.gates)}
    y, c = np.zeros(h), np.zeros(h)
    traced: dict[str, list[Any]] = {name: [] for name in TRACED}
    for word in text if direction == 0 else text[::-1]:
        before = own[word] + R @ y + b
        if made.cell == "rnn":
            y = np.tanh(before)
            traced["state"].append(y)
            continue
        i, o = sigmoid(before[at["input"]]), sigmoid(before[at["output"]])
        c = c + i * np.tanh(before[at["cell"]])
        y = o * np.tanh(c)
        for name, value in zip(TRACED, (y, c, i, o), strict=True):
            traced[name].append(value)
    return traced


FORMS = [{"cell": cell, "bidirectional": both} for cell in ("lstm", "rnn") for both in (False, True)]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_embeddings_and_traces_follow_the_equations(options: dict[str, Any]) -> None:
    made = tower(**options)
    words = products(made)
    with torch.no_grad():
        embedded, trace = made(words, TEXT), made.trace(words, TEXT)
    h = made.hidden_size
    for row, padded in enumerate(TEXT.tolist()):
        text = [word for word in padded if word]
        for direction in range(made.directions):
            traced = read(made, words, text, direction)
            last = traced["state"][-1] if text else np.zeros(h)
            part = slice(direction * h, (direction + 1) * h)
            np.testing.assert_allclose(embedded[row, part], last, atol=1e-6)
            assert len(trace) == (1 if made.cell == "rnn" else 4)
            for name, values in trace.items():
                part_values = values[row, :, part].numpy()
                expected = traced[name] if direction == 0 else traced[name][::-1]
                np.testing.assert_allclose(part_values[: len(text)], np.reshape(expected, (-1, h)), atol=1e-6)
                assert not part_values[len(text) :].any()


def embedded_by(form: str, made: RecurrentTower, words: Tensor) -> Tensor:
    # GPUs use the kernel, and it runs on CPUs as well: a forget gate that is held open is exactly 1.
    if form == "kernel":
        lengths = (TEXT != 0).sum(dim=1)
        last = recurrent._last_states_on_gpu(made._products(words), made.recurrent, TEXT, lengths)
        return last.transpose(0, 1).flatten(1) * (lengths > 0).unsqueeze(1)
    if form == "slow":
        states, ends = made.trace(words, TEXT)["state"], ((TEXT != 0).sum(dim=1) - 1).clamp(min=0)
        h, rows = made.hidden_size, torch.arange(len(TEXT))
        return torch.cat([states[rows, ends, :h], states[:, 0, h:]], dim=1)
    return made(words, TEXT)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("form", ["slow", "kernel"])
def test_the_fast_form_equals_the_others(form: str, bidirectional: bool) -> None:
    made = tower(bidirectional=bidirectional)
    results = []
    for each in ("fast", form):
        words = products(made).requires_grad_()
        made.zero_grad()
        embedded = embedded_by(each, made, words)
        (embedded * torch.linspace(-1, 1, made.size)).sum().backward()
        results.append([embedded.detach(), words.grad, made.recurrent.grad.clone(), made.bias.grad.clone()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "millions"),
    [
        (LSTMRNN(num_trigrams=50_000, hidden_size=96), 14.4),
        (LSTMRNN(num_trigrams=50_000, hidden_size=64), 9.6),
        (LSTMRNN(num_trigrams=50_000, hidden_size=32), 4.8),
        (LSTMRNN(num_trigrams=50_000, hidden_size=288, cell="rnn"), 14.4),
        (RetrievalDSSM(num_trigrams=50_000), 14.4),
        (RetrievalCLSM(num_trigrams=50_000, window=1), 14.4),
        (RetrievalCLSM(num_trigrams=50_000, window=3), 43.2),
        (RetrievalCLSM(num_trigrams=50_000, window=5), 72.0),
    ],
)
def test_sizes_are_the_papers(model: Any, millions: float) -> None:
    """Table IV counts the input matrices over 50,000 trigrams; the rest is less than a hundredth of them."""
    sizes = {name: weight.numel() for name, weight in model.make_tower(SPEC).named_parameters()}
    assert sum(sizes.values()) == pytest.approx(millions * 1e6, rel=0.008)
    assert sizes["hashing.table"] == round(millions * 1e6)


def test_the_loss_is_that_of_equation_5() -> None:
    model = LSTMRNN(gamma=7.0)
    score = torch.tensor([[0.9, 0.1, -0.4], [0.2, 0.3, 0.8]])
    empty = torch.zeros(0, dtype=torch.long)
    query, positive = torch.tensor([1, 0]), torch.tensor([2, 1])
    candidate = torch.tensor([[True, False, True], [True, True, True]])
    batch = ClickBatch(empty, empty, empty, empty, query, positive, candidate, empty)
    terms = model.loss_terms(score, batch).tolist()
    of_negatives = np.exp(7 * 0.2)
    assert terms[0] == pytest.approx(-np.log(np.exp(7 * 0.8) / (np.exp(7 * 0.8) + of_negatives)), rel=1e-5)
    margins = np.array([0.1 - 0.9, 0.1 - -0.4])
    assert terms[1] == pytest.approx(np.log(1 + np.exp(-7 * margins).sum()), rel=1e-5)


def test_word_dropout_drops_words_and_keeps_one() -> None:
    torch.manual_seed(0)
    text = torch.arange(1, 9).repeat(400, 1)
    text[:, 6:] = 0
    shortened = without_words(text, 0.3)
    counts = (shortened != 0).sum(dim=1)
    assert int(counts.min()) >= 1
    assert float(counts.float().mean()) == pytest.approx(0.7 * 6, rel=0.05)
    for row in shortened.tolist():
        kept = [word for word in row if word]
        assert kept == sorted(kept)
        assert row[: len(kept)] == kept
    assert without_words(torch.zeros(2, 3, dtype=torch.long), 0.9).tolist() == [[0] * 3] * 2


def test_known_trigrams_have_rows_and_others_are_ignored() -> None:
    """Against counts of the strings: `12`, `1233` and `1212` with 1, 2, 3 as letters and 9 as the mark."""
    words = [[1, 2], [1, 2, 3, 3], [1, 2, 1, 2]]
    char = torch.tensor([word + [0] * (4 - len(word)) for word in words])
    known = distinct_trigrams(char[:2], mark=9)
    layer = TrigramLayer(9, known, size=3, fan_out=3)
    assert known == sorted(known)
    # 912, 129, 123, 233, 339; the third word has 912, 129 and two that were not known: 121, 212.
    assert len(known) == 5
    row = {trigram: i for i, trigram in enumerate(known)}

    def spelled(word: list[int]) -> list[int]:
        marked = [9, *word, 9]
        return [(a * 10 + b) * 10 + c for a, b, c in zip(marked, marked[1:], marked[2:], strict=False)]

    for word, encoded in zip(words, layer(char), strict=True):
        rows = [row[trigram] for trigram in spelled(word) if trigram in row]
        torch.testing.assert_close(encoded, layer.table[rows].sum(dim=0))
    assert not layer(torch.zeros(1, 4, dtype=torch.long)).any()


@pytest.mark.parametrize("tied", [False, True])
def test_each_network_is_clipped_by_its_own_norm(tied: bool) -> None:
    model = LSTMRNN(tied=tied, num_trigrams=20, hidden_size=3)
    model.network = model.build_network(Given(ClickSpec(5, 5, [])))
    for scale, tower in ((5.0, model.network.query), (0.01, model.network.document)):
        for weight in tower.parameters():
            weight.grad = torch.full_like(weight, scale)
    before = [weight.grad.clone() for weight in model.network.document.parameters()]
    model.configure_gradient_clipping(torch.optim.SGD(model.parameters(), lr=1.0), 1.0, "norm")
    norms = [
        float(torch.cat([weight.grad.flatten() for weight in tower.parameters()]).norm())
        for tower in (model.network.query, model.network.document)
    ]
    small = float(torch.cat([gradient.flatten() for gradient in before]).norm())
    assert norms == pytest.approx([min(1, small)] * 2 if tied else [1, small], rel=1e-4)
