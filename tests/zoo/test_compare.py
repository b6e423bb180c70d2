"""Runs side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.zoo.conftest import Result

Command = Callable[..., Result]


def write_run(folder: Path, lr: float, accuracy: list[float], name: str = "KNNBiLSTM") -> Path:
    """A run whose best epoch is the one with the highest accuracy."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"seed_everything: 1\nrun_dir: {folder}\nmodel:\n  class_path: zoo.{name}\n  init_args:\n"
        f"    optimizer:\n      class_path: torch.optim.Adam\n      init_args: {{lr: {lr}}}\n"
    )
    lines = [f"{epoch},{epoch},{value},{1 - value},0.5," for epoch, value in enumerate(accuracy)]
    lines.insert(1, "0,0,,,,12.5")
    header = "epoch,step,val/accuracy,val/loss,val/f1/a,train/examples_per_second"
    (folder / "metrics.csv").write_text("\n".join([header, *lines]) + "\n")
    summary = {"monitor": "val/accuracy", "epochs": len(accuracy), "seconds": 3.5, "trained_parameters": 7}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_settings_that_differ_and_figures_of_the_best_epoch(tmp_path: Path, zoo_command: Command) -> None:
    runs = [
        write_run(tmp_path / "slow", 0.001, [0.5, 0.7, 0.6]),
        write_run(tmp_path / "fast", 0.01, [0.6, 0.9]),
    ]
    result = zoo_command("compare", *runs, "--output", tmp_path / "out")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert cells(lines[0]) == [
        "run", "model.optimizer.lr", "val/accuracy", "val/loss", "epochs", "seconds", "parameters",
    ]  # fmt: skip
    assert cells(lines[2]) == [str(runs[1]), "0.01", "0.9", "0.1", "2", "3.5", "7"]
    assert cells(lines[3]) == [str(runs[0]), "0.001", "0.7", "0.3", "3", "3.5", "7"]
    assert (tmp_path / "out" / "compare.md").read_text().splitlines() == lines[:4]


def test_the_page_draws_a_curve_a_run_and_loads_nothing(tmp_path: Path, zoo_command: Command) -> None:
    runs = [write_run(tmp_path / "a<b", 0.001, [0.5, 0.7]), write_run(tmp_path / "c", 0.01, [0.6])]
    assert zoo_command("compare", *runs, "--metrics=val/loss", "--output", tmp_path).code == 0
    page = (tmp_path / "compare.html").read_text()
    assert "src=" not in page
    assert "href=" not in page
    drawings = [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    assert len(drawings) == 1
    curves = {
        group.findtext("title"): group.find("polyline").attrib["points"] for group in drawings[0].iter("g")
    }
    assert list(curves) == [f"{runs[0]}: 0.3", f"{runs[1]}: 0.4"]
    # The highest value is at the top, the lowest at the bottom; a run of one epoch is a point.
    assert curves[f"{runs[0]}: 0.3"] == "56.0,56.0 384.0,184.0"
    assert curves[f"{runs[1]}: 0.4"] == "56.0,120.0"


def test_a_run_that_has_not_ended(tmp_path: Path, zoo_command: Command) -> None:
    run = write_run(tmp_path / "a", 0.001, [0.5, 0.7, 0.6])
    (run / "summary.json").unlink()
    result = zoo_command("compare", run)
    assert result.code == 0, result.err
    assert cells(result.out.splitlines()[2])[:2] == [str(run), "0.6"]  # the last


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.yaml", None, "no run folder"),
        ("config.yaml", "a: [", "config.yaml: no YAML"),
        ("summary.json", "{", "summary.json: no JSON"),
        ("metrics.csv", "epoch,step,val/loss\n0,0,0.5\n1,1,much\n", "metrics.csv, line 3"),
    ],
)
def test_damaged_runs(
    file: str, text: str | None, message: str, tmp_path: Path, zoo_command: Command
) -> None:
    path = write_run(tmp_path / "run", 0.1, [0.5]) / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    result = zoo_command("compare", path.parent)
    assert result.code == 2
    assert message in result.err


def test_an_unknown_metric(tmp_path: Path, zoo_command: Command) -> None:
    result = zoo_command("compare", write_run(tmp_path / "run", 0.1, [0.5]), "--metrics=val/luck")
    assert result.code == 2
    assert "val/luck: no run has it; there are" in result.err
    assert zoo_command("compare").code == 2
