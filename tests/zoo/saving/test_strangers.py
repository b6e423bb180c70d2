"""A model of a stranger runs no code, imports nothing, and reads and writes inside its own folder."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import BertConfig

import zoo
from datamodules.core import origin
from datamodules.core.errors import InputError
from datamodules.core.storage import (
    MANIFEST,
    check_folder,
    finish_folder,
    lock,
    new_file,
    partial_file,
    with_checksum,
)
from datamodules.text.sentence_modules import SentenceModules
from datamodules.text.token_models import make_model
from tests.zoo.conftest import Fit, Zoo, best, refusal, sentences, write_table
from zoo.saving import model_folder
from zoo.saving.checkpoint import CHECKPOINT_KEY
from zoo.saving.saved_model import SavedModel

TEXTS = [text for text, _ in sentences(12, seed=8)]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def exported(fit: Fit, zoo_command: Zoo) -> Path:
    """An exported model."""
    result = zoo_command("export", fit("run"), "model")
    assert result.code == 0, result.err
    return Path("model").absolute()


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file behind if it is imported; returns this file."""
    owned = tmp_path / "OWNED"
    (tmp_path / "evil.py").write_text(
        f"open({str(owned)!r}, 'w').close()\nclass Evil: pass\nclass EmbeddedRetriever: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return owned


def change_export(folder: Path, change: Change) -> Path:
    """Change the configuration of an exported model, with right checksums."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    partial = folder.rename(folder.with_name("partial"))
    (partial / "config.json").write_text(json.dumps(config))
    (partial / MANIFEST).unlink()
    finish_folder(partial, folder, model_folder.KIND)
    return folder


def change_checkpoint(file: Path, change: Change = lambda contents: None) -> Path:
    """Change a checkpoint as a stranger would, without the user's key."""
    contents = torch.load(file, weights_only=True)
    change(contents[CHECKPOINT_KEY])
    contents[CHECKPOINT_KEY]["signature"] = "0" * 64
    torch.save(contents, file)
    return file


# --- code ---


@pytest.mark.parametrize("model_type", ["bert", "evil"])
def test_a_configuration_runs_no_code(
    model_type: str, evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the standard input answers yes to a question of `transformers`."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\ny\nyes\n" * 5))
    small = BertConfig(
        hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    )
    config = {
        **small.to_dict(),
        "model_type": model_type,
        "auto_map": {"AutoModel": f"{tmp_path}--evil.Evil", "AutoConfig": f"{tmp_path}--evil.Evil"},
        "attn_implementation": "stranger/kernel",
        "_attn_implementation": "stranger/kernel",
    }
    if model_type == "bert":
        assert type(make_model(config, SentenceModules())).__module__.startswith("transformers.")
    else:
        with pytest.raises(ValueError, match="evil"):
            make_model(config, SentenceModules())
    assert not evil.exists()
    assert sys.stdin.tell() == 0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("data", "retriever", "class_path"), "evil.Evil"),
        (("data", "retriever", "class_path"), "evil.EmbeddedRetriever"),
        (("data", "retriever", "init_args"), {"similarity.class_path": "evil.Evil"}),
        (("data", "retriever", "init_args"), {"similarity": {"class_path": "evil.Evil"}}),
        (("data", "kind"), "evil.Evil"),
        (("model",), "evil.Evil"),
        (("options", "optimizer.class_path"), "evil.Evil"),
        (("options", "optimizer"), {"class_path": "evil.Evil"}),
        (("data", "options", "retriever.class_path"), "evil.Evil"),
    ],
)
def test_no_module_is_imported_by_its_name(
    place: tuple[str, ...], value: object, exported: Path, evil: Path, zoo_command: Zoo, test_csv: Path
) -> None:
    def change(config: dict[str, Any]) -> None:
        part = {**config[CHECKPOINT_KEY], "options": config["hyper_parameters"]}
        for name in place[:-1]:
            part = part[name]
        (config[CHECKPOINT_KEY] if len(place) == 1 else part)[place[-1]] = value

    change_export(exported, change)
    for command in (["test", f"--data.test_file={test_csv}"], ["predict", f"--input={test_csv}"]):
        result = zoo_command(*command, "--ckpt_path", exported)
        if result.code != 0:
            refusal(result)
        assert not evil.exists()
        assert "evil" not in sys.modules


# --- files outside of the model ---


def test_the_memories_of_own_runs_are_opened_by_their_names(
    fit: Fit, zoo_command: Zoo, train_csv: Path, tmp_path: Path
) -> None:
    zoo_command("index", "--file", train_csv, "--memory", tmp_path / "memory")
    run = fit("run", f"--data.memory={tmp_path / 'memory'}")
    assert SavedModel.open(run).is_own
    expected = zoo.load(run).predict(TEXTS)
    # The run may move; another user has another key.
    run = run.rename(tmp_path / "moved")
    assert zoo.load(run).predict(TEXTS) == expected
    change_checkpoint(best(run))
    assert not SavedModel.open(run).is_own
    with pytest.raises(InputError, match="names a memory outside of its folder; name one with --memory"):
        zoo.load(run)
    assert zoo.load(run, memory=tmp_path / "memory").predict(TEXTS) == expected


@pytest.mark.parametrize("command", ["predict", "test", "validate", "memory show", "memory add", "export"])
def test_a_memory_elsewhere_is_neither_read_nor_written(
    command: str, fit: Fit, zoo_command: Zoo, train_csv: Path, test_csv: Path, tmp_path: Path
) -> None:
    run = fit("run")
    new = tmp_path / "new" / "memory"
    rows = torch.load(best(run), weights_only=True)[CHECKPOINT_KEY]["data"]["memory"]["rows"]
    change_checkpoint(best(run), lambda own: own["data"]["memory"].update(path=str(new), rows=rows))
    options: dict[str, list[object]] = {
        "predict": ["--ckpt_path", run, "--input", test_csv],
        "test": ["--ckpt_path", run, "--data.test_file", test_csv],
        "validate": ["--ckpt_path", run, "--data.validation_file", test_csv],
        "memory show": [run],
        "memory add": [run, test_csv],
        "export": [run, "published"],
    }
    message = refusal(zoo_command(*command.split(), *options[command]), "outside of its folder", "--memory")
    assert str(run) in message
    assert not new.parent.exists()
    assert not Path("published").exists()


def test_a_test_of_a_strangers_model_reads_the_named_memory_only(
    fit: Fit, zoo_command: Zoo, train_csv: Path, test_csv: Path, tmp_path: Path
) -> None:
    zoo_command("index", "--file", train_csv, "--memory", tmp_path / "memory")
    run = fit("run")
    os.mkfifo("pipe")
    change_checkpoint(
        best(run),
        lambda own: own["data"]["options"].update(train_file="pipe", cache_dir=str(tmp_path / "strange")),
    )
    options = [f"--data.test_file={test_csv}", f"--data.memory={tmp_path / 'memory'}", "--output=scores.json"]
    result = zoo_command("test", "--ckpt_path", run, *options)
    assert result.code == 0, result.err
    assert json.loads(Path("scores.json").read_text())["rows"] == 31
    assert not (tmp_path / "strange").exists()


# --- other models, and servers ---


def of_transformer(fit: Fit, name: Path) -> Path:
    """A run with a transformer and its tokenizer."""
    return fit("run", f"--model.transformer={name}", f"--data.tokenizer={name}", "--data.characters=false")


def test_an_export_has_its_tokenizer(tiny_bert: Path, fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    run = of_transformer(fit, tiny_bert)
    (tiny_bert / "notes.txt").write_text("private")
    expected = zoo.load(run).predict(TEXTS)
    assert zoo_command("export", run, "exported").code == 0
    shutil.rmtree(tiny_bert)
    assert zoo_command("export", "exported", "again").code == 0
    for folder in map(Path, ("exported", "again")):
        assert not (folder / "tokenizer" / "notes.txt").exists()
        assert not [*folder.rglob("tokenizer/*.safetensors")]
        predicted = zoo.load(folder).predict(TEXTS)
        assert [each.label for each in predicted] == [each.label for each in expected]
    file = Path("again/tokenizer/tokenizer.json")
    file.write_text(file.read_text().replace("apple", "appel"))
    with pytest.raises(InputError, match=r"tokenizer.json: damaged"):
        zoo.load("again")


def test_a_tokenizer_elsewhere_is_used_only_if_the_user_names_it(
    tiny_bert: Path, fit: Fit, zoo_command: Zoo, test_csv: Path, train_csv: Path, tmp_path: Path
) -> None:
    run = of_transformer(fit, tiny_bert)
    zoo_command("index", "--file", train_csv, "--memory", tmp_path / "memory")
    change_checkpoint(best(run))
    test = [
        "test",
        "--ckpt_path",
        run,
        f"--data.test_file={test_csv}",
        f"--data.memory={tmp_path / 'memory'}",
    ]
    refusal(zoo_command(*test), "/not-of-this-user/tiny-bert")
    refusal(
        zoo_command("predict", "--ckpt_path", run, "--input", test_csv, "--memory", tmp_path / "memory"),
        "/not-of-this-user/tiny-bert",
    )
    result = zoo_command(*test, f"--data.tokenizer={tiny_bert}")
    assert result.code == 0, result.err


def test_an_encoder_elsewhere_is_used_only_if_the_user_names_it(
    tiny_bert: Path, zoo_command: Zoo, train_csv: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dense = ["--retriever=DenseRetriever", f"--retriever.encoder={tiny_bert}"]
    zoo_command("index", "--file", train_csv, "--memory", "memory", *dense)
    search = ["search", "old apple", "--memory", "memory"]
    own = zoo_command(*search)
    assert own.code == 0, own.err
    zoo_command("memory", "add", "memory", train_csv)
    assert zoo_command(*search).out == own.out
    monkeypatch.setenv("ZOO_KEY_FILE", str(tmp_path / "other" / "key"))
    refusal(zoo_command(*search), "/not-of-this-user/tiny-bert")
    assert zoo_command(*search, *dense).out == own.out


@pytest.mark.parametrize("name", ["hub/name", "name", "words", "tokenizer"])
def test_names_of_the_hub_are_kept(name: str, tmp_path: Path) -> None:
    assert origin.own_name(name, tmp_path) == name
    (tmp_path / name).mkdir(parents=True)
    assert origin.own_name(name, tmp_path) == str(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "~", "./a", "a/b/c", "/", "a\0b", "x" * 5000, "../other", "here", 7, ["a"]]
)
def test_no_other_name_is_kept(name: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert str(origin.own_name(name, tmp_path / "model")).startswith("/not-of-this-user/")


def test_the_scores_of_a_strangers_run_are_not_read(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    run = fit("run")
    assert zoo_command("export", run, "own").code == 0
    assert "## Scores" in Path("own/README.md").read_text()
    zoo_command("memory", "add", run, write_table(tmp_path / "more.csv", [("quince tart", "fruit")]))
    change_checkpoint(best(run))
    (run / "metrics.csv").unlink()
    (tmp_path / "private.csv").write_text("epoch,step,val/secret\n0,1,7\n")
    for name in ("answer.md", "metrics.csv"):
        (run / name).symlink_to(tmp_path / "private.csv")
    result = zoo_command("export", run, "model")
    assert result.code == 0, result.err
    assert "secret" not in Path("model/README.md").read_text()


def test_a_key_that_cannot_be_kept_is_reported(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZOO_KEY_FILE", str(tmp_path / "file" / "key"))
    run = fit("run")
    assert "is not recognized as yours" in caplog.text
    assert not SavedModel.open(run).is_own


def test_only_the_user_reads_the_key(fit: Fit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOO_KEY_FILE", str(tmp_path / "own" / "key"))
    assert SavedModel.open(fit("run")).is_own
    assert origin.key_file().stat().st_mode & 0o777 == 0o600
    origin.key_file().write_bytes(b"")
    assert not SavedModel.open("run").is_own


@pytest.mark.parametrize(
    "part", ["memory", "memory/version-1/rows-1-0.arrow", "memory/id_rsa", "model.safetensors"]
)
@pytest.mark.parametrize("target", ["secret.txt", "absent", "pipe"])
def test_no_link_leads_out_of_a_model(
    part: str, target: str, exported: Path, zoo_command: Zoo, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("private")
    os.mkfifo(tmp_path / "pipe")
    file = exported / part
    if file.is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    file.symlink_to(tmp_path / target)
    with pytest.raises(InputError, match=r"is a link to .*, outside of"):
        zoo.load(exported)
    refusal(zoo_command("export", exported, "published"), part, "link")
    assert not Path("published").exists()
    assert (tmp_path / "secret.txt").read_text() == "private"


def test_links_of_the_hubs_cache_are_followed(exported: Path, zoo_command: Zoo, tmp_path: Path) -> None:
    """Its client keeps a file once, and a link to it for each revision."""
    expected = zoo.load(exported).predict(TEXTS)
    snapshot = tmp_path / "models--user--name" / "snapshots" / "0123"
    blobs = tmp_path / "models--user--name" / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in exported.rglob("*") if path.is_file())):
        link = snapshot / file.relative_to(exported)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blobs / str(number))
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    assert zoo.load(snapshot).predict(TEXTS) == expected
    result = zoo_command("export", snapshot, "copied")
    assert result.code == 0, result.err
    assert not any(file.is_symlink() for file in Path("copied").rglob("*"))


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "..", ".", "", "a\0b"])
def test_a_manifest_names_no_file_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("private")
    folder = tmp_path / "folder"
    folder.mkdir()
    facts = {"fingerprint": "f", "files": {name: {"bytes": 7, "xxh3": ""}}}
    (folder / MANIFEST).write_text(json.dumps(with_checksum(facts)))
    with pytest.raises(InputError, match="damaged"):
        check_folder(folder, "f")


@pytest.mark.parametrize("is_lock", [True, False])
def test_no_link_is_followed_for_writing(is_lock: bool, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("private")
    if is_lock:
        (tmp_path / ".memory.lock").symlink_to(secret)
        with pytest.raises(InputError, match="link"), lock(tmp_path / "memory"):
            pass
    else:
        partial_file(tmp_path / "weights.json").symlink_to(secret)
        with new_file(tmp_path / "weights.json") as partial:
            partial.write_text("new")
        assert (tmp_path / "weights.json").read_text() == "new"
    assert secret.read_text() == "private"


# --- terminal ---


ESCAPE = "\x1b]0;title\x07\x9b2J\u202e"


def test_control_characters_are_shown(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    """In texts, labels and names of files; JSON keeps their value."""
    rows = [
        (f"{text} {ESCAPE}", f"{label}{ESCAPE}" if label == "fruit" else label)
        for text, label in sentences(90, 1)
    ]
    table = write_table(tmp_path / "strange.csv", rows)
    run = fit("run", "--data.train_file", table)
    zoo_command("index", "--file", table, "--memory", "memory")
    shown = {
        "search": zoo_command("search", "apple pear plum cherry fruit", "--memory", "memory"),
        "show": zoo_command("memory", "show", run),
        "add": zoo_command("memory", "add", run, table),
        "test": zoo_command("test", "--ckpt_path", run, "--data.test_file", table),
        "predict": zoo_command("predict", "--ckpt_path", run, "--input", table),
        "absent": zoo_command("search", "apple", "--memory", f"absent{ESCAPE}"),
    }
    for name, result in shown.items():
        assert not {*"\x1b\x07\x9b\u202e"} & {*result.out, *result.err}, name
    for name in ("search", "show", "test", "predict"):
        assert shown[name].code == 0, shown[name].err
        assert "fruit\\u001b]0;title\\u0007\\u009b2J\\u202e" in shown[name].out, name
    labels = {json.loads(line)["label"] for line in shown["predict"].out.splitlines()}
    assert labels <= {f"fruit{ESCAPE}", "metal", "weather"}
    assert "\\u001b" in refusal(shown["absent"])


def test_labels_stay_in_their_code_spans(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    names = ["fruit` <b>bold</b> ``", "metal\n# Heading", " lead "]
    of_label = dict(zip(("fruit", "metal", "weather"), names, strict=True))
    run = fit("run", "--data.class_names", json.dumps(of_label))
    result = zoo_command("export", run, "model")
    assert result.code == 0, result.err
    card = Path("model/README.md").read_text()
    (line,) = [line for line in card.splitlines() if line.startswith("Labels: ")]
    assert line == "Labels: `  lead  `, ``` fruit` <b>bold</b> `` ```, `metal\\u000a# Heading`."
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "memory-zoo"
