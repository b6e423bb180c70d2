"""A model as a folder: alone on another machine, damaged, from the Hub."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file

import zoo
from datamodules.core.errors import InputError
from datamodules.core.storage import finish_folder
from tests.zoo.conftest import Result, refusal, sentences, write_table
from zoo.saving import model_folder
from zoo.saving.export import export

Command = Callable[..., Result]
TEXTS = [text for text, _ in sentences(12, seed=8)]


@pytest.fixture
def exported(fit: Callable[..., Path], zoo_command: Command, tmp_path: Path) -> tuple[Path, list[Any]]:
    """An exported model where nothing else of its run is left, and what the run's checkpoint predicted."""
    run = fit("run", f"--data.cache_dir={tmp_path / 'cache'}")
    expected = zoo.load(run / "checkpoints" / "best.ckpt").predict(TEXTS)
    result = zoo_command("export", run, tmp_path / "model")
    assert result.code == 0, result.err
    assert result.out.startswith(f"{tmp_path / 'model'}: ")
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "cache")
    folder = tmp_path / "elsewhere" / "model"
    folder.parent.mkdir()
    return (tmp_path / "model").rename(folder), expected


def test_it_works_alone(exported: tuple[Path, list[Any]], zoo_command: Command, tmp_path: Path) -> None:
    folder, expected = exported
    (tmp_path / "train.csv").unlink()
    assert zoo.load(folder).predict(TEXTS) == expected
    test = write_table(tmp_path / "test.csv", sentences(31, seed=2))
    result = zoo_command("test", "--ckpt_path", folder, "--data.test_file", test, "--output=scores.json")
    assert result.code == 0, result.err
    assert json.loads(Path("scores.json").read_text())["rows"] == 31
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    result = zoo_command("predict", "--ckpt_path", folder, "--input", texts)
    assert [json.loads(line)["label"] for line in result.out.splitlines()] == [one.label for one in expected]


def test_what_is_in_it(exported: tuple[Path, list[Any]]) -> None:
    """No pickle, no path of the machine, a checksum for every file, a model card."""
    folder, _ = exported
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert not [name for name in files if name.endswith((".ckpt", ".pt", ".bin", ".pkl"))]
    top = {name for name in files if "/" not in name} - {"manifest.json"}
    assert top == {"model.safetensors", "config.json", "vocabulary.json", "README.md"}
    assert json.loads((folder / "manifest.json").read_text())["files"].keys() == top
    config = (folder / "config.json").read_text()
    assert str(folder.parents[1]) not in config
    assert json.loads(config)["memory_zoo"]["data"]["options"]["train_file"] == "train.csv"
    assert "network.classifier.weight" in load_file(folder / "model.safetensors")
    _, front, card = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["pipeline_tag"] == "text-classification"
    assert "| accuracy | " in card
    assert "a memory of 72 texts (version 1)" in card


def test_the_card_has_the_scores_of_the_models_epoch(fit: Callable[..., Path], tmp_path: Path) -> None:
    run = fit("run", "--trainer.max_epochs=4", "--model.optimizer.lr=0.2")
    with (run / "metrics.csv").open() as file:
        epochs = [row for row in csv.DictReader(file) if row["val/accuracy"]]
    best = max(epochs, key=lambda row: float(row["val/accuracy"]))  # the first of equals
    for name, row in {"best": best, "last": epochs[-1]}.items():
        export(run / "checkpoints" / f"{name}.ckpt", tmp_path / name)
        card = (tmp_path / name / "README.md").read_text()
        assert f"## Scores on the validation rows, epoch {int(row['epoch']) + 1}" in card
        for metric in ("accuracy", "loss"):
            assert f"| {metric} | {float(row[f'val/{metric}']):.4g} |" in card
    # The scores of an ensemble are its answer: weights of the other epochs' metrics are fitted on the same rows.
    (run / "answer.md").write_text("the table of the run")
    export(run, tmp_path / "ensemble")
    card = (tmp_path / "ensemble" / "README.md").read_text()
    assert "## Scores\n\nthe table of the run" in card
    assert "| accuracy |" not in card


def test_its_memory_grows(exported: tuple[Path, list[Any]], zoo_command: Command, tmp_path: Path) -> None:
    folder, _ = exported
    more = write_table(tmp_path / "more.csv", sentences(20, seed=5))
    result = zoo_command("memory", "add", folder, more)
    assert result.code == 0, result.err
    assert len(zoo.load(folder).memory) > 72
    assert len(zoo.load(folder, memory_version=1).memory) == 72


def test_an_exported_model_takes_new_labels_and_changes_no_other(
    zoo_command: Command, train_csv: Path, tmp_path: Path
) -> None:
    """The checkpoint in the folder above belongs to another model."""
    run = tmp_path / "run"
    result = zoo_command(
        "fit", "--model=MemoryEnsemble", "--model.members=[lexical_vote]", "--data=ClassificationDataModule",
        "--data.train_file", train_csv, "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu",
        "--run_dir", run,
    )  # fmt: skip
    assert result.code == 0, result.err
    folder = export(run, run / "checkpoints" / "model")
    before = {
        path: path.read_bytes() for path in run.rglob("*") if path.is_file() and folder not in path.parents
    }
    number = len(zoo.load(run).memory)
    more = write_table(tmp_path / "more.csv", [("a new thing", "novel"), ("another new thing", "novel")])
    result = zoo_command("memory", "add", folder, more, "--new_labels=true")
    assert result.code == 0, result.err
    assert "labels that only the memory has: novel" in result.out
    for path, contents in before.items():
        assert path.read_bytes() == contents, path
    assert len(zoo.load(folder).memory) == number + 2
    assert len(zoo.load(run).memory) == number
    (prediction,) = zoo.load(folder).predict(["a new thing"])
    assert "novel" in prediction.probabilities


def test_a_memory_outside_of_the_folder_is_refused(
    exported: tuple[Path, list[Any]], zoo_command: Command, tmp_path: Path
) -> None:
    folder, _ = exported
    memory = tmp_path / "private"
    shutil.copytree(folder / "memory", memory)
    config = json.loads((folder / "config.json").read_text())
    rows = [str(memory), "0"]
    places = (("../private", None), (str(memory), None), (str(memory), rows), ("memory/../../private", None))
    for number, (path, made_of) in enumerate(places):
        config["memory_zoo"]["data"]["memory"] |= {"path": path, "rows": made_of}
        partial = Path(shutil.copytree(folder, tmp_path / "partial"))
        (partial / "config.json").write_text(json.dumps(config))
        (partial / "manifest.json").unlink()
        changed = tmp_path / f"changed-{number}"
        # Whoever shares a folder can write its checksums.
        finish_folder(partial, changed, model_folder.KIND)
        with pytest.raises(InputError, match="names a memory outside of its folder; name one with --memory"):
            zoo.load(changed)
        for command in (("memory", "show", changed), ("predict", "--ckpt_path", changed, "--input=-")):
            refusal(zoo_command(*command), "outside of its folder")


def test_files_next_to_the_folder_are_ignored(exported: tuple[Path, list[Any]]) -> None:
    """An exported folder in a folder that looks like a run reads nothing of that run."""
    folder, expected = exported
    for name in ("memory", "weights.json", "summary.json", "config.json", "checkpoints"):
        (folder.parent / name).write_text("damaged")
    assert zoo.load(folder).predict(TEXTS) == expected


def test_a_new_run_starts_from_it(
    exported: tuple[Path, list[Any]], fit: Callable[..., Path], zoo_command: Command
) -> None:
    folder, _ = exported
    fit("second", f"--model.init_from={folder}")
    result = zoo_command("fit", "--ckpt_path", folder)
    assert result.code == 2
    assert "--model.init_from" in result.err


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocabulary.json", "README.md"])
def test_a_file_is_altered_or_missing(name: str, exported: tuple[Path, list[Any]]) -> None:
    folder, _ = exported
    contents = bytearray((folder / name).read_bytes())
    contents[len(contents) // 2] ^= 1
    (folder / name).write_bytes(contents)
    with pytest.raises(InputError, match=rf"{name}: damaged.*copy or download"):
        zoo.load(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=name):
        zoo.load(folder)


def test_its_memory_is_missing(exported: tuple[Path, list[Any]]) -> None:
    folder, _ = exported
    shutil.rmtree(folder / "memory")
    with pytest.raises(InputError, match=rf"{folder / 'memory'}: the memory .* is not there"):
        zoo.load(folder)


def test_its_memory_is_damaged(exported: tuple[Path, list[Any]]) -> None:
    (exported[0] / "memory" / "memory.json").unlink()
    with pytest.raises(InputError, match=r"memory: the memory is damaged \(memory.json is missing\); copy"):
        zoo.load(exported[0]).predict("apple")


def test_others_may_read_it(exported: tuple[Path, list[Any]]) -> None:
    rights = {path.stat().st_mode & 0o444 for path in exported[0].rglob("*") if path.is_file()}
    assert rights == {0o444}


def test_a_folder_that_is_no_model(tmp_path: Path, fit: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"a folder without checkpoints/best\.ckpt or config\.json"):
        zoo.load(tmp_path)
    with pytest.raises(InputError, match="exists; name a new folder"):
        export(fit("run"), tmp_path)


def test_models_without_gradients_and_of_other_tasks(
    fit: Callable[..., Path], zoo_command: Command, tmp_path: Path, train_csv: Path
) -> None:
    run = tmp_path / "svm"
    result = zoo_command(
        "fit", "--model=TfidfSVM", "--data=ClassificationDataModule", "--data.train_file", train_csv,
        "--trainer.enable_progress_bar=false", "--run_dir", run,
    )  # fmt: skip
    assert result.code == 0, result.err
    expected = zoo.load(run).predict(TEXTS)
    assert zoo.load(export(run, tmp_path / "model")).predict(TEXTS) == expected


# --- the Hub ---


def test_a_name_of_the_hub(exported: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, expected = exported
    asked = []

    def download(name: str) -> str:
        asked.append(name)
        return {"me/model": str(folder)}[name]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert zoo.load("me/model").predict(TEXTS) == expected
    assert zoo.load("me/model").predict(TEXTS) == expected
    assert asked == ["me/model"]


def test_the_hub_can_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=r"me/away: .*cannot be reached \(no connection\).*HF_HUB_OFFLINE=1"):
        zoo.load("me/away")
    with pytest.raises(InputError, match="no such checkpoint"):
        zoo.load("me/model.ckpt")


def test_no_upload_without_a_connection(
    exported: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch, zoo_command: Command, tmp_path: Path
) -> None:
    class Unreachable(Exception):
        """An error of the HTTP library, whose class the zoo does not import."""

    class Api:
        def create_repo(self, name: str, **options: Any) -> str:
            raise Unreachable("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    again = tmp_path / "again"
    result = zoo_command("export", exported[0], again, "--push=me/model")
    assert result.code == 2
    assert f"cannot be reached (Name or service not known); the model is in {again}" in result.err
    assert (again / "model.safetensors").is_file()


def test_upload(
    exported: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch, zoo_command: Command, tmp_path: Path
) -> None:
    uploaded: dict[str, Any] = {}

    class Api:
        def create_repo(self, name: str, **options: Any) -> str:
            uploaded.update(name=name, **options)
            return f"https://hub.example/{name}"

        def upload_folder(self, **options: Any) -> None:
            uploaded.update(options)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    folder, _ = exported
    again = tmp_path / "again"
    result = zoo_command("export", folder, again, "--push=me/model", "--private=true")
    assert result.code == 0, result.err
    assert result.out.splitlines()[1] == "https://hub.example/me/model"
    assert uploaded["folder_path"] == str(again)
    assert uploaded["private"] is True


def test_a_model_of_frozen_parts_loads_without_its_start(fit: Callable[..., Path], tmp_path: Path) -> None:
    """Options on the start of the training are not exported."""
    start = fit("start", "--model.features=M1") / "checkpoints" / "best.ckpt"
    run = fit("run", "--model.features=M1", f"--model.init_from={start}", "--model.freeze_encoder=true")
    expected = zoo.load(run).predict(TEXTS)
    assert zoo.load(export(run, tmp_path / "model")).predict(TEXTS) == expected
