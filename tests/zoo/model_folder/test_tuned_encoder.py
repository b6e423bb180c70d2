"""The tuned encoder of a `MemoryEnsemble` finds the neighbors of another model, in a folder and on a server."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import zoo
from datamodules.core.errors import InputError
from datamodules.retrieval import DenseRetriever, FolderMemory
from datamodules.retrieval.base import Collection
from tests.zoo.conftest import Fit, Zoo, done, read_jsonl, refusal, sentences
from tests.zoo.ensemble.conftest import run as run
from zoo.layers import encoders
from zoo.loading import SavedEncoder

Tune = Callable[[str, int], Path]

MEMBERS = "--model.members=[lexical,lexical_vote]"
QUERIES = [text for text, _ in sentences(40, seed=6)]


@pytest.fixture
def tune(run: Fit, tiny_bert: Path, caplog: pytest.LogCaptureFixture) -> Tune:
    """Fits an ensemble whose encoder is tuned in some steps, and returns its run folder."""

    def tuned(name: str, steps: int) -> Path:
        options = (f"--model.transformer={tiny_bert}", f"--model.metric_steps={steps}")
        folder = run(name, *options, "--model.members=[encoder]")
        assert f"the encoder's metric is learned: {steps} steps" in caplog.text
        assert "the encoder is as it was" not in caplog.text
        return folder

    return tuned


@pytest.fixture
def encoder(tune: Tune, tmp_path: Path) -> Path:
    """The folder of an encoder, which tests replace."""
    return Path(shutil.copytree(tune("tuned", 5), tmp_path / "encoder"))


def replace(encoder: Path, other: Path) -> None:
    shutil.rmtree(encoder)
    shutil.copytree(other, encoder)


def embedded(encoder: Path) -> list[str]:
    return ["--data.retriever=DenseRetriever", f"--data.retriever.encoder={encoder}"]


def on_server(encoder: Path, url: str, prefix: str) -> list[str]:
    return [
        "--data.retriever=ElasticsearchDenseRetriever",
        f"--data.retriever.encoder={encoder}",
        f"--data.retriever.url={url}",
        f"--data.retriever.index_prefix={prefix}",
    ]


def memories_of(run: Path) -> FolderMemory:
    memory = zoo.load(run).memory
    assert isinstance(memory, FolderMemory)
    return memory


def check_same_neighbors(run: Path, other: Path) -> None:
    """Check that the memories of two runs have neighbors of equal scores, up to rounding, which may order them."""
    first, second = memories_of(run), memories_of(other)
    assert first.rows.texts[:] == second.rows.texts[:]
    everything = len(first)
    for queries in (QUERIES, first.rows.texts[:]):
        hits, others = (memory.retriever.search(queries, everything) for memory in (first, second))
        np.testing.assert_allclose(hits.scores, others.scores, atol=1e-6)
        by_row, other_by_row = (
            np.take_along_axis(each.scores, each.rows.argsort(axis=1), axis=1) for each in (hits, others)
        )
        np.testing.assert_allclose(by_row, other_by_row, atol=1e-6)


@pytest.mark.server
def test_a_server_has_the_neighbors_of_the_embedded_index(
    encoder: Path,
    run: Fit,
    zoo_command: Zoo,
    elasticsearch_url: str,
    index_prefix: str,
    test_csv: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELASTICSEARCH_URL", elasticsearch_url)
    local = run("local", MEMBERS, *embedded(encoder))
    remote = run("remote", MEMBERS, *on_server(encoder, elasticsearch_url, index_prefix))
    check_same_neighbors(local, remote)
    for step in ("trained", "grown"):
        probabilities = []
        for run in (local, remote):
            output = run / f"{step}.jsonl"
            done = zoo_command("predict", "--ckpt_path", run, "--input", test_csv, "--output", output)
            assert done.code == 0, done.err
            records = read_jsonl(output)
            probabilities.append([list(record["probabilities"].values()) for record in records])
        assert len(probabilities[0]) == 31
        np.testing.assert_allclose(*probabilities, atol=1e-4)
        if step == "trained":
            for run in (local, remote):
                done = zoo_command("memory", "add", run, test_csv)
                assert "version 2" in done.out, done.err
    check_same_neighbors(local, remote)
    assert memories_of(remote).version == 2


def test_an_encoder_that_is_tuned_again_changes_no_earlier_model(tune: Tune, encoder: Path, run: Fit) -> None:
    old = run("old", MEMBERS, *embedded(encoder))
    expected = memories_of(old).search(QUERIES, 5)
    replace(encoder, tune("again", 30))
    np.testing.assert_array_equal(memories_of(old).search(QUERIES, 5).scores, expected.scores)
    new = run("new", MEMBERS, *embedded(encoder))
    scores = memories_of(new).search(QUERIES, 5).scores
    assert np.abs(scores - expected.scores).max() > 1e-4


def test_a_memory_is_not_searched_by_an_encoder_that_is_tuned_later(
    tune: Tune, encoder: Path, zoo_command: Zoo, train_csv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = ["index", "--file", train_csv, "--memory=named"]
    index += [option.replace("--data.", "--") for option in embedded(encoder)]
    done(zoo_command(*index))
    replace(encoder, tune("again", 30))
    refusal(zoo_command("search", "iron", "--memory=named"), "its index has vectors of another encoder")
    done(zoo_command(*index))
    assert "named: its index has vectors of another encoder" in caplog.text
    done(zoo_command("search", "iron", "--memory=named"))


def test_an_open_index_is_not_searched_by_an_encoder_that_is_tuned_later(
    tune: Tune, encoder: Path, tmp_path: Path
) -> None:
    texts = [text for text, _ in sentences(20, seed=5)]
    retriever = DenseRetriever(str(encoder), device="cpu")
    retriever.index(Collection(texts, "fingerprint"), tmp_path / "index")
    retriever.close()  # the encoder is loaded again when it is needed
    retriever.ranking.describe()
    retriever.open(tmp_path / "index", "fingerprint")
    replace(encoder, tune("again", 30))
    with pytest.raises(InputError, match=r"encoder: its files have changed since"):
        retriever.search(["some other iron"], 1)


def test_vectors_of_an_index_are_exact(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "_has_bfloat16", lambda: True)
    vectors = DenseRetriever(str(encoder), device="cpu").vectors.of(QUERIES, 16)
    saved = SavedEncoder(str(encoder), torch.device("cpu"))
    states = torch.from_numpy(vectors)
    monkeypatch.setattr(encoders, "_has_bfloat16", lambda: False)
    exact = torch.from_numpy(zoo.load(encoder).encode(QUERIES))
    torch.testing.assert_close(states, functional.normalize(exact, dim=1), atol=1e-6, rtol=0)
    assert saved.size == 16
