"""Configurations by their names, the run without any, and both from the wheel in an empty folder."""

import shutil
import zipfile
from pathlib import Path

import pytest
import yaml

import zoo
from datamodules.core.types import PlainDict
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever
from tests.zoo.conftest import Fit, Zoo, done, python, sentences, write_table
from tests.zoo.examples.test_readme import commands_of
from zoo.runs.configs import RECIPES, find, names

ROOT = Path(__file__).parents[3]


def printed(zoo_command: Zoo, *options: object) -> PlainDict:
    """The configuration that a run would have."""
    return yaml.safe_load(done(zoo_command("fit", *options, "--print_config")).out)


def test_a_name_stands_for_a_file(zoo_command: Zoo, tmp_path: Path) -> None:
    assert zoo_command("config", "hmn/hmn4qa").out == find("hmn/hmn4qa").read_text()
    listed = zoo_command("config").out
    assert [line.split()[0] for line in listed.splitlines()] == names()
    assert set(RECIPES.values()) < set(names())
    by_file = printed(zoo_command, f"--config={find('hmn/hmn4qa')}")
    assert printed(zoo_command, "--config=hmn/hmn4qa") == by_file
    assert printed(zoo_command, "--config", "hmn/hmn4qa.yaml") == by_file
    # A file of the user's comes first.
    (tmp_path / "hmn").mkdir()
    (tmp_path / "hmn" / "hmn4qa").write_text("trainer:\n  max_epochs: 3\n")
    assert printed(zoo_command, "--config", "hmn/hmn4qa")["trainer"]["max_epochs"] == 3


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("hmn/hmn4q", "did you mean hmn/hmn4qa?"),
        ("zzzz.yaml", "there are amv_lstm/wikiqa, "),
        ("a\0b", "no such file or configuration"),
        ("\x1b[2J", r"--config \u001b[2J: no such file"),
    ],
)
def test_an_unknown_name(zoo_command: Zoo, name: str, advice: str) -> None:
    for command in (["fit", f"--config={name}"], ["config", name]):
        result = zoo_command(*command)
        assert result.code == 2
        (line,) = result.err.splitlines()
        assert advice in line


def test_a_table_alone_trains_the_default(zoo_command: Zoo) -> None:
    configuration = printed(zoo_command, "--data.train_file=mine.csv", "--model.metric_layers=7")
    assert str(configuration["model"]["class_path"]).endswith("MemoryEnsemble")
    assert configuration["model"]["init_args"]["metric_layers"] == 7
    assert configuration["data"]["init_args"]["num_memories"] == 20
    # The default measures itself by cross-fitting; a network's epoch is chosen on validation rows.
    network = printed(zoo_command, "--data.train_file=mine.csv", "--model=TextCNN")
    splits = [each["data"]["init_args"]["validation_split"] for each in (configuration, network)]
    assert splits == [0, 0.1]
    assert configuration["data"]["init_args"]["validation_split"] == 0
    # With fragments that name no model, too.
    configuration = printed(zoo_command, "--data.train_file=mine.csv", "--config=trainer/bf16")
    assert str(configuration["model"]["class_path"]).endswith("MemoryEnsemble")
    assert configuration["trainer"]["precision"] == "bf16-mixed"


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("HMN", "DialogueDataModule"),
        ("MemNN", "DialogueDataModule"),
        ("TextCNN", "ClassificationDataModule"),
        ("ARCI", "MatchingDataModule"),
        ("RetrievalDSSM", "ClickthroughDataModule"),
    ],
)
def test_a_model_brings_its_kind_of_data(zoo_command: Zoo, model: str, data: str) -> None:
    configuration = printed(zoo_command, f"--model={model}")
    assert str(configuration["model"]["class_path"]).endswith(f".{model}")
    assert str(configuration["data"]["class_path"]).endswith(f".{data}")


def test_members_of_a_fused_retriever_come_from_a_file(fit: Fit, tiny_bert: Path) -> None:
    fragment = yaml.safe_load(find("retrievers/fused").read_text())
    members = fragment["data"]["init_args"]["retriever"]["init_args"]["retrievers"]
    members[1]["init_args"] |= {"encoder": str(tiny_bert), "device": "cpu"}
    Path("fused.yaml").write_text(yaml.safe_dump(fragment))
    run = fit("run", "--config=fused.yaml", "--data.retriever.weights=[1, 2]")
    retriever = zoo.load(run).memory.retriever
    assert retriever.weights == [1.0, 2.0]
    assert [type(member) for member in retriever.retrievers] == [EmbeddedRetriever, DenseRetriever]


@pytest.mark.slow
def test_the_wheel_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, site, empty = tmp_path / "source", tmp_path / "site", tmp_path / "empty"
    kept = shutil.ignore_patterns(".*", "build", "*.egg-info", "runs", "__pycache__")
    shutil.copytree(ROOT, source, ignore=kept)
    python("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    empty.mkdir()
    for name, seed in (("train.csv", 1), ("test.csv", 2)):
        write_table(empty / name, sentences(60, seed))
    (empty / "texts.txt").write_text("some ripe apple\nthe rain\n")
    monkeypatch.chdir(empty)
    monkeypatch.setenv("PYTHONPATH", str(site))
    fit, test, _, predict = commands_of(ROOT / "README.md")[:4]
    assert [fit[0], test[0], predict[0]] == ["fit", "test", "predict"]
    others = [["fit", "--config", "knn_bilstm/ag_news", "--print_config"], ["reproduce"]]
    for command in (fit, test, predict, *others):
        python("-m", "zoo", *command)
    assert len(Path("predictions.csv").read_text().splitlines()) == 3
