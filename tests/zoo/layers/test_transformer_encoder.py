"""Transformers and published sentence encoders in a model: plain loops, parts of a batch, precision, checkpoints."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

import zoo
from datamodules.core import storage
from datamodules.text.tokenization import TransformersTokenizer
from tests import sentence_folders as folders
from tests.zoo.conftest import QUIET_TRAINER, SMALL_DATA, Zoo, done
from zoo.layers import encoders
from zoo.layers.encoders import TransformerEncoder, pooling_of, transformer_config_of

WORD = torch.arange(20)
#: A text without tokens, and texts of different lengths, unsorted.
TEXTS = torch.tensor([[3, 4, 5, 6, 7], [0, 0, 0, 0, 0], [9, 3, 0, 0, 0], [5, 0, 0, 0, 0], [7, 8, 9, 0, 0]])

pytestmark = pytest.mark.usefixtures("float32")


@pytest.fixture
def folder(tiny_bert: Path) -> Path:
    """An encoder with Transformer, Pooling, Dense and Normalize."""
    folders.write_modules(tiny_bert, folders.MODULES)
    folders.write_json(tiny_bert / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    folders.write_dense(tiny_bert / "2_Dense", (16, 5), "Tanh")
    return tiny_bert


@pytest.fixture
def static(tiny_bert: Path, tmp_path: Path) -> Path:
    folders.write_static(tmp_path / "static", tiny_bert)
    folders.write_modules(tmp_path / "static", [("StaticEmbedding", "")])
    return tmp_path / "static"


def encode(encoder: TransformerEncoder, texts: Tensor = TEXTS) -> Tensor:
    with torch.inference_mode():
        return encoder.eval()(WORD, torch.zeros(1), texts)


def restored(encoder: TransformerEncoder) -> TransformerEncoder:
    config = transformer_config_of(nn.Sequential(encoder))
    again = TransformerEncoder("no-such-folder", config=json.loads(json.dumps(config)))
    again.load_state_dict(encoder.state_dict())
    assert pooling_of(again) == pooling_of(encoder)
    return again


@pytest.mark.parametrize("pooling", folders.POOLINGS)
def test_vectors(pooling: str, folder: Path) -> None:
    folders.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": pooling})
    encoder = TransformerEncoder(str(folder))
    vectors = encode(encoder)
    assert vectors.shape == (5, encoder.size) == (5, 5)
    dense = load_file(folder / "2_Dense" / "model.safetensors")
    transformer = AutoModel.from_pretrained(folder)
    for text, vector in zip(TEXTS, vectors, strict=True):
        if not text.any():
            assert not vector.any()
            continue
        with torch.no_grad():
            states = transformer(input_ids=WORD[text[text != 0]][None]).last_hidden_state[0]
        pooled = torch.tensor(folders.plain_pool(states.tolist(), pooling))
        expected = torch.tanh(dense["linear.weight"] @ pooled + dense["linear.bias"]).tolist()
        torch.testing.assert_close(vector, torch.tensor(folders.unit(expected)), atol=1e-5, rtol=0)
    torch.testing.assert_close(encode(restored(encoder)), vectors)


def test_a_static_encoder(static: Path) -> None:
    encoder = TransformerEncoder(str(static))
    table = load_file(static / "model.safetensors")["embedding.weight"]
    vectors = encode(encoder)
    for text, vector in zip(TEXTS, vectors, strict=True):
        rows = table[WORD[text[text != 0]]].tolist()
        expected = folders.plain_pool(rows, "mean") if rows else [0.0] * 6
        torch.testing.assert_close(vector, torch.tensor(expected), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(encode(restored(encoder)), vectors)
    tokenizer = TransformersTokenizer(str(static), lowercase=False)
    assert tokenizer.special_ids == ((), ())


@pytest.mark.parametrize("kind", ["folder", "static"])
def test_a_run_with_a_published_encoder(
    kind: str, zoo_command: Zoo, train_csv: Path, request: pytest.FixtureRequest
) -> None:
    published: Path = request.getfixturevalue(kind)
    # Texts are read in lower case, which the tokenizer alone does not do.
    storage.write_json(published / "sentence_bert_config.json", {"do_lower_case": True})
    tokenizer = json.loads((published / "tokenizer.json").read_text())
    storage.write_json(published / "tokenizer.json", {**tokenizer, "normalizer": None})
    options = ["--model=MemoryEnsemble", f"--model.transformer={published}", f"--data.tokenizer={published}"]
    options += ["--model.metric_steps=0", "--model.members=[encoder]", f"--data.train_file={train_csv}"]
    done(zoo_command("fit", *SMALL_DATA, *QUIET_TRAINER, *options, "--trainer.max_epochs=1", "--run_dir=run"))
    run = Path("run")
    before = zoo.load(run).encode(["the old apple", "rain"])
    assert zoo.load(run).model.network.encoder.published.is_static == (kind == "static")
    shutil.rmtree(published / "2_Dense", ignore_errors=True)
    (published / "modules.json").unlink()
    after = zoo.load(run).encode(["the old apple", "rain"])
    torch.testing.assert_close(torch.from_numpy(after), torch.from_numpy(before))
    assert zoo.load(run).encode(["The OLD Apple", "RAIN"]).tolist() == after.tolist()


@pytest.fixture
def encoder(tiny_bert: Path) -> TransformerEncoder:
    return TransformerEncoder(str(tiny_bert)).requires_grad_(False).eval()


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


@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_bfloat16_is_near_float32(
    encoder: TransformerEncoder, has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "_has_bfloat16", lambda: has_bfloat16)
    vectors = encode(encoder, TEXTS)
    assert vectors.dtype == torch.float32
    exact = encoder.token_states(WORD, TEXTS)[3, 0].double()
    assert functional.cosine_similarity(vectors[3].double(), exact, dim=0) > 0.999
    assert torch.allclose(vectors[3].double(), exact, atol=1e-6, rtol=0) != has_bfloat16
