"""The contents of a model folder, its copies for others, and folders that somebody has altered."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

import zoo
from datamodules.core.errors import InputError
from datamodules.core.storage import MANIFEST, load_json, with_checksum
from tests.zoo.conftest import Fit, Zoo, done, read_csv, refusal, renew_manifest, sentences, write_table
from zoo.model_folder.export import export
from zoo.model_folder.state import FittedFiles

TEXTS = [text for text, _ in sentences(12, seed=8)]


def test_what_is_in_it(trained_run: Path, exported: Path) -> None:
    """No pickle, a checksum for every file that stays as it is, a card for others."""
    fixed = {"model.safetensors", "model.json", "vocabulary.json"}
    for folder, more in ((trained_run / "model", set[str]()), (exported, {"README.md"})):
        found = (file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".lock"))
        files = {str(file.relative_to(folder)) for file in found}
        assert not [name for name in files if name.endswith((".ckpt", ".pt", ".bin", ".pkl"))]
        assert {name for name in files if "/" not in name} == {*fixed, *more, MANIFEST, "state.json"}
        assert load_json(folder / MANIFEST)["files"].keys() == fixed
        assert "network.classifier.weight" in load_file(folder / "model.safetensors")
        assert {(folder / name).stat().st_mode & 0o444 for name in files} == {0o444}
    _, front, card = (exported / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["pipeline_tag"] == "text-classification"
    assert "| accuracy | " in card
    assert "a memory of 72 texts (version 1)" in card


def test_the_card_has_the_scores_of_the_models_epoch(fit: Fit, tmp_path: Path) -> None:
    run = fit("run", "--trainer.max_epochs=4", "--model.optimizer.lr=0.2")
    epochs = [row for row in read_csv(run / "metrics.csv") if row["val/accuracy"]]
    best = max(epochs, key=lambda row: float(row["val/accuracy"]))  # the first of equals
    card = (export(run, tmp_path / "best") / "README.md").read_text()
    assert f"## Scores on the validation rows, epoch {best['epoch']}" in card
    for metric in ("accuracy", "loss"):
        assert f"| {metric} | {float(best[f'val/{metric}']):.4g} |" in card
    copy = shutil.copytree(run, tmp_path / "copy")
    for damage in ("{", "[]", '{"best": {"epoch": 1, "metrics": {"val/loss": "much"}}}'):
        (copy / "summary.json").write_text(damage)
        with pytest.raises(InputError, match=r"summary\.json: is damaged"):
            export(copy, tmp_path / "damaged")
    # The scores of an ensemble are its answer: weights of the other epochs' metrics are fitted on the same rows.
    (run / "answer.md").write_text("the table of the run")
    card = (export(run, tmp_path / "ensemble") / "README.md").read_text()
    assert "## Scores\n\nthe table of the run" in card
    assert "| accuracy |" not in card
    # Files of others that are next to a folder are not published, and none that links lead to.
    (run / "answer.md").rename(tmp_path / "answer.md")
    (run / "answer.md").symlink_to(tmp_path / "answer.md")
    for number, source in enumerate((run, shutil.copytree(run / "model", tmp_path / "moved"))):
        card = (export(source, tmp_path / f"linked-{number}") / "README.md").read_text()
        assert "the table" not in card
    with pytest.raises(InputError, match="exists; name a new folder"):
        export(run, tmp_path)


def test_an_export_has_the_current_version_alone(trained_run: Path, zoo_command: Zoo, tmp_path: Path) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    more = write_table(tmp_path / "more.csv", [("a secretsecret of iron", "metal"), *sentences(20, seed=5)])
    done(zoo_command("memory", "add", run, more))
    done(zoo_command("memory", "remove", run, "--ids=[2:0]"))
    folder = export(run, tmp_path / "exported")
    assert zoo.load(folder).predict(TEXTS) == zoo.load(run).predict(TEXTS)
    assert not any(b"secretsecret" in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    with pytest.raises(InputError, match="version 1"):
        zoo.load(folder, memory_version=1)
    # It grows by itself.
    count = len(zoo.load(run).memory)
    done(zoo_command("memory", "add", folder, write_table(more, sentences(20, seed=6))))
    assert len(zoo.load(folder).memory) > count == len(zoo.load(run).memory)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json", "vocabulary.json", "state.json"])
def test_a_file_is_altered_or_missing(name: str, exported: Path) -> None:
    contents = bytearray((exported / name).read_bytes())
    contents[len(contents) // 2] ^= 1
    (exported / name).write_bytes(contents)
    with pytest.raises(InputError, match=rf"{name}: damaged.*copy or download"):
        zoo.load(exported)
    (exported / name).unlink()
    with pytest.raises(InputError, match=name):
        zoo.load(exported)


def test_its_memory_is_missing(exported: Path) -> None:
    shutil.rmtree(exported / "memory")
    with pytest.raises(InputError, match=r"exported/memory"):
        zoo.load(exported)


def altered(folder: Path, change: Callable[[Any], None], name: str = "model.json") -> Path:
    """Copy a folder with other values and the right checksums, which anybody can write."""
    copy = Path(shutil.copytree(folder, folder.with_name("altered")))
    values = load_json(copy / name)
    values.pop("checksum", None)
    change(values)
    (copy / name).write_text(json.dumps(values if name == "model.json" else with_checksum(values)))
    renew_manifest(copy)
    return copy


def put(*keys: str, value: object) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        for key in keys[:-1]:
            values = values[key]
        values[keys[-1]] = value

    return change


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the user's that no model may read."""
    folder = tmp_path / "private"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["PRIVATE", "../private", "a/../../private", "~/private"])
@pytest.mark.parametrize(
    "keys",
    [
        ("options", "transformer"),
        ("options", "init_from"),
        ("data", "options", "tokenizer"),
        ("data", "options", "train_file"),
        ("data", "options", "memory"),
        ("data", "options", "cache_dir"),
        ("data", "retriever", "init_args", "encoder"),
    ],
)
def test_files_elsewhere_are_refused(keys: tuple[str, ...], name: str, exported: Path, private: Path) -> None:
    folder = altered(exported, put(*keys, value=name.replace("PRIVATE", str(private))))
    with pytest.raises(InputError, match=r"^[^\n]*altered[^\n]*$"):
        zoo.load(folder)
    assert list(private.iterdir()) == []


def test_a_server_that_a_model_names_is_not_used(exported: Path) -> None:
    retriever = {"class_path": "ElasticsearchRetriever", "init_args": {"url": "http://evil.example:9200"}}
    model = zoo.ModelFolder.open(altered(exported, put("data", "retriever", value=retriever)))
    with pytest.raises(InputError, match="has the option url, which files must not set"):
        model.retriever()


def test_no_named_module_is_imported(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("open('executed', 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    for keys in (("model",), ("data", "kind"), ("data", "retriever", "class_path")):
        with pytest.raises(InputError, match="evil"):
            zoo.load(altered(exported, put(*keys, value="evil.Model")))
        shutil.rmtree(tmp_path / "altered")
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        *(
            (("fitted",), value, r"state\.json")
            for value in ({"1": {}}, {"x": {}}, [], {"1": dict.fromkeys(FittedFiles._fields, "/a")})
        ),
        (("spec",), [], "'spec' is a list"),
        (("data", "facts"), None, "'facts' is a NoneType"),
        (("more",), 1, "unknown value 'more'"),
        (("options", "optimizer"), {"class_path": "os.system"}, "this version lacks the options opt"),
        (("options", "hidden_size"), 7, "weights do not fit the model, which was trained with other"),
    ],
)
def test_a_wrong_value_is_named(keys: tuple[str, ...], value: object, message: str, exported: Path) -> None:
    name = "state.json" if keys == ("fitted",) else "model.json"
    with pytest.raises(InputError, match=message):
        zoo.load(altered(exported, put(*keys, value=value), name))


@pytest.mark.parametrize("name", ["model.safetensors", "memory/link", "tokenizer", "fitted"])
def test_links_are_refused(name: str, exported: Path, private: Path, zoo_command: Zoo) -> None:
    path = exported / name
    path.unlink(missing_ok=True)
    path.symlink_to(private)
    for command in (("memory", "show", exported), ("export", exported, "copy")):
        refusal(zoo_command(*command), "is a link to")
    os.unlink(path)
