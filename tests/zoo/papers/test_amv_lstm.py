"""The network against the papers' equations, written as plain loops over numbers in float64."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules.batch import MatchingBatch
from tests.zoo.baselines.pairs import M, N, S, T, make_batch, make_network, make_spec
from tests.zoo.plain import Vector, cosine, lstm_states, numbers
from zoo.amv_lstm import AMVLSTM, AMVLSTMNetwork
from zoo.layers.interactions import word_overlap
from zoo.tasks.model import Given

P, SIZE, HIDDEN = 9, 5, 4


def make_model(goal: str = "ranking", **options: Any) -> AMVLSTM:
    loss = "hinge" if goal == "ranking" else "cross_entropy"
    sizes = {"hidden_size": HIDDEN, "word_size": SIZE, "k": 4}
    return AMVLSTM(**{**sizes, "loss": loss, **options})


def plain_attention(words: list[Vector], v: Vector, scale: str) -> list[Vector]:
    """Equation 4, and the words multiplied by it."""
    if not words:
        return []
    powers = [math.exp(float(np.dot(v, w))) for w in words]
    factor = len(words) if scale == "length" else 1
    return [factor * power / sum(powers) * w for power, w in zip(powers, words, strict=True)]


def plain_overlap(batch: MatchingBatch, first: list[int], second: list[int]) -> list[float]:
    features = []
    for text, other in ((first, second), (second, first)):
        shared = [w for w in text if w in other and int(batch.word[w]) != 1]
        features.append(len(shared) / len(text) if text else 0.0)
        total = sum(float(batch.idf[w]) for w in text)
        features.append(sum(float(batch.idf[w]) for w in shared) / total if text else 0.0)
    return features


def plain_forward(
    model: AMVLSTM, network: AMVLSTMNetwork, batch: MatchingBatch, pair: int
) -> tuple[Vector, Vector]:
    """The score of one pair, from its words to Equation 3; and the mean of its interactions [T, S]."""
    options, weights = model.hparams, numbers(network)
    sides, words_of = [], []
    for side, text, row in (
        ("first", batch.first_text, int(batch.first[pair])),
        ("second", batch.second_text, int(batch.second[pair])),
    ):
        ids = [w for w in text[row].tolist() if w != 0]
        words_of.append(ids)
        words = [weights["words.table"][int(batch.word[w])] for w in ids]
        attended = {"first": ("question", "both"), "second": ("answer", "both")}[side]
        if options["attention"] in attended:
            words = plain_attention(words, weights[f"{side}_attention.v"], options["attention_scale"])
        lstm = numbers(network.lstm)  # Equation 2: a forward and a backward state for each position
        sides.append((lstm_states(lstm, "", words), lstm_states(lstm, "_reverse", words[::-1])[::-1]))
    (first_forward, first_backward), (second_forward, second_backward) = sides
    if options["interaction"] == "directions":
        parts = [(first_forward, second_forward), (first_backward, second_backward)]
    else:
        first_joined = [np.concatenate(both) for both in zip(first_forward, first_backward, strict=True)]
        second_joined = [np.concatenate(both) for both in zip(second_forward, second_backward, strict=True)]
        parts = [(first_joined, second_joined)]

    pooled, interaction = [], np.zeros((T, S))
    for part, (us, vs) in enumerate(parts):
        cosines = {(t, s): cosine(u, v) for t, u in enumerate(us) for s, v in enumerate(vs)}
        for place, value in cosines.items():
            interaction[place] += value / len(parts)
        strongest = sorted(cosines.values(), reverse=True)[: options["k"]]
        pooled += strongest + [float(weights["none"][part])] * (options["k"] - len(strongest))
    if options["overlap"]:
        pooled += plain_overlap(batch, words_of[0], words_of[1])
    hidden = np.maximum(weights["mlp.0.weight"] @ np.array(pooled) + weights["mlp.0.bias"], 0)
    return weights["mlp.3.weight"] @ hidden + weights["mlp.3.bias"], interaction


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"attention": a, "attention_scale": s}
            for a in ("none", "question", "answer", "both")
            for s in ("paper", "length")
        ),
        {"interaction": "concatenated"},
        {"attention": "both", "attention_scale": "paper", "interaction": "concatenated"},
        {"overlap": True},
        {"k": 1},
        {"k": 100},
        {"k": 100, "interaction": "concatenated", "overlap": True},
        {"goal": "classification"},
    ],
    ids=str,
)
def test_equations(options: dict[str, Any]) -> None:
    model, batch = make_model(**options), make_batch()
    network = make_network(model, options.get("goal", "ranking"))
    with torch.no_grad():
        output = network(batch)
    assert output.logits.shape == (P, 2 if "goal" in options else 1)
    assert output.logits.dtype == torch.float32
    for pair in range(P):
        logits, interaction = plain_forward(model, network, batch, pair)
        # The network computes in float32.
        np.testing.assert_allclose(output.logits[pair], logits, rtol=3e-5, atol=3e-5)
        np.testing.assert_allclose(output.interaction[pair], interaction, atol=1e-5)


@pytest.mark.parametrize("attention", ["question", "answer", "both"])
def test_length_scaled_attention_starts_as_mv_lstm(attention: str) -> None:
    """v starts at 0, so all words count alike, as in the model without attention."""
    torch.manual_seed(0)
    network, plain = (
        make_model(attention=kind, attention_scale="length").build_network(Given(make_spec())).eval()
        for kind in (attention, "none")
    )
    plain.load_state_dict({n: v for n, v in network.state_dict().items() if "attention" not in n})
    batch = make_batch()
    with torch.no_grad():
        torch.testing.assert_close(network(batch).score, plain(batch).score, rtol=0, atol=1e-6)
        # As published, the model differs: it reads texts at a fraction of their scale.
        for layer in (network.first_attention, network.second_attention):
            layer.scale = "paper"
        assert float((network(batch).score - plain(batch).score).abs().max()) > 1e-4


def test_overlap_skips_special_tokens() -> None:
    batch = make_batch()._replace(
        word=torch.tensor([0, 101, 7, 8, 102]),
        idf=torch.tensor([0.0, 0.0, 1.0, 2.0, 0.0]),
        first_text=torch.tensor([[1, 2, 4, 0], [1, 4, 0, 0]]),
        second_text=torch.tensor([[1, 2, 3, 4]]),
        first=torch.tensor([0, 1]),
        second=torch.tensor([0, 0]),
    )
    expected = [[1, 1, 1 / 2, 1 / 3], [0, 0, 0, 0]]
    torch.testing.assert_close(word_overlap(batch, 100, (101, 102)), torch.tensor(expected))


def test_frozen_transformer_gives_token_vectors(tiny_bert: Path) -> None:
    model = AMVLSTM(transformer=str(tiny_bert), freeze_encoder=True, attention="both", hidden_size=HIDDEN)
    model._build(Given(make_spec()))
    network, batch = model.network, make_batch()
    model.train()  # a frozen transformer has no dropout in training either
    score = network(batch).score
    first = network.words(batch.word, batch.char, batch.first_text)
    second = network.words(batch.word, batch.char, batch.second_text)
    assert first.shape == (N, T, 16)
    assert second.shape == (M, S, 16)
    cached = batch._replace(first_vector=first.detach(), second_vector=second.detach())
    torch.testing.assert_close(network(cached).score, score)
    # The network reads the vectors of the batch.
    cached = cached._replace(first_vector=2 * first.detach() * (batch.first_text != 0).unsqueeze(2))
    assert not torch.allclose(network(cached).score, score)
    score.sum().backward()
    assert all(p.grad is None for p in network.words.parameters())
    assert network.lstm.weight_ih_l0.grad is not None


def test_sizes_of_the_paper() -> None:
    network = AMVLSTM().build_network(Given(make_spec()))
    assert network.lstm.input_size == 300
    assert network.lstm.hidden_size == 50
    assert network.k == 100
    assert network.mlp[0].in_features == 200  # 100 of the forward and 100 of the backward matrix
