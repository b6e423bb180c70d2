"""The tuned encoder of a `MemoryEnsemble` finds the neighbors of another model."""

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
from tests.datamodules.corpus import indexed
from tests.zoo.conftest import Fit, Zoo, done, refusal, sentences
from tests.zoo.ensemble.conftest import SMALL
from tests.zoo.ensemble.conftest import run as run
from zoo.layers import encoders
from zoo.loading import SavedEncoder

Tune = Callable[[int], Path]

MEMBERS = "--model.members=[lexical,lexical_vote]"
QUERIES = [text for text, _ in sentences(40, seed=6)]


@pytest.fixture
def tuned(trained: Fit, kept_bert: Path, kept_table: Fit) -> Tune:
    """The run folder of an ensemble whose encoder is tuned in some steps, which tests only read."""
    options = (*SMALL, f"--data.train_file={kept_table(*sentences(90, seed=1))}", "--model.members=[encoder]")
    return lambda steps: trained(
        "fit", *options, f"--model.transformer={kept_bert}", f"--model.metric_steps={steps}"
    )


@pytest.fixture
def encoder(tuned: Tune, tmp_path: Path) -> Path:
    """The folder of an encoder, which tests replace."""
    return Path(shutil.copytree(tuned(5), tmp_path / "encoder"))


def replace(encoder: Path, other: Path) -> None:
    shutil.rmtree(encoder)
    shutil.copytree(other, encoder)


def embedded(encoder: Path) -> list[str]:
    return ["--data.retriever=DenseRetriever", f"--data.retriever.encoder={encoder}"]


def memories_of(run: Path) -> FolderMemory:
    return zoo.load(run).memory


def test_an_encoder_tuned_again_changes_no_earlier_model(tuned: Tune, encoder: Path, run: Fit) -> None:
    old = run("old", MEMBERS, *embedded(encoder))
    expected = memories_of(old).search(QUERIES, 5)
    replace(encoder, tuned(30))
    np.testing.assert_array_equal(memories_of(old).search(QUERIES, 5).scores, expected.scores)
    new = run("new", MEMBERS, *embedded(encoder))
    scores = memories_of(new).search(QUERIES, 5).scores
    assert np.abs(scores - expected.scores).max() > 1e-4


def test_a_memory_is_not_searched_by_an_encoder_that_is_tuned_later(
    tuned: Tune, encoder: Path, zoo_command: Zoo, train_csv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = ["index", "--file", train_csv, "--memory=named"]
    index += [option.replace("--data.", "--") for option in embedded(encoder)]
    done(zoo_command(*index))
    replace(encoder, tuned(30))
    refusal(zoo_command("search", "iron", "--memory=named"), "its index has vectors of another encoder")
    done(zoo_command(*index))
    assert "named: its index has vectors of another encoder" in caplog.text
    done(zoo_command("search", "iron", "--memory=named"))


def test_an_open_index_is_not_searched_by_an_encoder_that_is_tuned_later(
    tuned: Tune, encoder: Path, tmp_path: Path
) -> None:
    texts = [text for text, _ in sentences(20, seed=5)]
    retriever = indexed(DenseRetriever(str(encoder), device="cpu"), texts, tmp_path / "index")
    retriever.close()  # the encoder is loaded again when it is needed
    retriever.ranking.describe()
    retriever.open(tmp_path / "index", "fingerprint")
    replace(encoder, tuned(30))
    with pytest.raises(InputError, match=r"encoder: its files have changed"):
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
