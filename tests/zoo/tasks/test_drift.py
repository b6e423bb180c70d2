"""Drift: an alarm for texts of another kind, and none for texts of the same kind."""

from pathlib import Path

import numpy as np
import pytest

import zoo
from datamodules.core.errors import InputError
from tests.zoo.conftest import Fit, Zoo, done, sentences
from tests.zoo.ensemble.conftest import distinct_sentences
from tests.zoo.ensemble.conftest import shared_run as shared_run
from zoo.tasks.classification.held_out import drift


def test_an_alarm_is_rare_where_nothing_changes() -> None:
    random = np.random.default_rng(0)
    p_values = np.array(
        [drift(random.random(200), random.random(100).tolist())["p_value"] for _ in range(1000)]
    )
    for level in (0.05, 0.2):
        assert (p_values <= level).mean() <= level + 0.02
    assert drift(random.random(200), (random.random(100) - 0.3).tolist())["is_alarm"]
    assert not drift(random.random(200), [])["is_alarm"]


def test_report(shared_run: Fit, zoo_command: Zoo, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members, dev = "--model.members=[lexical,lexical_vote]", distinct_sentences(60, seed=4)
    folder = shared_run(sentences(90, seed=1), members, validation=dev)
    same, other = tmp_path / "same.txt", tmp_path / "other.txt"
    same.write_text("\n".join(text for text, _ in distinct_sentences(60, seed=5)) + "\n")
    other.write_text("\n".join(f"nothing {number} here {number} is known" for number in range(60)) + "\n")
    for file, verdict in ((same, "no sign of drift"), (other, "DRIFT: the texts are of another kind")):
        caplog.clear()
        predict = ("predict", f"--ckpt_path={folder}", "--input", file, "--output=o.jsonl", "--report=true")
        result = done(zoo_command(*predict))
        assert verdict in caplog.text + result.err
    predictor = zoo.load(folder)
    predictor.held_out = None
    with pytest.raises(InputError, match="report: this MemoryEnsemble has no held-out rows"):
        list(predictor.records(str(same), report=True))
