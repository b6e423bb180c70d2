"""A checkpoint's own encoder finds the neighbours."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import zoo
from datamodules.corpora.rows import Rows
from datamodules.retrieval import DenseRetriever, ElasticsearchDenseRetriever
from datamodules.retrieval.dense import text_vectors
from tests.datamodules.checks import refused
from tests.datamodules.corpus import indexed
from tests.zoo.conftest import Fit, Zoo, done, sentences
from zoo.model_folder.export import export
from zoo.model_folder.folder import ModelFolder

TEXTS = [text for text, _ in sentences(40, seed=5)]


def encoder_of(fit: Fit, *options: object) -> str:
    return str(fit("m1", "--model.features=M1", "--data.num_memories=0", *options))


def vectors_one_by_one(checkpoint: str, texts: list[str]) -> np.ndarray:
    predictor = zoo.load(checkpoint)
    network = predictor.model.network
    vectors = []
    for text in texts:
        split = predictor.data.split_of(Rows.from_lists([text]), None)
        batch = predictor.data.dataset(split).__getitems__([0])
        with torch.inference_mode():
            vector = network.encode_texts(batch)[0].double().numpy()
        vectors.append(vector / max(np.linalg.norm(vector), 1e-12))
    return np.array(vectors)


def test_the_ranking_is_that_of_the_models_vectors(fit: Fit, tmp_path: Path) -> None:
    checkpoint = encoder_of(fit, "--data.max_length=4")
    texts = [*TEXTS, "", " \n", "rain " * 40]
    queries = ["old iron", "snow in the new storm of the fog", "xyzzy", "", "rain rain rain rain"]
    retriever = indexed(DenseRetriever(checkpoint, batch_size=7, device="cpu"), texts, tmp_path / "index")
    hits = retriever.search(queries, 41)
    of_texts = vectors_one_by_one(checkpoint, [text.strip() or "rain" for text in texts])
    of_queries = vectors_one_by_one(checkpoint, [text or "rain" for text in queries])
    expected = (1 + of_queries @ of_texts.T) / 2
    for query in (0, 1, 2, 4):
        assert set(hits.rows[query].tolist()) == {*range(40), 42}
        np.testing.assert_allclose(hits.scores[query], expected[query, hits.rows[query]], atol=2e-6)
        assert (np.diff(hits.scores[query]) <= 0).all()
    assert (hits.rows[3] == -1).all()
    assert hits.scores[4, 0] == pytest.approx(1, abs=1e-6)  # four words are kept
    assert hits.rows[4, 0] == 42


def test_a_transformers_empty_text_has_no_vector(tiny_bert: Path, fit: Fit, tmp_path: Path) -> None:
    checkpoint = encoder_of(
        fit, f"--model.transformer={tiny_bert}", f"--data.tokenizer={tiny_bert}", "--data.characters=false"
    )
    retriever = DenseRetriever(checkpoint, device="cpu")
    indexed(retriever, ["rain", "", "gold ring"], tmp_path / "index")
    rows = retriever.search(["rain", ""], 3).rows
    assert [sorted(own.tolist()) for own in rows] == [[-1, 0, 2], [-1] * 3]


def test_the_ranking_knows_the_contents_of_the_checkpoint(fit: Fit, tmp_path: Path) -> None:
    checkpoint = encoder_of(fit)
    described = DenseRetriever(checkpoint).ranking.describe()
    assert set(described) == {"similarity", "encoder"}
    moved = Path(shutil.copytree(checkpoint, tmp_path / "moved"))
    assert DenseRetriever(str(moved)).ranking.describe() == described
    weights = load_file(moved / "model" / "model.safetensors")
    weights["network.encoder.words.table"][3, 0] += 0.5
    save_file(weights, moved / "model" / "model.safetensors")
    assert DenseRetriever(str(moved)).ranking.describe() != described


def test_training_predicting_and_growing(fit: Fit, tmp_path: Path, zoo_command: Zoo, test_csv: Path) -> None:
    m1 = encoder_of(fit)
    options = ("--data.retriever=DenseRetriever", f"--data.retriever.encoder={m1}", "--seed_everything=3")
    first = fit("m7", *options)
    predictor = zoo.load(first)
    predictions = predictor.predict(TEXTS)
    assert all(len(prediction.memories) == 3 for prediction in predictions)
    nearest = [prediction.memories[0].retrieval_score for prediction in predictions]
    memory = predictor.memory
    vectors = vectors_one_by_one(m1, TEXTS), vectors_one_by_one(m1, memory.rows.texts[:])  # type: ignore[attr-defined]
    np.testing.assert_allclose(nearest, ((1 + vectors[0] @ vectors[1].T) / 2).max(axis=1), atol=2e-6)
    assert zoo.load(export(first, tmp_path / "exported")).predict(TEXTS) == predictions
    add = ("memory", "add", first.name, test_csv)
    for result in map(done, (zoo_command(*add, "--preview", test_csv), zoo_command(*add))):
        assert "version 2" in result.out
    # Whether the neighbours were cached does not change what is learned.
    again = ModelFolder.open(fit("again", *options)).weights()
    for name, weight in ModelFolder.open(first).weights().items():
        assert torch.equal(weight, again[name]), name


def test_mistakes_are_named(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str, pattern: str) -> None:
        for use in (
            lambda: DenseRetriever(path).index(Rows.from_lists(["rain"]), "f", tmp_path / "index"),
            lambda: ElasticsearchDenseRetriever(path).vectors.of(["rain"], 1),
        ):
            with refused(match=pattern):
                use()

    (tmp_path / "best.ckpt").write_bytes(b"weights")
    for name in ("nowhere/best.ckpt", "best.ckpt"):
        fails(name, "not a folder; name a run folder, a model folder, or a transformers encoder")
    checkpoint = encoder_of(fit)
    monkeypatch.setattr(text_vectors, "MODEL_ENCODERS", "none")
    fails(checkpoint, "a trained model, which needs the package zoo")
