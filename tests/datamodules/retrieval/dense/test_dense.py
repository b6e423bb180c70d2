"""Dense retrieval compared with cosines of one text at a time, and its files on a disk."""

import pickle
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import open_memory
from datamodules.retrieval.dense import nearest, transformer_encoder
from datamodules.retrieval.dense import retriever as dense
from datamodules.retrieval.dense.ranking import LEAST_SCORE
from datamodules.retrieval.dense.retriever import DenseRetriever
from datamodules.retrieval.memories.folder_memory import FolderMemory
from tests.datamodules.checks import grown_from, refused
from tests.datamodules.corpus import indexed, labelled_texts, rows
from tests.datamodules.kinds import classification

TEXTS, _ = labelled_texts(60)
QUERIES = [*labelled_texts(9, seed=1)[0], "Lion  near the SAIL", "words of no text"]


def vectors_of(encoder: str, pooling: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """Vectors of each text alone, without padding, in double precision."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(encoder),
        AutoModel.from_pretrained(encoder).double().eval(),
    )
    vectors = []
    for text in texts:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        pooled = states[0] if pooling == "cls" else states.mean(axis=0)
        vectors.append(pooled / np.linalg.norm(pooled))
    return np.array(vectors)


def build(tmp_path: Path, texts: Sequence[str], encoder: str, **options: Any) -> DenseRetriever:
    return indexed(DenseRetriever(encoder, **{"device": "cpu", **options}), texts, tmp_path / "index")


@pytest.mark.parametrize(("pooling", "blocks"), [("mean", (4096, 256, 2048)), ("cls", (7, 4, 9))])
def test_the_ranking_is_that_of_the_cosines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_encoder: str, pooling: Any, blocks: tuple[int, ...]
) -> None:
    monkeypatch.setattr(dense, "TEXTS", blocks[0])
    monkeypatch.setattr(nearest, "_QUERIES", blocks[1])
    monkeypatch.setattr(nearest, "_ROWS", blocks[2])
    retriever = build(tmp_path, TEXTS, tiny_encoder, pooling=pooling, batch_size=8)
    of_texts, of_queries = (vectors_of(tiny_encoder, pooling, some) for some in (TEXTS, QUERIES))
    expected = (1 + of_queries @ of_texts.T) / 2
    rng = random.Random(0)
    exclude = [rng.sample(range(60), rng.choice([0, 3, 57])) for _ in QUERIES]
    for excluded in (None, exclude):
        for query, excluded_rows in enumerate(excluded or []):
            expected[query, excluded_rows] = -1
        for k in (1, 10, 60):
            hits = retriever.search(QUERIES, k, excluded)
            assert hits.rows.dtype == np.int32
            assert hits.scores.dtype == np.float32
            best = -np.sort(-expected, axis=1)[:, :k]
            np.testing.assert_array_equal(hits.rows == -1, best == -1)
            np.testing.assert_allclose(hits.scores, np.where(best == -1, 0, best), atol=2e-6)
            for query, hit_rows in enumerate(hits.rows):
                hit_rows = hit_rows[hit_rows >= 0]
                assert len(set(hit_rows.tolist())) == len(hit_rows)
                scores = hits.scores[query, : len(hit_rows)]
                np.testing.assert_allclose(scores, expected[query, hit_rows], atol=2e-6)


def test_the_score_is_half_of_one_plus_cosine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Angles:
        """Reads a text as the angle of its vector in degrees."""

        size = 2

        def __init__(self, *_: object) -> None: ...

        def __call__(self, texts: list[str], *_: object) -> NDArray[np.float32]:
            angles = np.radians([float(text) for text in texts])
            return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    monkeypatch.setattr(transformer_encoder, "PublishedEncoder", Angles)
    hits = build(tmp_path, ["180", "90", "60", "0", "-60"], str(tmp_path)).search(["0", "90"], 5)
    assert hits.rows[0].tolist() == [3, 2, 4, 1, 0]
    np.testing.assert_allclose(hits.scores[0], [1, 0.75, 0.75, 0.5, LEAST_SCORE], atol=1e-7)
    assert hits.scores[0, 4] > 0
    assert hits.rows[1, 0] == 1


def test_batches_and_long_texts(tmp_path: Path, tiny_encoder: str) -> None:
    long = " ".join(["heron", "oar", "rye"] * 40)
    texts = [*TEXTS, long]
    single = build(tmp_path / "1", texts, tiny_encoder, batch_size=1).search(QUERIES, 61)
    many = build(tmp_path / "64", texts, tiny_encoder, batch_size=64).search(QUERIES, 61)
    np.testing.assert_allclose(single.scores, many.scores, atol=2e-6)
    # The encoder reads 32 tokens, whatever max_length; two of them are special.
    cut = build(tmp_path / "cut", [long], tiny_encoder).search([" ".join(long.split()[:30])], 1)
    np.testing.assert_allclose(cut.scores, 1, atol=1e-6)
    five = build(tmp_path / "5", ["the old heron of the deck"], tiny_encoder, max_length=5)
    np.testing.assert_allclose(five.search(["the old heron"], 1).scores, 1, atol=1e-6)


def test_indexed_texts_are_not_encoded_again(tmp_path: Path, tiny_encoder: str, encoded: list[str]) -> None:
    retriever = build(tmp_path, TEXTS, tiny_encoder)
    expected = retriever.search(QUERIES, 5)
    encoded.clear()
    hits = retriever.search(TEXTS, 1)
    assert encoded == []
    retriever.search(QUERIES, 1)
    assert set(encoded) == {*QUERIES} - {*TEXTS}
    assert [TEXTS[row] for row in hits.rows[:, 0]] == TEXTS
    # An unpickled retriever opens the index and loads the encoder itself.
    again: DenseRetriever = pickle.loads(pickle.dumps(retriever))
    assert len(pickle.dumps(retriever)) < 2000
    np.testing.assert_array_equal(again.search(QUERIES, 5).rows, expected.rows)


def test_a_grown_index_ranks_like_a_new_one(
    tmp_path: Path, tiny_encoder: str, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXTS, "", TEXTS[3], *labelled_texts(30, seed=2)[0], *labelled_texts(5, seed=2)[0]]
    grown = build(tmp_path / "old", ["", *TEXTS[1:]], tiny_encoder)
    before = grown.search(QUERIES, 9)
    texts[0] = ""
    encoded.clear()
    grown.update(Rows.from_lists(texts), "grown", grown_from(len(TEXTS), len(texts)), tmp_path / "new")
    assert sorted(encoded) == sorted(set(texts) - set(TEXTS) - {""})
    np.testing.assert_array_equal(grown.search(QUERIES, 9).rows, before.rows)  # the old index is still open
    grown.open(tmp_path / "new", "grown")
    expected = build(tmp_path / "whole", texts, tiny_encoder)
    for some in (QUERIES, texts):
        hits, wanted = grown.search(some, 95), expected.search(some, 95)
        np.testing.assert_allclose(hits.scores, wanted.scores, atol=2e-6)
        np.testing.assert_array_equal(hits.rows == -1, wanted.rows == -1)
        np.testing.assert_array_equal(hits.rows[:, 0], wanted.rows[:, 0])
    # Without a new text, no encoder is loaded, although the cache has no vectors of so few texts.
    monkeypatch.setenv("ZOO_CACHE_DIR", str(tmp_path / "empty"))
    few = build(tmp_path / "few", TEXTS[:9], tiny_encoder)
    few.close()
    monkeypatch.delattr(transformer_encoder, "PublishedEncoder")
    few.open(tmp_path / "few" / "index", "fingerprint")
    few.update(Rows.from_lists(TEXTS[1:9]), "fewer", np.arange(1, 9), tmp_path / "fewer")


def test_the_ranking_depends_on_the_weights_not_on_their_location(tmp_path: Path, tiny_encoder: str) -> None:
    def describe(folder: str, **options: Any) -> dict[str, Any]:
        return DenseRetriever(folder, **options).ranking.describe()

    base = describe(tiny_encoder)
    moved = shutil.copytree(tiny_encoder, tmp_path / "moved")
    assert describe(str(moved)) == base
    assert describe(tiny_encoder, batch_size=3, device="cpu") == base
    assert describe(tiny_encoder, pooling="cls") != base
    assert describe(tiny_encoder, max_length=20) != base
    weights = moved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert describe(str(moved)) != base


def test_a_memory_whose_encoder_has_changed_in_place_is_refused(tmp_path: Path, tiny_encoder: str) -> None:
    encoder = shutil.copytree(tiny_encoder, tmp_path / "encoder")
    FolderMemory.build(rows(20), DenseRetriever(str(encoder)), tmp_path / "memory")
    weights = encoder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with refused(match="its index has vectors of another encoder: sha256"):
        open_memory(str(tmp_path / "memory"))


def test_an_encoder_of_the_hub_stays_the_one_that_was_downloaded(
    tmp_path: Path, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants, file_download

    # The files of a download; later the Hub has another version, and then it is out of reach.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--me--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(tiny_encoder, folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    requests: list[str] = []

    def unreachable(*arguments: Any, **options: Any) -> Any:
        requests.append(str(options.get("url", arguments)))
        raise OSError("the network is unreachable")

    monkeypatch.setattr(file_download, "get_hf_file_metadata", unreachable)
    snapshots = folder / "snapshots"
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda _, revision, **__: str(snapshots / revision)
    )
    ranking = DenseRetriever("me/tiny", device="cpu").ranking
    assert ranking.describe()["encoder"] == f"me/tiny@{commit}"
    assert requests == []
    loaded: list[str] = []
    for kind in (AutoTokenizer, AutoModel):

        def load(name: str, revision: str, original: Any = kind.from_pretrained, **options: Any) -> Any:
            loaded.append(f"{name}@{revision}")
            return original(folder / "snapshots" / str(revision))

        monkeypatch.setattr(kind, "from_pretrained", load)
    assert build(tmp_path, TEXTS, "me/tiny").search(TEXTS[:1], 1).rows.tolist() == [[0]]
    assert loaded == [f"me/tiny@{commit}"] * 2
    with pytest.raises(InputError, match=r"encoder 'me/other'.*use the name or folder"):
        DenseRetriever("me/other").ranking.describe()
    assert requests


def test_preparing_releases_the_encoder(tmp_path: Path, tiny_encoder: str) -> None:
    retriever = DenseRetriever(tiny_encoder, device="cpu")
    data = classification(tmp_path).make(retriever=retriever)
    data.prepare_data()
    assert not retriever.vectors._encoder


def test_mistakes_are_named(tmp_path: Path, tiny_encoder: str) -> None:
    from transformers import T5Config, T5Model

    def fails(pattern: str, **options: Any) -> None:
        with refused(match=pattern):
            build(tmp_path, ["lion"], **{"encoder": tiny_encoder, **options})

    fails("pooling='sum': choose one of mean, cls, max, ", pooling="sum")
    fails("batch_size=0", batch_size=0)
    fails("max_length=2", max_length=2)
    (tmp_path / "empty").mkdir()
    fails("empty.*use the name or folder of a transformers encoder", encoder=str(tmp_path / "empty"))
    both = shutil.copytree(tiny_encoder, tmp_path / "both")
    tiny = T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5Model(tiny).save_pretrained(both)
    fails("has a decoder", encoder=str(both))
    with pytest.raises(InputError, match="device 'nowhere': not on this machine"):
        build(tmp_path, ["lion"], tiny_encoder, device="nowhere")
    with pytest.raises(InputError, match="at least one text"):
        build(tmp_path, [], tiny_encoder)
