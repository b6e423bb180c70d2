"""What holds for every model that scores pairs of texts, whatever is inside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional
from zoo.tasks.ranking import MatchingOutput, MatchingTask

import zoo
from datamodules.batch import MatchingBatch, MatchingSpec

SPECS = {
    goal: MatchingSpec(num_words=40, num_chars=12, goal=goal, first_length=6, second_length=9)
    for goal in ("ranking", "classification")
}
WORDS = {"word_size": 12}
FIRM = {**WORDS, "dropout": 0.0}

#: model -> name of a variant -> constructor arguments. A new model adds its line.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "AMVLSTM": {
        **{
            f"{attention}-{scale}": {
                **WORDS, "hidden_size": 7, "k": 8, "attention": attention, "attention_scale": scale
            }
            for attention in ("none", "question", "answer", "both")
            for scale in ("paper", "length")
        },
        "concatenated": {**WORDS, "hidden_size": 7, "k": 8, "interaction": "concatenated"},
        "bilinear": {**WORDS, "hidden_size": 7, "k": 8, "similarity": "bilinear"},
        "tensor": {**WORDS, "hidden_size": 7, "k": 8, "similarity": "tensor", "slices": 2},
        "two-encoders": {**WORDS, "hidden_size": 7, "k": 8, "shared_encoder": False, "overlap": True},
    },
    "ANMM": {"1": {**WORDS}, "2": {**WORDS, "num_weights": 4}},
    "ARCI": {
        "apart": {**FIRM, "filters": (8, 7), "segments": 2, "hidden_size": 6},
        "shared": {**FIRM, "filters": (8,), "hidden_size": 6, "share": True},
    },
    "ARCII": {"small": {**FIRM, "filters": (8, 7), "grid": (2, 3), "hidden_size": 6}},
    "CDSSM": {"small": {"num_trigrams": 200, "hidden_sizes": (8, 6), "loss": "hinge"}},
    "DSSM": {
        "shared": {"num_trigrams": 200, "hidden_sizes": (8, 7, 6), "loss": "hinge"},
        "apart": {"num_trigrams": 200, "hidden_sizes": (8, 6), "share": False, "loss": "hinge"},
    },
    "MatchPyramid": {
        similarity: {**FIRM, "similarity": similarity, "filters": (8, 7), "grid": (2, 3), "hidden_size": 6}
        for similarity in ("cosine", "dot")
    },
}  # fmt: skip

CASES = [
    pytest.param(name, options, id=f"{name}-{variant}")
    for name, variants in VARIANTS.items()
    for variant, options in variants.items()
]
every_model = pytest.mark.parametrize(("name", "options"), CASES)


def test_every_model_is_tested() -> None:
    # A transformer comes from a folder: tests/zoo/baselines/test_transformer_matcher.py asks the same of it.
    assert {*VARIANTS, "TransformerMatcher"} == {
        name for name, model in zoo.list_models().items() if issubclass(model, MatchingTask)
    }


# --- a batch of three lists, and parts of it ---


@pytest.fixture(scope="module")
def batch() -> MatchingBatch:
    """Nine pairs of four first and seven second texts, of 1 to 6 and 1 to 9 words, some words in both."""
    random = np.random.default_rng(8)
    num_words = 30
    word = np.concatenate([[0], 1 + random.permutation(39)[: num_words - 1]])
    char = np.zeros((num_words, 7), np.int64)
    for row in range(1, num_words):
        length = random.integers(1, 8)
        char[row, :length] = random.integers(1, 12, length)
    idf = np.where(word > 0, random.uniform(0.5, 6, num_words), 0)

    def texts(lengths: list[int]) -> Tensor:
        table = np.zeros((len(lengths), max(lengths)), np.int64)
        for row, length in enumerate(lengths):
            table[row, :length] = random.integers(1, num_words, length)
        return torch.from_numpy(table)

    first_text, second_text = texts([3, 6, 1, 4]), texts([2, 9, 4, 5, 1, 7, 6])
    second_text[1, :3] = first_text[0, :3]
    return MatchingBatch(
        word=torch.from_numpy(word),
        char=torch.from_numpy(char),
        idf=torch.from_numpy(idf).float(),
        first_text=first_text,
        second_text=second_text,
        first=torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 3]),
        second=torch.tensor([0, 1, 2, 3, 4, 5, 1, 6, 2]),
        list=torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2]),
        place=torch.tensor([0, 1, 2, 0, 1, 2, 3, 0, 1]),
        target=torch.tensor([0.0, 1, 0, 0, 0, 1, 1, 1, 0]),
        weight=torch.ones(9),
        index=torch.arange(9),
    )


def only(batch: MatchingBatch, pairs: list[int]) -> MatchingBatch:
    """The batch that the data would make of some of the pairs: nothing in it is there for the others."""
    kept = torch.tensor(pairs)
    first_rows, first = torch.unique(batch.first[kept], return_inverse=True)
    second_rows, second = torch.unique(batch.second[kept], return_inverse=True)
    texts = [batch.first_text[first_rows], batch.second_text[second_rows]]
    texts = [text[:, : max(1, int((text != 0).sum(dim=1).max()))] for text in texts]
    words = torch.unique(torch.cat([torch.zeros(1, dtype=torch.long), *(text.flatten() for text in texts)]))
    number = torch.zeros(len(batch.word), dtype=torch.long)
    number[words] = torch.arange(len(words))
    return batch._replace(
        word=batch.word[words],
        char=batch.char[words][:, : max(1, int((batch.char[words] != 0).sum(dim=1).max()))],
        idf=batch.idf[words],
        first_text=number[texts[0]],
        second_text=number[texts[1]],
        first=first,
        second=second,
        list=torch.unique(batch.list[kept], return_inverse=True)[1],
        place=batch.place[kept],
        target=batch.target[kept],
        weight=batch.weight[kept],
        index=batch.index[kept],
    )


def fresh_model(name: str, options: dict[str, Any], goal: str = "ranking", **more: Any) -> MatchingTask:
    pl.seed_everything(5, verbose=False)
    loss = {"loss": "cross_entropy"} if goal == "classification" else {}
    model = zoo.list_models()[name](**{**options, **loss, **more})
    assert isinstance(model, MatchingTask)
    model._build(SPECS[goal], None, None)
    # Weights that start at zero (attention, gates) would hide what does not depend on them yet.
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad and not weight.any():
                weight.normal_(std=0.3)
    return model.eval()


@pytest.fixture
def model(name: str, options: dict[str, Any]) -> MatchingTask:
    return fresh_model(name, options)


def scores_of(model: MatchingTask, batch: MatchingBatch) -> Tensor:
    with torch.no_grad():
        return model(batch).score


def trained(model: MatchingTask) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


# --- outputs ---


@pytest.mark.parametrize("goal", ["ranking", "classification"])
@every_model
def test_an_output_a_pair(name: str, options: dict[str, Any], goal: str, batch: MatchingBatch) -> None:
    output: MatchingOutput = fresh_model(name, options, goal)(batch)
    assert output.logits.shape == (9, 1 if goal == "ranking" else 2)
    assert output.logits.dtype == torch.float32
    assert output.logits.isfinite().all()
    if output.interaction is not None:
        assert output.interaction.shape == (9, 6, 9)
        real = (batch.first_text[batch.first] != 0)[:, :, None] & (batch.second_text[batch.second] != 0)[
            :, None
        ]
        assert (output.interaction[~real] == 0).all()
        assert not output.interaction.requires_grad


@every_model
def test_scores_differ(model: MatchingTask, batch: MatchingBatch) -> None:
    """Those of different pairs, or the tests of what changes nothing would test nothing."""
    scores = scores_of(model, batch)
    assert len(torch.unique(scores)) == len(scores)


# --- training ---


@pytest.mark.parametrize("goal", ["ranking", "classification"])
@every_model
def test_overfits_one_batch(name: str, options: dict[str, Any], goal: str, batch: MatchingBatch) -> None:
    model = fresh_model(name, options, goal).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        loss = model.loss_terms(model(batch), batch).mean()
        loss.backward()
        optimizer.step()
        if loss < 0.05:
            break
    assert loss < 0.1
    scores = scores_of(model.eval(), batch)
    if goal == "classification":
        assert ((scores > 0) == (batch.target > 0)).all()
    else:
        for number in range(3):
            of_list = batch.list == number
            positive = batch.target[of_list] > 0
            assert scores[of_list][positive].min() > scores[of_list][~positive].max()


@every_model
def test_every_trained_parameter_gets_a_gradient(model: MatchingTask, batch: MatchingBatch) -> None:
    # Each pair by itself: a bias after the last layer has no say in which candidate is first.
    weights = torch.linspace(0.5, 1.5, 9)
    (model(batch).score * weights).sum().backward()
    for name, weight in trained(model):
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


# --- masks ---


@every_model
def test_padding_changes_nothing(model: MatchingTask, batch: MatchingBatch) -> None:
    padded = batch._replace(
        char=functional.pad(batch.char, (0, 3)),
        first_text=functional.pad(batch.first_text, (0, 4)),
        second_text=functional.pad(batch.second_text, (0, 5)),
    )
    assert_close(scores_of(model, padded), scores_of(model, batch))


@every_model
def test_a_pair_alone_has_the_score_that_it_has_among_others(
    model: MatchingTask, batch: MatchingBatch
) -> None:
    together = scores_of(model, batch)
    for pair in range(9):
        assert_close(scores_of(model, only(batch, [pair]))[0], together[pair])


@every_model
def test_order_of_pairs_and_words_changes_nothing(model: MatchingTask, batch: MatchingBatch) -> None:
    pairs = torch.tensor([8, 3, 0, 5, 7, 1, 2, 6, 4])
    by_pair = ("first", "second", "list", "place", "target", "weight", "index")
    shuffled = batch._replace(**{field: getattr(batch, field)[pairs] for field in by_pair})
    assert_close(scores_of(model, shuffled), scores_of(model, batch)[pairs])
    order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(len(batch.word) - 1)])
    renamed = batch._replace(
        **{field: getattr(batch, field)[order] for field in ("word", "char", "idf")},
        first_text=order.argsort()[batch.first_text],
        second_text=order.argsort()[batch.second_text],
    )
    assert_close(scores_of(model, renamed), scores_of(model, batch))


@pytest.mark.parametrize("side", ["first_text", "second_text", "both"])
@every_model
def test_a_text_without_words_is_finite(model: MatchingTask, side: str, batch: MatchingBatch) -> None:
    empty = {}
    for field in ("first_text", "second_text") if side == "both" else (side,):
        text = getattr(batch, field).clone()
        text[1] = 0  # of list 1 and of two lists
        empty[field] = text
    output = model(batch._replace(**empty))
    assert output.logits.isfinite().all()
    output.logits.sum().backward()
    assert all(weight.grad.isfinite().all() for _, weight in trained(model) if weight.grad is not None)
    # The pairs of other texts do not notice.
    others = (batch.first != 1) & (batch.second != 1)
    assert_close(output.score[others].detach(), scores_of(model, batch)[others])


@every_model
def test_nothing_but_texts_without_words_is_finite(model: MatchingTask, batch: MatchingBatch) -> None:
    texts = {"first_text": torch.zeros(4, 1).long(), "second_text": torch.zeros(7, 1).long()}
    words = {field: getattr(batch, field)[:1] for field in ("word", "char", "idf")}
    assert scores_of(model, batch._replace(**texts, **words)).isfinite().all()


# --- precision ---


@every_model
def test_bfloat16_is_close_to_float32(model: MatchingTask, batch: MatchingBatch) -> None:
    exact = scores_of(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(batch).logits
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.detach()[:, 0], exact, rtol=0.05, atol=0.05)
