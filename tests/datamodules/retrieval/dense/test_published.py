"""Dense retrieval with published sentence encoders, compared with plain loops over one text at a time."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.retriever import DenseRetriever
from datamodules.retrieval.dense.transformer_encoder import PublishedEncoder
from tests import sentence_folders as folders
from tests.datamodules.corpus import indexed, labelled_texts

TEXTS, _ = labelled_texts(9)


@pytest.fixture
def folder(tmp_path: Path, tiny_encoder: str) -> Path:
    """An encoder with Transformer, Pooling (mean) and Normalize."""
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "published"))
    folders.write_modules(
        folder, [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    )
    folders.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    return folder


def encode(folder: Path, texts: list[str], is_query: bool = False, **options: Any) -> NDArray[np.float32]:
    encoder = PublishedEncoder(DenseRanking(str(folder), **options), torch.device("cpu"))
    with torch.inference_mode(), tqdm(disable=True) as bar:
        return encoder(texts, 4, bar, is_query)


def states_of(encoder: str, text: str) -> list[list[float]]:
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder)
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].tolist()
    return states


@pytest.mark.parametrize("pooling", folders.POOLINGS)
def test_poolings(pooling: Any, folder: Path, tiny_encoder: str) -> None:
    folders.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": pooling})
    expected = [folders.unit(folders.plain_pool(states_of(tiny_encoder, text), pooling)) for text in TEXTS]
    np.testing.assert_allclose(encode(folder, TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(encode(Path(tiny_encoder), TEXTS, pooling=pooling), expected, atol=1e-5)


def test_dense_layers(folder: Path, tiny_encoder: str) -> None:
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dense", "3_Dense")]
    folders.write_modules(folder, modules)
    folders.write_dense(folder / "2_Dense", (16, 5), "Identity", has_bias=False)
    folders.write_dense(folder / "3_Dense", (5, 3), "Sigmoid")
    from safetensors.torch import load_file

    first, second = (load_file(folder / name / "model.safetensors") for name in ("2_Dense", "3_Dense"))
    vectors = encode(folder, [*TEXTS, ""])
    for text, vector in zip(TEXTS, vectors, strict=False):
        pooled = torch.tensor(folders.plain_pool(states_of(tiny_encoder, text), "mean"))
        hidden = first["linear.weight"] @ pooled
        expected = torch.sigmoid(second["linear.weight"] @ hidden + second["linear.bias"])
        np.testing.assert_allclose(vector, folders.unit(expected.tolist()), atol=1e-5)
    assert not vectors[-1].any()


def test_a_transformer_in_a_folder_of_its_own(tmp_path: Path, tiny_encoder: str) -> None:
    folder = tmp_path / "published"
    shutil.copytree(tiny_encoder, folder / "0_Transformer")
    folders.write_modules(folder, [("Transformer", "0_Transformer"), ("Pooling", "1_Pooling")])
    folders.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    np.testing.assert_allclose(encode(folder, TEXTS), encode(Path(tiny_encoder), TEXTS), atol=1e-6)


def test_a_static_encoder(tmp_path: Path, tiny_encoder: str) -> None:
    folder = tmp_path / "static"
    table = folders.write_static(folder, Path(tiny_encoder))
    folders.write_modules(folder, [("StaticEmbedding", "")])
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    texts = [*TEXTS, " ".join(["lion", "oar"] * 300)]
    ids = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    expected = [folders.unit(folders.plain_pool(table[rows].tolist(), "mean")) for rows in ids]
    vectors = encode(folder, [*texts, ""])
    np.testing.assert_allclose(vectors[:-1], expected, atol=1e-5)
    assert not vectors[-1].any()


def test_prompts(folder: Path, tiny_encoder: str, tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "warm red ", "document": "near "}, "default_prompt_name": None}
    folders.write_json(folder / "config_sentence_transformers.json", prompts)
    plain = Path(tiny_encoder)
    queries, documents = (
        encode(plain, [prompt + text for text in TEXTS]) for prompt in ("warm red ", "near ")
    )
    np.testing.assert_allclose(encode(folder, TEXTS), documents, atol=1e-6)
    np.testing.assert_allclose(encode(folder, TEXTS, is_query=True), queries, atol=1e-6)
    given = {"query_prompt": "warm red ", "document_prompt": "near "}
    np.testing.assert_allclose(encode(plain, TEXTS, is_query=True, **given), queries, atol=1e-6)
    assert not encode(folder, ["", " "], is_query=True).any()
    # A search reads queries with their own prompt, also those that are texts of the collection.
    retriever = indexed(DenseRetriever(str(folder), device="cpu"), TEXTS, tmp_path / "index")
    hits = retriever.search(TEXTS, len(TEXTS))
    scores = (1 + queries @ documents.T) / 2
    np.testing.assert_allclose(hits.scores, np.take_along_axis(scores, hits.rows, axis=1), atol=2e-6)


def test_the_ranking_depends_on_the_modules(folder: Path, tiny_encoder: str) -> None:
    def describe(**options: Any) -> Any:
        return DenseRanking(str(folder), **options).describe()

    assert DenseRanking(tiny_encoder).describe() == DenseRanking(tiny_encoder, "mean").describe()
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    folders.write_modules(folder, modules)
    folders.write_dense(folder / "2_Dense", (16, 3), "Tanh")
    before = describe()
    assert describe(pooling="mean") == before
    assert describe(pooling="cls") != before
    assert describe(document_prompt="near ") != before
    folders.write_dense(folder / "2_Dense", (16, 3), "Tanh")
    assert describe() != before
    folders.write_dense(folder / "2_Dense", (16, 3), "ReLU")
    other = describe()
    folders.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "max"})
    assert describe() != other
