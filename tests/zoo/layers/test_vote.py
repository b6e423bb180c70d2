"""The vote of labelled memories."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.layers.vote import count_votes, vote


def test_a_vote_weighs_cosine_and_score() -> None:
    similarity = torch.tensor([[0.9, 0.1, 0.7]])
    score, mask = torch.tensor([[8.0, 4.0, 0.0]]), torch.tensor([[True, True, False]])
    shares = vote(similarity, score, mask, tau=2.0, score_power=3.0)
    terms = [math.exp(2 * 0.9), math.exp(2 * 0.1) * 0.5**3]
    assert shares[0].tolist() == pytest.approx([terms[0] / sum(terms), terms[1] / sum(terms), 0.0], abs=1e-6)


def test_votes_are_counted_by_class_and_unknown_classes_have_none() -> None:
    votes = count_votes(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1, -100, 1]]), 3)
    assert votes[0].tolist() == pytest.approx([0.0, 0.7, 0.0])
