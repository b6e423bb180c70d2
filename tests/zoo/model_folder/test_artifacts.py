"""Models in Weights & Biases: artifacts of runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock, create_autospec

import pytest
import wandb
import yaml
from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry

import zoo
from datamodules.core.errors import InputError
from datamodules.core.storage import checksum_of
from tests.zoo.conftest import Fit, Zoo, done, fit_options, read_json, refusal, sentences, write_table
from zoo.model_folder import artifacts
from zoo.model_folder.export import log_run
from zoo.model_folder.folder import MODEL, ModelFolder
from zoo.runs.run_dir import setting_of

TEXTS = [text for text, _ in sentences(12, seed=8)]
NAME = "wandb:me/texts/topics"
WANDB = ("--config=logger/wandb", "--trainer.logger.log_model=true")


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, _own_folders: None) -> Mock:
    """The run that `wandb.init` returns, without a server."""
    run = MagicMock(spec=wandb.Run, offline=False)
    run.__enter__.return_value = run
    run.log_artifact.return_value.wait.return_value.name = "topics:v1"
    monkeypatch.setattr(wandb, "init", Mock(return_value=run))
    return run


def used_by(run: Mock) -> dict[str, wandb.Artifact]:
    """The inputs of a run by their names."""
    used = [call.args[0] for call in run.use_artifact.call_args_list]
    assert {artifact.type for artifact in used} == {"dataset"}
    return {artifact.name: artifact for artifact in used}


@pytest.fixture(autouse=True)
def _own_folders(_wandb_offline: None) -> Iterator[None]:
    yield
    artifacts.download.cache_clear()


@pytest.fixture
def published(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An artifact with an exported model, which `wandb.Api` finds by its name alone."""
    made = wandb.Artifact("topics", "model")
    made.add_dir(str(exported))

    def download(root: str, skip_cache: bool) -> str:
        assert skip_cache
        return str(shutil.copytree(exported, root))

    found = SimpleNamespace(version="v3", digest=made.digest, manifest=made.manifest, download=download)

    class Api:
        def artifact(self, name: str) -> Any:
            if name not in ("me/texts/topics:v3", "me/texts/topics:latest"):
                raise wandb.errors.CommError(f"artifact {name!r} not found")
            return found

    monkeypatch.setattr(wandb, "Api", Api)
    return found


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch, _own_folders: None) -> None:
    """Let runs of W&B write files, and record their calls."""
    wandb.teardown()  # the settings of an earlier test
    for name in ("log_artifact", "finish"):
        method = getattr(wandb.Run, name)
        monkeypatch.setattr(wandb.Run, name, create_autospec(method, side_effect=method))


@pytest.mark.usefixtures("_offline")
def test_the_model_folder_is_an_artifact_of_the_run(fit: Fit, train_csv: Path, tmp_path: Path) -> None:
    run = fit("run", *WANDB)
    wandb.Run.finish.assert_called_once()
    (_, artifact), options = wandb.Run.log_artifact.call_args  # the last one: W&B has logged tables
    run_id = (run / "wandb_id").read_text()
    assert (artifact.name, artifact.type) == (f"model-{run_id}", "model")
    assert options["aliases"] == ["latest", "best"]
    wandb.teardown()  # its process writes the last lines after the end of the run
    # `wandb sync` uploads the copies of the files that the file of the run names: the whole model with its memory.
    (recorded,) = run.glob("wandb/offline-run-*/*.wandb")
    uploaded = tmp_path / "uploaded"
    for path, entry in artifact.manifest.entries.items():
        assert not path.endswith(".ckpt")
        assert entry.local_path.encode() in recorded.read_bytes()
        (uploaded / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(entry.local_path, uploaded / path)
    expected = zoo.load(run).predict(TEXTS)
    assert zoo.load(uploaded).predict(TEXTS) == expected
    assert artifact.metadata["files"]["train_file"] == checksum_of(train_csv)
    # The run can be repeated from its configuration, and is another run of W&B then.
    config = yaml.safe_load((run / "config.yaml").read_text())
    logger = config["trainer"]["logger"]["init_args"]
    assert (logger["log_model"], logger["id"]) == (True, None)


def test_no_model_without_checkpoints(zoo_command: Zoo, train_csv: Path) -> None:
    options = fit_options(train_csv, *WANDB, "--trainer.enable_checkpointing=false")
    refusal(zoo_command(*options), "--trainer.logger.log_model", "without checkpoints")
    assert not Path("run").exists()


def test_the_inputs_of_a_run(fit: Fit, train_csv: Path, test_csv: Path, online: Mock) -> None:
    """Equal contents are one version of an artifact, other ones another; no row is uploaded."""
    run = fit("run", f"--data.validation_file={test_csv}")
    log_run(online, run, "topics")
    files, first = {"train_file": train_csv, "validation_file": test_csv}, used_by(online)
    assert [*first] == [*files]
    for option, file in files.items():
        ((name, entry),) = first[option].manifest.entries.items()
        assert name == "checksum.json"
        assert read_json(Path(entry.local_path)) == checksum_of(file)
    log_run(online, run, "topics")
    assert all(used_by(online)[option].digest == first[option].digest for option in files)
    assert first["train_file"].digest != first["validation_file"].digest


@pytest.mark.usefixtures("published")
def test_a_model_of_wandb_is_opened_by_its_name(exported: Path, zoo_command: Zoo, test_csv: Path) -> None:
    expected = zoo.load(exported).predict(TEXTS)
    for name in (f"{NAME}:v3", NAME):
        assert zoo.load(name).predict(TEXTS) == expected
    done(zoo_command("test", "--ckpt_path", NAME, "--data.test_file", test_csv))
    assert ModelFolder.open(NAME).path.parent == Path("cache").absolute()
    done(zoo_command("fit", *fit_options(test_csv, f"--model.init_from={NAME}", "--run_dir=next")[1:]))


@pytest.mark.parametrize("command", ["add", "replace"])
def test_a_download_is_not_changed(command: str, published: Any, zoo_command: Zoo, test_csv: Path) -> None:
    table = write_table(Path("rows.csv"), [("0", *sentences(1, seed=3)[0])], ["id", "text", "label"])
    result = zoo_command("memory", command, NAME, table)
    refusal(result, f"{NAME}: a model is not changed in its download", "zoo export")


@pytest.mark.parametrize(
    "path", ["../../evil.json", "/etc/evil.json", "memory/../../evil.json", "..\\evil.json"]
)
def test_no_file_of_an_artifact_lies_outside(path: str, published: Any) -> None:
    published.manifest.entries[path] = ArtifactManifestEntry(path=path, digest="x", size=1)
    with pytest.raises(InputError, match="lies outside of the folder"):
        zoo.load(NAME)
    assert not list(Path("cache").glob("*wandb-*"))


def test_no_file_of_this_machine_is_copied_into_a_model(published: Any, train_csv: Path) -> None:
    """A reference of a stranger's artifact would put any readable file into the model's memory."""
    evil = wandb.Artifact("topics", "model")
    evil.add_reference(train_csv.as_uri(), name="memory/rows.arrow")
    published.manifest = evil.manifest
    with pytest.raises(InputError, match="is a reference"):
        zoo.load(NAME)


def test_a_download_that_stops_halfway_is_repeated(published: Any) -> None:
    whole = published.download

    def stop(root: str, skip_cache: bool) -> None:
        Path(root).mkdir()
        (Path(root) / MODEL).write_text("half")
        raise OSError("connection lost")

    published.download = stop
    with pytest.raises(InputError, match=r"cannot be reached .*connection lost"):
        zoo.load(NAME)
    published.download = whole
    assert zoo.load(NAME).predict(TEXTS)


@pytest.mark.parametrize(
    "name", ["wandb:topics", "wandb:me/texts", "wandb:me/texts/../x:v1", "wandb:me/texts/a:b:c"]
)
def test_a_malformed_name(name: str, zoo_command: Zoo) -> None:
    result = zoo_command("predict", "--ckpt_path", name, "--input=-")
    refusal(result, name, "write wandb:entity/project/name:v3")


def test_an_unknown_name(published: Any, zoo_command: Zoo) -> None:
    result = zoo_command("export", "wandb:me/texts/other", "other")
    refusal(result, "wandb:me/texts/other: W&B has no such artifact", "wandb login")


def test_a_grown_memory_is_a_new_version(copied_run: Path, zoo_command: Zoo, online: Mock) -> None:
    more = write_table(Path("more.csv"), sentences(30, seed=5))
    done(zoo_command("memory", "add", copied_run, more))
    result = done(zoo_command("export", copied_run, "model", "--push", NAME))
    assert result.out.splitlines()[-1] == f"{NAME}:v1"
    assert wandb.init.call_args.kwargs.items() >= {"entity": "me", "project": "texts"}.items()
    assert [*used_by(online)] == ["train_file"]
    ((model,), _) = online.log_artifact.call_args
    assert (model.name, model.type) == ("topics", "model")
    assert any(path.startswith("memory/version-2") for path in model.manifest.entries)


def test_a_place_that_cannot_be(trained_run: Path, zoo_command: Zoo) -> None:
    """Wrong names are refused before anything changes."""
    export = ("export", trained_run, "model")
    for name in ("topics", f"{NAME}:v3", "wandb:topics"):
        refusal(zoo_command(*export, f"--push={name}"), name)
    refusal(zoo_command(*export, f"--push={NAME}", "--private=true"), "--private")
    assert not Path("model").exists()


def test_wandb_is_not_reached(trained_run: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "init", Mock(side_effect=wandb.errors.CommError("no connection")))
    result = zoo_command("export", trained_run, "model", f"--push={NAME}")
    refusal(result, f"{NAME}: W&B ", "no connection", "the model is in")
    assert Path("model").is_dir()


@pytest.mark.usefixtures("_offline")
def test_a_run_has_a_group(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    def group(name: str, *options: str) -> str:
        fit(name, "--config=logger/wandb", *options)
        (run,) = wandb.Run.finish.call_args.args
        return str(run.group)

    assert group("first").startswith("KNNBiLSTM-")
    assert group("own", "--trainer.logger.group=mine") == "mine"
    monkeypatch.setenv("WANDB_RUN_GROUP", "theirs")
    # W&B reads the variable itself, once in a process.
    assert group("variable") in ("theirs", "")


def test_a_setting_is_without_seeds() -> None:
    def config(seed: int | None = None, **trainer: Any) -> dict[str, Any]:
        data = {"class_path": "ClassificationDataModule", "init_args": {}}
        return {"seed_everything": seed, "model": {"class_path": "A"}, "data": data, "trainer": trainer}

    setting = setting_of(config())
    assert setting == setting_of(config(seed=3, logger={"class_path": "WandbLogger"}))
    assert setting != setting_of(config(max_epochs=3))
