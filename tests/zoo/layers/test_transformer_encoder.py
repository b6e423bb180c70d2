"""The vectors of a transformer: padding, parts of a batch and precision do not change them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from zoo.layers import encoders
from zoo.layers.encoders import TransformerEncoder

WORD = torch.arange(20)
#: A text without tokens, and texts of different lengths, unsorted.
TEXTS = torch.tensor([[3, 4, 5, 6, 7], [0, 0, 0, 0, 0], [9, 3, 0, 0, 0], [5, 0, 0, 0, 0], [7, 8, 9, 0, 0]])


@pytest.fixture
def encoder(tiny_bert: Path) -> TransformerEncoder:
    return TransformerEncoder(str(tiny_bert)).requires_grad_(False).eval()


@pytest.fixture(params=[False, True])
def has_bfloat16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(encoders, "_has_bfloat16", lambda: request.param)
    return bool(request.param)


def encode(encoder: TransformerEncoder, texts: Tensor) -> Tensor:
    with torch.inference_mode():
        return encoder(WORD, torch.zeros(1), texts)


@pytest.mark.usefixtures("float32")
def test_parts_of_a_batch_have_the_vectors_of_single_texts(
    encoder: TransformerEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "_TEXTS_AT_ONCE", 2)
    vectors = encode(encoder, TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        alone = text[None, : max(1, int((text != 0).sum()))]
        torch.testing.assert_close(encode(encoder, alone)[0], vector, atol=1e-6, rtol=1e-5)
    assert not vectors[1].any()


def test_a_batch_without_texts(encoder: TransformerEncoder) -> None:
    assert encode(encoder, TEXTS[:0]).shape == (0, encoder.size)


def test_bfloat16_is_close_to_float32(
    encoder: TransformerEncoder, has_bfloat16: bool, tiny_bert: Path
) -> None:
    vectors = encode(encoder, TEXTS)
    assert vectors.dtype == torch.float32
    exact = encoder.token_states(WORD, TEXTS)[3, 0].double()
    assert functional.cosine_similarity(vectors[3].double(), exact, dim=0) > 0.999
    assert torch.allclose(vectors[3].double(), exact, atol=1e-6, rtol=0) != has_bfloat16
