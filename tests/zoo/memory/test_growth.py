"""A finished run whose memory grows: the run stays as it is, and no row is scored by a vote fitted on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval.memories.folder_memory import FolderMemory
from tests.zoo.conftest import LABELS, sentences
from zoo.layers.vote import Evidence
from zoo.memory.growth import cross_fitted, grow, grown_copy
from zoo.memory.tuning import Witnessed
from zoo.saving.checkpoint import CHECKPOINT_KEY, read_checkpoint

Fit = Callable[..., Path]

VALIDATION = Rows.from_lists(
    *zip(*[(f"{text} {i}", label) for i, (text, label) in enumerate(sentences(30, 8))], strict=True)
)


def files_of(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Contents and times of all files of a folder."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("back_end", ["embedded", pytest.param("elasticsearch", marks=pytest.mark.server)])
def test_a_copy_of_the_memory_grows_and_the_run_stays_as_it_is(
    back_end: str, fit: Fit, request: pytest.FixtureRequest
) -> None:
    options = []
    if back_end == "elasticsearch":
        options = [
            "--data.retriever=ElasticsearchRetriever",
            f"--data.retriever.url={request.getfixturevalue('elasticsearch_url')}",
            f"--data.retriever.index_prefix={request.getfixturevalue('index_prefix')}",
        ]
    run = fit("run", "--model.features=M1", "--model.mix=0.5", "--data.rows_per_class=8", *options)
    checkpoint = run / "checkpoints" / "best.ckpt"
    memory = zoo.load(checkpoint).memory
    assert isinstance(memory, FolderMemory)
    predicted = zoo.load(checkpoint).predict(VALIDATION.texts[:])
    before = files_of(run) | files_of(memory.folder)  # what the encoder made of the memory is there by now
    kept, new = memory.rows.select([0, 3]), Rows.from_lists(["durian jam", "tungsten"], ["fruit", "metal"])

    figures = grow(checkpoint, Rows.concat([new, kept]), VALIDATION, Path("grown"), seed=1)

    assert files_of(run) | files_of(memory.folder) == before
    assert zoo.load(checkpoint).predict(VALIDATION.texts[:]) == predicted
    assert figures["memory_rows"] == 26  # what the memory has already is left out
    shares = [figures[name] for name in ("val/accuracy", "val/accuracy_untuned")]
    assert [30 * share for share in shares] == pytest.approx([round(30 * share) for share in shares])
    names = {
        "untuned": Path("grown/checkpoints/untuned.ckpt"),
        "tuned": Path("grown/checkpoints/best.ckpt"),
    }
    contents = {name: read_checkpoint(path) for name, path in names.items()}
    trained = read_checkpoint(checkpoint)["state_dict"]
    changed = {
        name: {key for key, weight in trained.items() if not torch.equal(weight, found["state_dict"][key])}
        for name, found in contents.items()
    }
    assert changed["untuned"] == set()
    assert {"network.mix"} <= changed["tuned"] <= {"network.mix", "network.mix_tau"}
    for name, path in names.items():
        assert contents[name][CHECKPOINT_KEY]["data"]["memory"] == str(Path("grown/memory").absolute())
        (prediction,) = zoo.load(path).predict("some tungsten")
        assert prediction.memories[0].text == "tungsten"
    # As if the rows had been added to the run's own memory.
    untuned, added = zoo.load(names["untuned"]), zoo.load(checkpoint, memory=Path("grown/memory"))
    assert untuned.predict(VALIDATION.texts[:]) == added.predict(VALIDATION.texts[:])
    right = [
        p.label == label
        for p, label in zip(untuned.predict(VALIDATION.texts[:]), VALIDATION.labels or [], strict=True)
    ]
    assert figures["val/accuracy_untuned"] == pytest.approx(sum(right) / 30)


def test_a_run_memory_that_has_grown_since_is_copied_as_it_began(fit: Fit) -> None:
    run = fit("run", "--model.features=M1", "--model.mix=0.5", "--data.rows_per_class=8")
    checkpoint = run / "checkpoints" / "best.ckpt"
    memory = zoo.load(checkpoint).memory
    assert memory is not None
    memory.add(VALIDATION)  # the validation rows would find themselves
    copy = grown_copy(checkpoint, Rows.from_lists(["tungsten"], ["metal"]), Path("copy"))
    assert len(copy) == 25


def test_no_row_is_classified_by_a_vote_that_was_tuned_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 36
    labels = [LABELS[i % 3] for i in range(n)]
    columns = [torch.zeros(n, 3), torch.zeros(n, 2), torch.ones(n, 2), torch.ones(n, 2, dtype=torch.bool)]
    memory_target = torch.zeros(n, 2, dtype=torch.long)
    evidence = Evidence(*columns, memory_target=memory_target, target=torch.arange(n))
    witnessed = Witnessed(evidence, *torch.zeros(3, n, dtype=torch.bool))
    tuned_on: list[list[int]] = []

    def best(self: Witnessed) -> tuple[float, float]:
        tuned_on.append(self.evidence.target.tolist())
        return float(len(tuned_on) - 1), 0.0

    def log_probabilities(self: Evidence, mix: float, tau: float) -> torch.Tensor:
        return torch.eye(3)[int(mix)].expand(len(self.target), 3)

    monkeypatch.setattr(Witnessed, "best", best)
    monkeypatch.setattr(Evidence, "log_probabilities", log_probabilities)
    predicted = cross_fitted(witnessed, labels, seed=1).argmax(dim=1).tolist()
    assert sorted(tuned_on[0] + tuned_on[1]) == list(range(n))
    assert all(row not in tuned_on[half] for row, half in enumerate(predicted))
    for half in tuned_on:
        assert sorted(labels[row] for row in half) == sorted(6 * LABELS)  # stratified

    halves = tuned_on[:]
    tuned_on.clear()
    cross_fitted(witnessed, labels, seed=1)
    assert tuned_on == halves
    tuned_on.clear()
    cross_fitted(witnessed, labels, seed=2)
    assert tuned_on != halves


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Rows.from_lists(["tungsten"], ["ore"]), "has the label 'ore', which the model cannot predict"),
        (Rows.from_lists(["tungsten"]), "has no label; give it one"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: Rows, message: str, fit: Fit) -> None:
    checkpoint = fit("run", "--model.features=M1", "--model.mix=0.5") / "checkpoints" / "best.ckpt"
    with pytest.raises(InputError, match=message):
        grow(checkpoint, rows, VALIDATION, Path("grown"), seed=1)


def test_a_model_without_memory_can_not_grow_one(fit: Fit) -> None:
    checkpoint = fit("run", "--model.features=M1") / "checkpoints" / "best.ckpt"
    with pytest.raises(InputError, match=r"best\.ckpt: the model has no memory that could grow"):
        grow(checkpoint, VALIDATION, VALIDATION, Path("grown"), seed=1)
