"""Negatives that a model mines during its training: the hits, the processes, and a killed run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from datamodules import ClickthroughDataModule
from datamodules.core.errors import InputError
from tests.zoo.conftest import Result, resume
from tests.zoo.processes import DDP, zoo_process
from tests.zoo.retrieval_runs import options_of, titles
from zoo.tasks.retrieval import mining
from zoo.tasks.retrieval.mining import MinedHits, embed, find_hits
from zoo.tasks.retrieval.refreshed_negatives import RefreshedNegatives

Command = Callable[..., Result]

CLICKS = Path("clicks")
ROOT = str(Path(__file__).parents[3])


def run_options(
    run_dir: str, *options: object, every: str = "every_n_epochs=1", epochs: int = 3
) -> list[object]:
    callback = ["--trainer.callbacks=RefreshedNegatives", f"--trainer.callbacks.{every}"]
    data = ["--data.negatives=[in_batch,retrieved]", "--data.num_hits=6", "--data.num_negatives=2"]
    more = ["--trainer.callbacks.num_hits=5", f"--run_dir={run_dir}", f"--trainer.max_epochs={epochs}"]
    return ["fit", *options_of(CLICKS, *callback, *data, *more, *options)]


def weights_of(checkpoint: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return weights


def same_weights(one: str, other: str) -> bool:
    weights, others = weights_of(one), weights_of(other)
    return all(torch.equal(value, others[name]) for name, value in weights.items())


def version_of(checkpoint: str) -> str | None:
    states = torch.load(checkpoint, weights_only=True)["callbacks"]
    (state,) = (state for name, state in states.items() if "RefreshedNegatives" in name)
    return state["next_version"] or state["version"]  # type: ignore[no-any-return]


def refreshes(run_dir: str) -> dict[int, Path]:
    """Step -> folder."""
    return {int(folder.name.split("-")[1]): folder for folder in Path(run_dir).glob("negatives/step-*")}


@pytest.fixture
def model_and_data(zoo_command: Command, tmp_path: Path) -> tuple[Any, ClickthroughDataModule]:
    """A trained model, and the data that it was trained on."""
    result = zoo_command(*run_options("first", "--model.tied=false", epochs=2))
    assert result.code == 0, result.err
    predictor = zoo.load("first/checkpoints/last.ckpt")
    data = predictor.data
    data.prepare_data()
    data.setup("fit")
    return predictor.model, data


def hits_of(model: Any, data: ClickthroughDataModule, k: int, block: int) -> MinedHits:
    return find_hits(embed(model, data, block), data.split("train").judgements, k)


@pytest.mark.parametrize(("searched", "block"), [(8192, 512), (7, 3)])
def test_the_hits_are_those_of_a_plain_loop(
    model_and_data: tuple[Any, ClickthroughDataModule],
    searched: int,
    block: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mining, "SEARCHED", searched)
    model, data = model_and_data
    model.train()
    hits = hits_of(model, data, 5, block)
    assert model.training
    judgements = data.split("train").judgements
    predictor = zoo.load("first/checkpoints/last.ckpt")
    queries = predictor.encode_queries(judgements.queries.texts[:])
    documents = predictor.encode(judgements.documents.texts[:])
    assert hits.document.shape == hits.score.shape == (len(queries), 6)
    for row, query in enumerate(queries):
        score = (1 + documents @ query) / 2
        pairs = zip(judgements.query, judgements.document, judgements.grade, strict=True)
        relevant = {int(document) for number, document, grade in pairs if number == row and grade > 0}
        best = max(relevant, key=lambda document: score[document])
        others = sorted(set(range(len(documents))) - relevant, key=lambda document: -score[document])[:5]
        # The order of equal scores is arbitrary.
        expected = sorted([best, *others], key=lambda document: -score[document])
        np.testing.assert_allclose(hits.score[row], score[expected], atol=1e-6)
        assert (
            set(hits.document[row].tolist()) & relevant == {int(best)}
            or np.isclose(
                score[list(set(hits.document[row].tolist()) & relevant)], score[best], atol=1e-6
            ).all()
        )
        np.testing.assert_allclose(score[hits.document[row]], hits.score[row], atol=1e-6)


def test_a_query_with_few_documents_left(model_and_data: tuple[Any, ClickthroughDataModule]) -> None:
    model, data = model_and_data
    hits = hits_of(model, data, 500, 16)
    judgements = data.split("train").judgements
    relevant = np.bincount(judgements.query[judgements.grade > 0], minlength=len(judgements.queries))
    # All documents but the other relevant ones.
    assert ((hits.document >= 0).sum(axis=1) == len(judgements.documents) - relevant + 1).all()
    assert (hits.score[hits.document < 0] == 0).all()


def test_training_draws_from_them(model_and_data: tuple[Any, ClickthroughDataModule]) -> None:
    """Negatives are drawn from the hits of the first refresh, without the first `skip_hits`."""
    _, data = model_and_data
    (folder,) = refreshes("first").values()
    documents, scores = np.load(folder / "documents.npy"), np.load(folder / "scores.npy")
    data.options = replace(data.options, skip_hits=2)
    data.set_negatives(documents.astype(np.int64), scores)
    relevant, pool = data.negatives.relevant, data.negatives.pool
    assert pool is not None
    for query in range(len(documents)):
        left = [
            d for d in documents[query].tolist() if not relevant.holds(np.array([query]), np.array([d]))[0]
        ]
        own = pool[query].tolist()
        assert own == left[2:]
        assert len(own) <= 3
    dataset = data.dataset(data.split("train"), training=True)
    numbers = np.arange(len(dataset))
    query = data.split("train").judgements.query[dataset.examples(0)].astype(np.int64)
    for row, drawn in zip(query.tolist(), data.negatives.draw(0, numbers, query), strict=True):
        own = set(pool[row].tolist())
        assert len(set(drawn.tolist()) & own) == min(2, len(own))


def test_intervals(zoo_command: Command) -> None:
    """An epoch has four steps; intervals start after `start_epoch`."""
    for name, options, steps in (
        ("each", {}, {4, 8, 12}),
        ("second", {"every": "every_n_epochs=2"}, {4, 12}),
        ("late", {"more": ["--trainer.callbacks.start_epoch=2"]}, {8, 12}),
        ("steps", {"every": "every_n_steps=3"}, {6, 9, 12, 15}),
        (
            "added",
            {"every": "every_n_steps=3", "more": ["--trainer.accumulate_grad_batches=2"]},
            {3, 6},
        ),
    ):
        given: dict[str, Any] = dict(options)
        more = given.pop("more", [])
        result = zoo_command(*run_options(name, *more, epochs=4, **given))
        assert result.code == 0, result.err
        assert set(refreshes(name)) == steps, name
        latest = refreshes(name)[max(steps)].name
        assert version_of(f"{name}/checkpoints/last.ckpt") == latest
    metrics = Path("each/metrics.csv").read_text().splitlines()
    assert "train/refresh_seconds" in metrics[0].split(",")


def test_only_the_negatives_change(zoo_command: Command) -> None:
    """Runs are repeatable, and a refresh changes the weights by its negatives."""
    for name, options in (("with", []), ("again", []), ("without", ["--trainer.callbacks.start_epoch=9"])):
        assert zoo_command(*run_options(name, *options, epochs=2)).code == 0
    assert same_weights("with/checkpoints/last.ckpt", "again/checkpoints/last.ckpt")
    assert not same_weights("with/checkpoints/last.ckpt", "without/checkpoints/last.ckpt")
    skipping = ["--data.skip_hits=100", "--data.negatives=[in_batch,random,retrieved]"]
    refused = zoo_command(*run_options("none", *skipping, epochs=2))
    assert refused.code == 2
    assert "no query has a retrieved negative" in refused.err


#: A module that kills its process while the second refresh is being written.
KILLING = """
import os, signal
import numpy as np
save, scores = np.save, []
def killed(path, *rest):
    save(path, *rest)
    scores.extend([path] if path.name == "scores.npy" else [])
    if len(scores) == 2:
        assert ".partial" in str(path)
        os.kill(os.getpid(), signal.SIGKILL)
np.save = killed
"""


@pytest.mark.slow
def test_a_run_killed_in_a_refresh_resumes_with_the_same_result(zoo_command: Command) -> None:
    for every in ("every_n_epochs=1", "every_n_steps=6"):
        shutil.rmtree("killed", ignore_errors=True)
        shutil.rmtree("whole", ignore_errors=True)
        result = zoo_command(*run_options("whole", every=every, epochs=4))
        assert result.code == 0, result.err
        Path("killing.py").write_text(KILLING)
        command = [sys.executable, "-m", "zoo", "--import", "killing"]
        arguments = [str(each) for each in run_options("killed", every=every, epochs=4)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{Path.cwd()}"}
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, timeout=600)
        assert done.returncode == -signal.SIGKILL, done.stderr
        # Only the first refresh is whole, and the checkpoint names it.
        (first,) = refreshes("killed").values()
        assert version_of("killed/checkpoints/last.ckpt") in (None, first.name)
        assert list(Path("killed/negatives").glob(".*.partial"))
        resume(zoo_command, "killed", max_epochs=4)
        assert same_weights("killed/checkpoints/last.ckpt", "whole/checkpoints/last.ckpt")
        assert {folder.name for folder in refreshes("killed").values()} == {
            folder.name for folder in refreshes("whole").values()
        }
        assert not list(Path("killed/negatives").glob(".*.partial"))


def test_a_resumed_run_reads_the_refresh_that_its_checkpoint_names(zoo_command: Command) -> None:
    """Refreshed before the second epoch only, and resumed before the fourth."""
    once = {"every": "every_n_epochs=50"}
    assert zoo_command(*run_options("whole", epochs=4, **once)).code == 0
    assert zoo_command(*run_options("run", epochs=3, **once)).code == 0
    shutil.copytree("run", "gone")
    resume(zoo_command, "run", max_epochs=4)
    assert same_weights("run/checkpoints/last.ckpt", "whole/checkpoints/last.ckpt")
    # Without the folder, the run would resume with other negatives.
    shutil.rmtree("gone/negatives")
    result = zoo_command("fit", "--ckpt_path=gone/checkpoints/last.ckpt", "--trainer.max_epochs=4")
    assert result.code == 2
    assert "the negatives of the checkpoint's training are missing; restore the folder" in result.err
    (damaged,) = refreshes("run").values()
    contents = bytearray((damaged / "documents.npy").read_bytes())
    contents[-1] ^= 1
    (damaged / "documents.npy").write_bytes(contents)
    result = zoo_command("fit", "--ckpt_path=run/checkpoints/last.ckpt", "--trainer.max_epochs=5")
    assert result.code == 2
    assert "documents.npy: damaged" in result.err


def test_a_resumed_run_uses_the_next_refresh_of_its_checkpoint(zoo_command: Command) -> None:
    """Refreshed after four steps and searched for six: the checkpoint after eight names a refresh not yet in use."""
    options = {"every": "every_n_epochs=2"}
    later = "--trainer.callbacks.search_steps=6"
    assert zoo_command(*run_options("whole", later, epochs=4, **options)).code == 0
    assert zoo_command(*run_options("run", later, epochs=2, **options)).code == 0
    states = torch.load("run/checkpoints/last.ckpt", weights_only=True)["callbacks"]
    (state,) = (state for name, state in states.items() if "RefreshedNegatives" in name)
    (folder,) = refreshes("run").values()
    assert state == {"version": None, "next_version": folder.name, "due": 10}
    resume(zoo_command, "run", max_epochs=4)
    assert same_weights("run/checkpoints/last.ckpt", "whole/checkpoints/last.ckpt")
    # The delay changes the result.
    assert zoo_command(*run_options("once", epochs=4, **options)).code == 0
    assert not same_weights("once/checkpoints/last.ckpt", "whole/checkpoints/last.ckpt")


#: A module that notes which process encodes, and the negatives of each process.
NOTING = """
import numpy as np
from datamodules import ClickthroughDataModule
from zoo.tasks.retrieval import refreshed_negatives
embed, set_negatives = refreshed_negatives.embed, ClickthroughDataModule.set_negatives
def noted_embed(model, data, block):
    open("encoded", "a").write(f"{data.trainer.global_rank}\\n")
    return embed(model, data, block)
def noted(self, documents, scores):
    np.save(f"rank{self.trainer.global_rank}-step{self.trainer.global_step}.npy", documents)
    set_negatives(self, documents, scores)
refreshed_negatives.embed, ClickthroughDataModule.set_negatives = noted_embed, noted
"""


@pytest.mark.parametrize("search_steps", [0, 1])
def test_one_process_builds_and_two_read(search_steps: int) -> None:
    Path("noting.py").write_text(NOTING)
    # Each process has queries to rank: two batches of three.
    options = [f"--trainer.callbacks.search_steps={search_steps}", "--data.eval_batch_size=3", *DDP]
    printed = zoo_process("--import", "noting", *run_options("run", *options))
    assert "run folder: run" in printed
    assert Path("encoded").read_text() == "0\n0\n"
    for step, folder in refreshes("run").items():
        expected = np.load(folder / "documents.npy")
        for rank in (0, 1):
            taken = np.load(f"rank{rank}-step{step + search_steps}.npy")
            np.testing.assert_array_equal(taken, expected)
    assert len(refreshes("run")) == 2


def test_wrong_options(zoo_command: Command) -> None:
    for options, pattern in (
        ({"every_n_epochs": 1, "every_n_steps": 3}, "every_n_epochs or every_n_steps, not both"),
        ({"every_n_epochs": 0}, "every_n_epochs=0: must be 1 or more"),
        ({"every_n_steps": 0}, "every_n_steps=0"),
        ({"num_hits": 0}, "num_hits=0"),
        ({"start_epoch": -1}, "start_epoch=-1: must be 0 or more"),
        ({"search_steps": -1}, "search_steps=-1: must be 0 or more"),
    ):
        with pytest.raises(InputError, match=pattern):
            RefreshedNegatives(**options)
    for more, line in (
        (["--data.negatives=in_batch"], "data.negatives draws none from hits"),
        (["--data.num_workers=2"], "data.num_workers=2: worker processes would keep the old negatives"),
    ):
        result = zoo_command(*run_options("run", *more))
        assert result.code == 2
        assert line in result.err
        assert len(result.err.splitlines()[-1]) < 400
    assert len(titles(CLICKS)) == 40
