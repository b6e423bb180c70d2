"""A model folder contains what it names: moved, with nothing else left, every command gives the same bytes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.zoo import retrieval_runs
from tests.zoo.conftest import SMALL, Zoo, done, pair_rows, sentences, write_pairs, write_table
from tests.zoo.ensemble.conftest import SMALL as SMALL_ENSEMBLE
from tests.zoo.tasks.test_matching_runs import SMALL as SMALL_MATCHING
from zoo.model_folder.meta import check_names
from zoo.serve.app import make_app
from zoo.serve.live_model import LiveModel

Step = tuple[str, list[object]]


def classification(model: list[str]) -> Callable[[Path, Path], tuple[list[object], list[Step]]]:
    def case(folder: Path, bert: Path) -> tuple[list[object], list[Step]]:
        write_table(folder / "train.csv", sentences(90, seed=1))
        test = write_table(folder / "test.csv", sentences(31, seed=2))
        more = write_table(folder / "more.csv", sentences(30, seed=3))
        names = (option.replace("TINY", str(bert)) for option in model)
        predict = ["--input", test, "--output"]
        steps: list[Step] = [
            ("predict", ["--ckpt_path=MODEL", *predict, "trained.jsonl"]),
            ("test", ["--ckpt_path=MODEL", "--data.test_file", test, "--output=scores.json"]),
            ("memory", ["add", "MODEL", more]),
            ("memory", ["remove", "MODEL", "--ids=[2:0,5]"]),
            ("memory", ["relabel", "MODEL", "--ids=[7]", "--label=metal"]),
            ("predict", ["--ckpt_path=MODEL", *predict, "grown.jsonl"]),
            ("predict", ["--ckpt_path=MODEL", *predict, "old.jsonl", "--memory_version=1"]),
            ("audit", ["MODEL", "--output=audit.csv"]),
        ]
        if "--model=TfidfSVM" in model:  # it reads no memory
            steps = steps[:2]
        if "--model=MemoryEnsemble" in model:
            tuned = write_table(folder / "tune.csv", sentences(40, seed=4))
            steps += [
                ("memory", ["tune", "MODEL", tuned, "--refit=true"]),
                ("predict", ["--ckpt_path=MODEL", *predict, "tuned.jsonl", "--max_error=0.9"]),
            ]
        steps += [("serve", []), ("export", ["MODEL", "exported"])]
        steps += [("predict", ["--ckpt_path=exported", *predict, "exported.jsonl"])]
        return ["fit", *names, f"--data.train_file={folder / 'train.csv'}"], steps

    return case


def matching(folder: Path, bert: Path) -> tuple[list[object], list[Step]]:
    train, test = (write_pairs(folder / f"{n}.tsv", pair_rows(40, seed=n)) for n in (1, 2))
    lines = folder / "questions.txt"
    lines.write_text("where is plum\nwhere is iron\n")
    more = write_table(folder / "more.csv", [("a plum tree",)], ["text"])
    return [
        "fit", *SMALL_MATCHING, "--data.train_file", train, "--data.validation_split=0.2",
        "--trainer.max_epochs=1",
    ], [
        ("predict", ["--ckpt_path=MODEL", "--input", test, "--output=pairs.jsonl"]),
        ("test", ["--ckpt_path=MODEL", "--data.test_file", test, "--output=scores.json"]),
        ("memory", ["add", "MODEL", more]),
        ("predict", ["--ckpt_path=MODEL", "--input", lines, "--output=answers.jsonl"]),
        ("export", ["MODEL", "exported"]),
        ("predict", ["--ckpt_path=exported", "--input", lines, "--output=exported.jsonl"]),
    ]  # fmt: skip


def retrieval(folder: Path, bert: Path) -> tuple[list[object], list[Step]]:
    options = retrieval_runs.options_of(folder, "--trainer.max_epochs=1", "--data.num_hits=5")
    lines = folder / "words.txt"
    lines.write_text("apple\ngold\n")
    return ["fit", *options], [
        ("predict", ["--ckpt_path=MODEL", "--input", lines, "--output=ranked.jsonl"]),
        ("export", ["MODEL", "exported"]),
        ("predict", ["--ckpt_path=exported", "--input", lines, "--output=exported.jsonl"]),
    ]


CASES = {
    "KNNBiLSTM": classification([*SMALL, "--trainer.max_epochs=1"]),
    "KNNBiLSTM with an encoder's neighbors": classification(
        [*SMALL, "--trainer.max_epochs=1", "--data.retriever=DenseRetriever", "--data.retriever.encoder=TINY"]
    ),
    "MemoryEnsemble with a transformer": classification(
        [*SMALL_ENSEMBLE, "--model.transformer=TINY", "--model.metric_steps=1"]
    ),
    "TfidfSVM": classification(
        ["--model=TfidfSVM", "--data=ClassificationDataModule", "--data.num_memories=3", *SMALL[12:]]
    ),
    "AMVLSTM": matching,
    "LSTMRNN": retrieval,
}


@pytest.mark.parametrize("name", CASES)
def test_a_moved_model_gives_the_same_bytes(
    name: str, zoo_command: Zoo, tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, first = tmp_path / "inputs", tmp_path / "first"
    for folder in (inputs, first):
        folder.mkdir()
    fit, steps = CASES[name](inputs, tiny_bert)
    done(zoo_command(*fit, f"--run_dir={first / 'run'}"))
    check_it_names_nothing_outside_of_itself(first / "run" / "model", tmp_path)
    second = tmp_path / "elsewhere"
    shutil.copytree(first, second)
    expected = outputs(steps, first, zoo_command, monkeypatch)
    for gone in ("cache", "tiny-bert", "first", *(f"inputs/{table}" for table in TRAINING)):
        path = tmp_path / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.rmtree(second / "run" / "checkpoints")
    moved = outputs(steps, second, zoo_command, monkeypatch)
    assert len(expected) >= 3
    assert moved.keys() == expected.keys()
    for file, contents in expected.items():
        assert moved[file] == contents, file


TRAINING = ("train.csv", "1.tsv", "corpus.jsonl", "queries.jsonl", "qrels.tsv")


def outputs(
    steps: list[Step], folder: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> dict[str, bytes]:
    """Run commands on the model of a folder, in the folder; return the contents of the files that they write."""
    monkeypatch.chdir(folder)
    for command, given in steps:
        if command == "serve":
            client = TestClient(make_app(LiveModel("run")), base_url="http://127.0.0.1:8000")
            answer = client.post("/predict", json={"texts": ["old iron", "rain in the fog"]})
            Path("served.json").write_bytes(answer.content)
            continue
        arguments = [str(each).replace("MODEL", "run") for each in given]
        done(zoo_command(command, *arguments))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def check_it_names_nothing_outside_of_itself(model: Path, outside: Path) -> None:
    for path in model.rglob("*"):
        assert not path.is_symlink()
        if path.suffix == ".json" and path.name != "vocabulary.json":
            contents = json.loads(path.read_text())
            check_names(contents, str(path))
            assert str(outside) not in path.read_text()
            assert "localhost" not in path.read_text()
    # The memory is that of the cache, by links.
    if rows := next(model.rglob("rows-*.arrow"), None):
        of_cache = {os.stat(path).st_ino for path in Path("cache").rglob("rows-*.arrow")}
        assert os.stat(rows).st_ino in of_cache
