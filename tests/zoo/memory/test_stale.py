"""Nothing outdated is used: other data under an old name, memories that others share, resumed runs, damage."""

import shutil
from pathlib import Path

import datasets
import pytest

import zoo
from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from tests.zoo.conftest import Edit, Fit, Zoo, done, read_json, refusal, sentences, write_table


def test_other_rows_of_the_same_name_on_the_hub_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub-cache")
    (folder := tmp_path / "hub").mkdir()

    def prepared(seed: int) -> str:
        write_table(folder / "train.csv", sentences(90, seed))
        data = ClassificationDataModule(train_file=f"hub:{folder}", validation_split=0.2)
        data.prepare_data()
        data.setup("fit")
        return data.split("train").rows.fingerprint

    first = prepared(1)
    assert prepared(1) == first != prepared(2)


def test_a_table_as_memory_grows_for_one_run_alone(
    fit: Fit, zoo_command: Zoo, edit: Edit, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "memory.csv", sentences(80, seed=11))
    dev = write_table(tmp_path / "dev.csv", sentences(20, seed=14))
    options = [
        "--model.features=M5", "--data.memory", table, "--data.memory_label_column=label",
        "--data.validation_file", dev,
    ]  # fmt: skip
    runs = [fit(name, *options) for name in ("a", "b")]
    texts = [text for text, _ in sentences(9, seed=12)]
    before = zoo.load(runs[1]).predict(texts)
    edit("add", runs[0], sentences(30, seed=12))
    assert zoo.load(runs[1]).predict(texts) == before
    third = fit("c", *options)
    assert zoo.load(third).memory.version == 1
    assert zoo.load(third).predict(texts) == before
    # All commands use the memory of the run itself.
    grown = zoo.load(runs[0])
    assert grown.memory.version == 2
    assert {memory.text for prediction in grown.predict(texts) for memory in prediction.memories} >= set(
        texts
    )
    scores = {}
    for command in ("validate", "test"):
        given = ["--data.validation_file" if command == "validate" else "--data.test_file", dev]
        done(zoo_command(command, "--ckpt_path", runs[0], *given, f"--output={command}.json"))
        scores[command] = read_json(f"{command}.json")["loss"]
    assert scores["validate"] == pytest.approx(scores["test"], abs=1e-6)


def test_a_named_memory_grows_alone(fit: Fit, zoo_command: Zoo, edit: Edit, tmp_path: Path) -> None:
    table = write_table(tmp_path / "memory.csv", sentences(80, seed=11))
    done(zoo_command("index", "--file", table, "--memory", "named"))
    run = fit("run", "--model.features=M5", "--data.memory=named")
    edit("add", "named", sentences(30, seed=12))
    assert zoo.load(run).memory.version == 1
    shutil.move("named", "moved")
    assert len(zoo.load(run).memory) == 80
    assert zoo.load(run, memory="moved").memory.version == 2


def test_a_run_is_not_resumed_on_other_data(fit: Fit, zoo_command: Zoo, train_csv: Path) -> None:
    run = fit("run")
    before = (run / "config.yaml").read_text()
    write_table(train_csv, sentences(90, seed=6))
    result = zoo_command("fit", "--ckpt_path", run / "checkpoints" / "last.ckpt", "--trainer.max_epochs=2")
    refusal(result, "data.train_file", "other contents than when the run was started", "--model.init_from")
    assert (run / "config.yaml").read_text() == before


def test_damaged_rows_of_an_addition_leave_the_version_before(copied_run: Path, edit: Edit) -> None:
    texts = [text for text, _ in sentences(9, seed=12)]
    before = zoo.load(copied_run).predict(texts)
    edit("add", copied_run, sentences(30, seed=12))
    rows = copied_run / "model" / "memory" / "version-2" / "rows-2-0.arrow"
    contents = bytearray(rows.read_bytes())
    contents[len(contents) // 2] ^= 1
    rows.write_bytes(contents)
    with pytest.raises(
        InputError, match=r"version-2/rows-2-0.arrow: damaged .*an earlier version \(--memory_version 1\)"
    ):
        zoo.load(copied_run)
    assert zoo.load(copied_run, memory_version=1).predict(texts) == before  # as the message says
