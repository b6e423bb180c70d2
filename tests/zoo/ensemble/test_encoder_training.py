"""Encoders for cross-fitting are trained as the one that predicts; the choice of its epoch is reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.conftest import write_table
from tests.zoo.ensemble.conftest import distinct_sentences
from zoo.ensemble import encoder_training
from zoo.ensemble.encoder_training import train_encoder
from zoo.ensemble.fit import EnsembleFit
from zoo.ensemble.model import MemoryEnsemble

Run = Callable[..., Path]


@pytest.mark.parametrize(
    "options",
    [
        ["--trainer.accumulate_grad_batches=4"],
        ["--trainer.gradient_clip_val=0.01"],
        ["--trainer.gradient_clip_val=0.001", "--trainer.gradient_clip_algorithm=value"],
        ["--trainer.limit_train_batches=3"],
        ["--model.lr_scheduler=OneCycleLR", "--model.lr_scheduler.max_lr=0.05", "--model.lr_scheduler.total_steps=9"],
        ["--data.validation_split=0"],
    ],
)  # fmt: skip
def test_an_encoder_on_all_rows_is_the_one_that_predicts(
    run: Run, tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin with the same weights, and have no dropout."""
    start, differences = {}, []
    fit_everything = EnsembleFit.run

    def keep(self: MemoryEnsemble) -> None:
        start["network"] = copy.deepcopy(self.network)

    def compare(self: EnsembleFit) -> object:
        again = train_encoder(self.model, self.data, np.arange(len(self.target))).state_dict()
        for name, value in self.model.network.named_parameters():
            differences.append(float((again[name] - value).abs().max()))
        return fit_everything(self)

    monkeypatch.setattr(MemoryEnsemble, "on_train_start", keep)
    monkeypatch.setattr(encoder_training, "fresh_network", lambda *_: copy.deepcopy(start["network"]))
    monkeypatch.setattr(EnsembleFit, "run", compare)
    table = write_table(tmp_path / "train.csv", distinct_sentences(120, seed=1))
    run("run", "--trainer.max_epochs=3", "--model.dropout=0", *options, table=table)
    assert len(differences) > 5
    assert max(differences) < 1e-6


def test_figures_of_an_encoder_that_was_chosen_on_the_same_rows_have_a_mark(run: Run, tmp_path: Path) -> None:
    table = write_table(tmp_path / "train.csv", distinct_sentences(150, seed=1))
    marked = {}
    for epochs in (1, 3):
        folder = run(
            str(epochs), f"--trainer.max_epochs={epochs}", "--model.members=[lexical,encoder]", table=table
        )
        answer = json.loads((folder / "answer.json").read_text())
        marked[epochs] = {row["name"] for row in answer["rows"] if row["is_flattered"]}
        has_note = any("The encoder's epoch was chosen by its accuracy" in note for note in answer["notes"])
        assert has_note == bool(marked[epochs])
    assert marked[1] == set()
    assert "encoder" in marked[3]
    assert not marked[3] & {"majority", "svm", "lexical"}
    lines = (folder / "answer.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("| encoder")]
    assert "*" in line
