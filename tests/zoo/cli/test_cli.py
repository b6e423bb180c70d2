"""The commands as users give them, on small tables."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import zoo
from tests.zoo.conftest import LABELS, SMALL, Result, sentences, write_table

EXAMPLES = Path(zoo.__file__).parents[1] / "examples"
Command = Callable[..., Result]
Fit = Callable[..., Path]


def weights_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["state_dict"]
    return weights


def same_weights(a: Path, b: Path) -> bool:
    one, other = weights_of(a), weights_of(b)
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def read_metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


# --- fit ---


def test_a_run_folder(fit: Fit) -> None:
    run = fit("run", "--trainer.max_epochs=2")

    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["hidden_size"] == 6
    assert config["data"]["init_args"]["num_memories"] == 3
    assert config["trainer"]["max_epochs"] == 2

    rows = read_metrics(run)
    assert [float(row["val/accuracy"]) for row in rows if row["val/accuracy"]][-1] > 0.5
    assert sum(bool(row["train/loss"]) for row in rows) == 10  # 72 rows in batches of 16, twice
    assert all(float(row["val/rows"]) == 18 for row in rows if row["val/rows"])
    assert any(float(row["train/examples_per_second"] or 0) > 0 for row in rows)

    summary = json.loads((run / "summary.json").read_text())
    assert summary["model"] == "KNNBiLSTM"
    assert (summary["epochs"], summary["steps"]) == (2, 10)
    assert summary["best_score"] == max(float(row["val/accuracy"]) for row in rows if row["val/accuracy"])
    assert Path(summary["best_checkpoint"]) == run / "checkpoints" / "best.ckpt"
    # What the best epoch is chosen by is told at the start, too: a run that is killed has no summary.
    for told in (summary, yaml.safe_load((run / "hparams.yaml").read_text())):
        assert (told["monitor"], told["mode"]) == ("val/accuracy", "max")
    model = zoo.load(run / "checkpoints" / "best.ckpt").model
    trained = sum(weight.numel() for weight in model.parameters())
    assert summary["trained_parameters"] == trained

    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert (last["epoch"], last["global_step"]) == (1, 10)


def test_the_written_config_starts_the_same_run_again(fit: Fit, zoo_command: Command) -> None:
    run = fit("run", "--model.dropout=0.2")
    result = zoo_command("fit", "--config", run / "config.yaml", "--run_dir", "again")
    assert result.code == 0, result.err
    assert same_weights(run / "checkpoints" / "last.ckpt", Path("again/checkpoints/last.ckpt"))
    # And any value of it can be overridden.
    result = zoo_command(
        "fit",
        "--config",
        run / "config.yaml",
        "--run_dir=other",
        "--model.features=M2",
        "--data.num_memories=1",
    )
    assert result.code == 0, result.err
    config = yaml.safe_load(Path("other/config.yaml").read_text())
    assert config["model"]["init_args"]["features"] == "M2"
    assert zoo.load("other/checkpoints/best.ckpt").predict("apple")[0].memories[1:] == []


def test_the_seed_decides_the_weights(fit: Fit) -> None:
    weights = [
        fit(f"run{i}", "--seed_everything", seed) / "checkpoints" / "last.ckpt"
        for i, seed in enumerate((3, 3, 4))
    ]
    assert same_weights(weights[0], weights[1])
    assert not same_weights(weights[0], weights[2])


def test_a_second_run_in_the_same_folder_loses_nothing(fit: Fit) -> None:
    first = {path.name: path.read_bytes() for path in fit("run").rglob("*") if path.is_file()}
    fit("run", "--seed_everything=9")
    kept = {path.name: path.read_bytes() for path in Path("run.1").rglob("*") if path.is_file()}
    assert kept == first
    fit("run")
    assert Path("run.2/checkpoints/best.ckpt").exists()


def test_resumed_is_as_uninterrupted(fit: Fit) -> None:
    options = ("--model.dropout=0.4", "--trainer.precision=32-true")
    whole = fit("whole", "--trainer.max_epochs=3", *options)
    half = fit("half", "--trainer.max_epochs=2", *options)
    before = read_metrics(half)
    assert not same_weights(whole / "checkpoints" / "last.ckpt", half / "checkpoints" / "last.ckpt")
    resumed = fit(
        "half", "--trainer.max_epochs=3", "--ckpt_path", half / "checkpoints" / "last.ckpt", *options
    )

    assert same_weights(whole / "checkpoints" / "last.ckpt", resumed / "checkpoints" / "last.ckpt")
    optimizers = [
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"][0]["state"]
        for run in (whole, resumed)
    ]
    assert all(
        torch.equal(optimizers[0][key]["exp_avg_sq"], optimizers[1][key]["exp_avg_sq"])
        for key in optimizers[0]
    )
    # The metrics go on in the same file, with the numbers of the uninterrupted run.
    after = read_metrics(resumed)
    assert after[: len(before)] == before
    for name in ("train/loss", "val/loss"):
        assert [row[name] for row in after if row[name]] == [
            row[name] for row in read_metrics(whole) if row[name]
        ]
    # The configuration still starts the run from its beginning.
    assert yaml.safe_load((resumed / "config.yaml").read_text())["ckpt_path"] is None


def test_resuming_a_finished_run_says_so_and_keeps_its_files(
    fit: Fit, zoo_command: Command, train_csv: Path
) -> None:
    run = fit("run")
    checkpoint = run / "checkpoints" / "last.ckpt"
    before = {
        name: (run / name).read_bytes() for name in ("summary.json", "metrics.csv", "checkpoints/last.ckpt")
    }
    result = zoo_command(
        "fit",
        *SMALL,
        "--trainer.max_epochs=1",
        "--run_dir",
        run,
        "--ckpt_path",
        checkpoint,
        "--data.train_file",
        train_csv,
    )
    assert result.code == 0, result.err
    assert f"{checkpoint}: finished, nothing to train" in result.out
    assert "--trainer.max_epochs" in result.out
    assert {name: (run / name).read_bytes() for name in before} == before


def test_m1_retrieves_nothing(fit: Fit, zoo_command: Command, test_csv: Path, tmp_path: Path) -> None:
    run = fit("run", "--model.features=M1")
    assert not list((tmp_path / "cache").glob("neighbors-*"))
    assert not list((tmp_path / "cache").glob("memory-*"))
    result = zoo_command("predict", "--ckpt_path", run / "checkpoints" / "best.ckpt", "--input", test_csv)
    assert all(json.loads(line)["memories"] == [] for line in result.out.splitlines())


def test_retriever_options(fit: Fit) -> None:
    run = fit("run", "--data.retriever=EmbeddedRetriever", "--data.retriever.similarity=LMDirichlet")
    checkpoint = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    assert checkpoint["memory_zoo"]["data"]["retriever"]["init_args"]["similarity"] == "LMDirichlet"
    (prediction,) = zoo.load(run / "checkpoints" / "best.ckpt").predict(["plum and zinc"])
    assert prediction.memories


def test_bfloat16_trains(fit: Fit) -> None:
    run = fit("run", "--config", EXAMPLES / "trainer" / "bf16.yaml", "--trainer.max_epochs=4")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["precision"] == "bf16-mixed"
    assert summary["best_score"] > 0.6
    weights = weights_of(run / "checkpoints" / "best.ckpt").values()
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in weights)


def test_prepare_is_all_that_fit_needs_of_the_retriever(
    zoo_command: Command, fit: Fit, train_csv: Path, tmp_path: Path
) -> None:
    result = zoo_command("prepare", *SMALL, "--data.train_file", train_csv)
    assert result.code == 0, result.err
    stores = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("neighbors-*/rows.npy")}
    assert len(stores) == 2  # training and validation
    for folder in (tmp_path / "cache").glob("memory-*/index-*"):
        shutil.rmtree(folder)
    fit("run")
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("neighbors-*/rows.npy")
    } == stores


# --- test, validate, predict: nothing but the checkpoint ---


def test_test_needs_only_the_checkpoint(
    fit: Fit, zoo_command: Command, train_csv: Path, test_csv: Path
) -> None:
    checkpoint = fit("run", "--trainer.max_epochs=5") / "checkpoints" / "best.ckpt"
    train_csv.unlink()
    result = zoo_command(
        "test", "--ckpt_path", checkpoint, "--data.test_file", test_csv, "--output", "out/m.json"
    )
    assert result.code == 0, result.err
    scores = json.loads(Path("out/m.json").read_text())
    assert all(type(value) is float for value in scores.values())
    assert scores["rows"] == 31
    assert {"accuracy", "macro_f1", "micro_f1", "loss", *(f"f1/{label}" for label in LABELS)} <= scores.keys()
    # The same rows one by one, by hand.
    pairs = sentences(31, seed=2)
    predicted = zoo.load(checkpoint).predict([text for text, _ in pairs])
    right = sum(p.label == label for p, (_, label) in zip(predicted, pairs, strict=True))
    assert scores["accuracy"] == right / 31
    assert scores["accuracy"] > 0.8


def test_test_counts_unknown_labels(
    trained_run: Path, zoo_command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trained_run
    table = write_table(tmp_path / "strange.csv", [*sentences(9, seed=5), ("old grey stone", "stone")])
    result = zoo_command(
        "test",
        "--ckpt_path",
        run / "checkpoints" / "best.ckpt",
        "--data.test_file",
        table,
        "--output",
        "m.json",
    )
    assert result.code == 0, result.err
    scores = json.loads(Path("m.json").read_text())
    assert (scores["rows"], scores["unknown_labels"]) == (10, 1)
    assert f"{table}: 1 of 10 rows have a label that training lacks" in caplog.text


def test_validate_repeats_the_run_s_score(fit: Fit, zoo_command: Command) -> None:
    run = fit("run", "--trainer.max_epochs=2")
    result = zoo_command("validate", "--ckpt_path", run / "checkpoints" / "best.ckpt", "--output", "v.json")
    assert result.code == 0, result.err
    best = json.loads((run / "summary.json").read_text())["best_score"]
    assert json.loads(Path("v.json").read_text())["accuracy"] == best


def test_validate_without_the_training_table(
    fit: Fit, zoo_command: Command, train_csv: Path, test_csv: Path
) -> None:
    checkpoint = fit("run") / "checkpoints" / "best.ckpt"
    train_csv.unlink()
    one_line(
        zoo_command("validate", "--ckpt_path", checkpoint), str(train_csv), "--data.train_file", "split off"
    )
    # Rows of their own need the memory and not the training table; they score as test rows do.
    for command, option in (("validate", "validation_file"), ("test", "test_file")):
        result = zoo_command(
            command, "--ckpt_path", checkpoint, f"--data.{option}", test_csv, "--output", f"{command}.json"
        )
        assert result.code == 0, result.err
    scores = [json.loads(Path(f"{command}.json").read_text()) for command in ("validate", "test")]
    assert scores[0] == scores[1]
    assert scores[0]["rows"] == 31


@pytest.mark.parametrize("source", ["csv", "jsonl", "txt", "stdin"])
def test_predict(
    source: str,
    fit: Fit,
    zoo_command: Command,
    train_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = fit("run", "--trainer.max_epochs=5") / "checkpoints" / "best.ckpt"
    training = dict(sentences(90, seed=1))
    train_csv.unlink()
    texts = ["some ripe apple", "the rain and the wind", "old iron", ""]
    options: list[object] = ["--input", tmp_path / f"in.{source}", "--output", tmp_path / "new" / "out.jsonl"]
    if source == "csv":
        with (tmp_path / "in.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "words"], *enumerate(texts)])
        options += ["--text_column", "words"]
    elif source == "jsonl":
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif source == "txt":
        (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    else:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts) + "\n"))
        options = ["--input", "-"]
    result = zoo_command("predict", "--ckpt_path", checkpoint, *options)
    assert result.code == 0, result.err
    written = result.out if source == "stdin" else (tmp_path / "new" / "out.jsonl").read_text()
    records = [json.loads(line) for line in written.splitlines()]
    assert [record["text"] for record in records] == texts
    assert [record["label"] for record in records[:3]] == ["fruit", "weather", "metal"]
    for record in records:
        assert set(record["probabilities"]) == set(LABELS)
        assert sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert record["probability"] == max(record["probabilities"].values())
        assert record["probabilities"][record["label"]] == record["probability"]
        for memory in record["memories"]:
            assert set(memory) == {"text", "label", "retrieval_score", "weight"}
            assert training[memory["text"]] == memory["label"]
            assert -1.001 <= memory["weight"] <= 1.001
        scores = [memory["retrieval_score"] for memory in record["memories"]]
        assert scores == sorted(scores, reverse=True)
    assert [len(record["memories"]) for record in records] == [3, 3, 3, 0]
    assert all(set(memory["text"].split()) & {"old", "iron"} for memory in records[2]["memories"])


def test_predict_reads_the_columns_of_the_training(
    fit: Fit, zoo_command: Command, train_csv: Path, tmp_path: Path
) -> None:
    with train_csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("head", "body", "label")
    parted = [(*row["text"].split(" ", 1), row["label"]) for row in rows if " " in row["text"]]
    table = write_table(tmp_path / "parted.csv", parted, columns=columns)
    read = ("--data.train_file", table, "--data.text_column=[head,body]")
    checkpoint = fit("run", *read) / "checkpoints" / "best.ckpt"
    write_table(tmp_path / "new.csv", [("old", "iron", "")], columns=columns)
    result = zoo_command("predict", "--ckpt_path", checkpoint, "--input", tmp_path / "new.csv")
    assert result.code == 0, result.err
    assert json.loads(result.out)["text"] == "old iron"


# --- looking at models and memories ---


def test_list(zoo_command: Command) -> None:
    out = zoo_command("list").out
    for name, model in zoo.list_models().items():
        assert name in out
        assert model.paper
        assert model.paper in out
    assert "num_perspectives" in out


def test_index_search_and_replace_the_memory(trained_run: Path, zoo_command: Command, tmp_path: Path) -> None:
    table = write_table(
        tmp_path / "m.csv", [("copper kettle", "metal"), ("ripe plum", "fruit"), ("plum jam", "fruit")]
    )
    result = zoo_command("index", "--file", table, "--memory", "memory")
    assert result.code == 0, result.err
    assert result.out == "memory: 3 memories, 2 labels\n"
    result = zoo_command("search", "a plum", "--memory", "memory", "--k=2")
    assert [line.split(maxsplit=1)[1] for line in result.out.splitlines()] == [
        "[fruit] ripe plum",
        "[fruit] plum jam",
    ]
    assert "no memory shares a word" in zoo_command("search", "umbrella", "--memory", "memory").out
    # A trained model reads another memory, smaller than its own.
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    result = zoo_command("predict", "--ckpt_path", checkpoint, "--input", table, "--memory", "memory")
    assert result.code == 0, result.err
    first = json.loads(result.out.splitlines()[0])
    assert [memory["text"] for memory in first["memories"]] == ["copper kettle"]


def test_index_and_search_wait_for_no_pytorch() -> None:
    code = (
        "import sys, zoo.cli.commands, zoo.cli.memories; zoo.cli.commands.load_all_retrievers();"
        " print({'torch', 'pytorch_lightning', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


#: A configuration of W&B's.
SWEEP = EXAMPLES / "logger" / "sweep.yaml"


def test_the_sweep_names_options_that_there_are(zoo_command: Command) -> None:
    sweep = yaml.safe_load(SWEEP.read_text())
    chosen = {name: facts.get("values", [facts.get("min")])[0] for name, facts in sweep["parameters"].items()}
    command = [word for word in sweep["command"] if word != "${args}"]
    assert command[:2] == ["zoo", "fit"]
    files = [word.replace("=examples", f"={EXAMPLES}") for word in command[2:]]
    options = [f"--{name}={value}" for name, value in chosen.items()]
    result = zoo_command("fit", *files, *options, "--print_config")
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    "example",
    # A table of `zoo reproduce` has rows, and is no configuration of a run.
    sorted(p for p in EXAMPLES.rglob("*.yaml") if p != SWEEP and "rows" not in yaml.safe_load(p.read_text())),
    ids=lambda path: str(path.relative_to(EXAMPLES)),
)
def test_examples_parse(example: Path, zoo_command: Command) -> None:
    base = EXAMPLES / "knn_bilstm" / "ag_news.yaml"
    result = zoo_command("fit", "--config", base, "--config", example, "--print_config")
    assert result.code == 0, result.err
    printed = yaml.safe_load(result.out)

    def check(given: Any, found: Any) -> None:
        if isinstance(given, dict):
            for key, value in given.items():
                check(value, found[key.removesuffix("+")])
        elif isinstance(given, list):
            for value, other in zip(given, found, strict=True):
                check(value, other)
        elif isinstance(given, str) and isinstance(found, dict):
            assert found["class_path"].endswith(given)
        elif isinstance(given, str):
            assert found.endswith(given)
        else:
            assert found == given

    check(yaml.safe_load(example.read_text()), printed)


# --- bad input: one line, exit code 2 ---


def one_line(result: Result, *words: str) -> None:
    assert result.code == 2, (result.out, result.err)
    assert "Traceback" not in result.err
    # Progress bars aside.
    lines = [line for line in result.err.splitlines() if line and "%|" not in line]
    assert len(lines) == 1, result.err
    assert lines[0].startswith("zoo: error: ")
    for word in words:
        assert word in lines[0], lines[0]


def fit_options(train_csv: Path, *options: object) -> list[object]:
    return [
        "fit",
        *SMALL,
        "--data.train_file",
        train_csv,
        "--trainer.max_epochs=1",
        "--run_dir=run",
        *options,
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data.train_file=gone.csv"], ["gone.csv"]),
        (["--data.validation_file=gone.csv"], ["gone.csv"]),
        (["--data.text_column=words"], ["train.csv", "words", "text", "label"]),
        (["--data.label_column=topic"], ["train.csv", "topic", "label"]),
        (["--data.num_memories=500"], ["data.num_memories=500", "72"]),
        (["--data.num_memories=0"], ["data.num_memories", "M1"]),
        (["--data.memory=gone"], ["gone", "zoo index"]),
        (["--data.characters=false"], ["characters"]),
        (["--data.batch_size=0"], ["data.batch_size=0"]),
        (["--data.eval_batch_size=0"], ["data.eval_batch_size=0"]),
        (["--data.max_characters=0"], ["data.max_characters=0"]),
        (["--model.hidden_size=0"], ["model", "hidden_size"]),
        (["--model.dropout=3"], ["model", "dropout", "between 0 and 1"]),
        (["--model.optimizer.lr=-1"], ["model.optimizer", "learning rate"]),
        (["--data.classes=[fruit]"], ["fruit", "two"]),
        (["--model=Perceptron"], ["Perceptron", "KNNBiLSTM"]),
        (["--model.features=M9"], ["features", "M9", "M1", "M7"]),
        (["--model.num_perspectives=-1"], ["num_perspectives=-1"]),
        (["--model.hidden_units=3"], ["hidden_units"]),
        (["--learning_rate=3"], ["--learning_rate=3"]),
        (["--data.retriever=Oracle"], ["Oracle"]),
        (["--data.retriever.similarity=TFIDF"], ["TFIDF", "BM25"]),
        (["--config=gone.yaml"], ["gone.yaml"]),
        (["--ckpt_path=gone.ckpt"], ["gone.ckpt"]),
    ],
    ids=lambda value: (
        value[0].removeprefix("--") if isinstance(value, list) and value[0].startswith("--") else ""
    ),
)
def test_bad_options_of_fit(
    options: list[str], words: list[str], zoo_command: Command, train_csv: Path
) -> None:
    one_line(zoo_command(*fit_options(train_csv, *options)), *words)


@pytest.mark.parametrize(
    "option",
    [
        "--data.train_file=gone.csv",
        "--data.num_memories=500",
        "--data.characters=false",
        "--model.features=M9",
    ],
)
def test_a_refused_run_leaves_the_earlier_one_in_place(
    option: str, fit: Fit, zoo_command: Command, train_csv: Path
) -> None:
    run = fit("run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = zoo_command(*fit_options(train_csv, option))
    one_line(result)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert [path.name for path in Path.cwd().glob("run*")] == ["run"]
    # Nor does it leave an empty folder where there was none.
    zoo_command(*fit_options(train_csv, option, "--run_dir=new"))
    assert not Path("new").exists()


@pytest.mark.parametrize("command", ["fit", "prepare"])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--data.num_memories=0", ["data.num_memories is 0"]),
        ("--data.characters=false", ["data.characters is off"]),
        ("--model.transformer=encoder --data.tokenizer=whitespace", ["--data.tokenizer encoder"]),
        ("--model=DSSM", ["DSSM is a model for matching", "ClassificationDataModule"]),
    ],
)
def test_a_model_refuses_its_data_before_anything_is_read(
    command: str, option: str, words: list[str], zoo_command: Command, train_csv: Path, tmp_path: Path
) -> None:
    kept = ["--data=ClassificationDataModule", f"--data.train_file={train_csv}"]
    options = [*kept, option] if option == "--model=DSSM" else [*SMALL, *kept, *option.split()]
    one_line(zoo_command(command, *options), *words)
    assert not (tmp_path / "cache").exists()


def test_an_impossible_number_of_memories_is_refused_before_anything_is_indexed(
    zoo_command: Command, train_csv: Path, tmp_path: Path
) -> None:
    one_line(zoo_command(*fit_options(train_csv, "--data.num_memories=500")), "500")
    assert not list((tmp_path / "cache").glob("memory-*"))


def test_run_folders_that_cannot_be(zoo_command: Command, train_csv: Path) -> None:
    one_line(zoo_command(*fit_options(train_csv, f"--run_dir={train_csv}")), "--run_dir", "is a file")
    below = train_csv / "run"
    one_line(zoo_command(*fit_options(train_csv, f"--run_dir={below}")), str(below), "--run_dir")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_named(trained_run: Path, zoo_command: Command, test_csv: Path) -> None:
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    Path(f".full.jsonl.{os.getpid()}").symlink_to("/dev/full")
    result = zoo_command("predict", "--ckpt_path", checkpoint, "--input", test_csv, "--output", "full.jsonl")
    one_line(result, "No space left")


def test_a_trainer_that_cannot_be(zoo_command: Command, train_csv: Path) -> None:
    one_line(zoo_command(*fit_options(train_csv, "--trainer.devices=0")), "--trainer", "devices")


def test_unknown_commands(zoo_command: Command) -> None:
    one_line(zoo_command("train"), "train", "fit", "predict", "search")
    one_line(zoo_command("predict", "--input", "x.csv"), "ckpt_path")
    one_line(zoo_command("search", "words"), "--memory")
    one_line(zoo_command("search", "words", "--memory", "gone"), "gone", "zoo index")
    one_line(zoo_command("index", "--file", "gone.csv", "--memory", "m"), "gone.csv")
    one_line(zoo_command("test", "--data.test_file", "x.csv"), "--ckpt_path")
    assert zoo_command().code == 0
    assert zoo_command("--version").out.strip() == zoo.__version__
    assert zoo_command("fit", "--help").code == 0


@pytest.mark.parametrize("command", ["test", "validate", "predict", "fit"])
def test_bad_checkpoints(
    command: str, trained_run: Path, zoo_command: Command, test_csv: Path, train_csv: Path
) -> None:
    good = (trained_run / "checkpoints" / "best.ckpt").read_bytes()
    options: list[object] = {
        "test": ["--data.test_file", test_csv],
        "validate": [],
        "predict": ["--input", test_csv],
        "fit": [*SMALL, "--data.train_file", train_csv, "--run_dir=other"],
    }[command]

    def refused(path: str, *words: str) -> None:
        one_line(zoo_command(command, "--ckpt_path", path, *options), path, *words)

    refused("gone.ckpt", "no such checkpoint")
    for size in (0, 100, len(good) // 2, len(good) - 10):
        Path("short.ckpt").write_bytes(good[:size])
        refused("short.ckpt", "truncated")
    Path("text.ckpt").write_text("these are no weights")
    refused("text.ckpt")
    torch.save({"state_dict": {}}, "foreign.ckpt")
    refused("foreign.ckpt", "not a Memory Zoo checkpoint")
    torch.save(torch.zeros(3), "tensor.ckpt")
    refused("tensor.ckpt", "not a Memory Zoo checkpoint")
    contents = torch.load(io.BytesIO(good), weights_only=True)
    contents["memory_zoo"]["model"] = "Perceptron"
    torch.save(contents, "other.ckpt")
    refused("other.ckpt", "Perceptron")


def test_resuming_another_model_is_refused(trained_run: Path, zoo_command: Command, train_csv: Path) -> None:
    checkpoint = trained_run / "checkpoints" / "last.ckpt"
    result = zoo_command(
        *fit_options(
            train_csv,
            "--ckpt_path",
            checkpoint,
            "--run_dir=other",
            "--trainer.max_epochs=2",
            "--model.hidden_size=7",
        )
    )
    one_line(result, "--ckpt_path", "hidden_size 6, not 7")


def test_missing_memory_folder(
    fit: Fit, zoo_command: Command, train_csv: Path, test_csv: Path, tmp_path: Path
) -> None:
    checkpoint = fit("run") / "checkpoints" / "best.ckpt"
    for folder in (tmp_path / "cache").glob("memory-*"):
        shutil.rmtree(folder)
    # The rows are there still: the memory is built of them again.
    assert zoo_command("predict", "--ckpt_path", checkpoint, "--input", test_csv).code == 0
    shutil.rmtree(tmp_path / "cache")
    # And if they are not, they are read again.
    assert zoo_command("predict", "--ckpt_path", checkpoint, "--input", test_csv).code == 0
    shutil.rmtree(tmp_path / "cache")
    train_csv.unlink()
    one_line(zoo_command("predict", "--ckpt_path", checkpoint, "--input", test_csv), "memory", "zoo index")
    one_line(
        zoo_command("test", "--ckpt_path", checkpoint, "--data.test_file", test_csv), "memory", "zoo index"
    )
    one_line(
        zoo_command("predict", "--ckpt_path", checkpoint, "--input", test_csv, "--memory", "gone"),
        "gone",
        "zoo index",
    )


def test_bad_tables_of_test_and_predict(trained_run: Path, zoo_command: Command, test_csv: Path) -> None:
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    one_line(zoo_command("test", "--ckpt_path", checkpoint, "--data.test_file", "gone.csv"), "gone.csv")
    one_line(zoo_command("test", "--ckpt_path", checkpoint), "data.test_file")
    one_line(zoo_command("predict", "--ckpt_path", checkpoint, "--input", "gone.txt"), "gone.txt")
    Path("latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    Path("out.jsonl").write_text("kept")
    result = zoo_command(
        "predict", "--ckpt_path", checkpoint, "--input", "latin.txt", "--output", "out.jsonl"
    )
    one_line(result, "latin.txt", "UTF-8")
    assert Path("out.jsonl").read_text() == "kept"
    result = zoo_command("predict", "--ckpt_path", checkpoint, "--input", test_csv, "--text_column=body")
    one_line(result, "test.csv", "body", "text")


def test_drawn_word_vectors_stay_trained_in_a_model_made_from_its_checkpoint(trained_run: Path) -> None:
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    assert zoo.load(checkpoint).model.network.encoder.words.table.requires_grad


def test_compiled_networks_learn_the_same(fit: Callable[..., Path]) -> None:
    """`eager` runs what `torch.compile` captured as it is, so the digits are equal."""
    plain, compiled = fit("plain"), fit("compiled", "--model.compile=eager")
    one, other = (
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for run in (plain, compiled)
    )
    assert one.keys() == other.keys()
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name])


def test_ids_and_quotes_of_a_table(fit: Fit, zoo_command: Command, tmp_path: Path) -> None:
    """Tickets as a tracker exports them: a TSV with quotes, whose bodies have line ends."""
    pairs = sentences(90, seed=1)
    lines = [
        "key\ttext\tlabel",
        *(f'T-{i}\t"{text}\nmore"\t{label}' for i, (text, label) in enumerate(pairs)),
    ]
    table = tmp_path / "tickets.tsv"
    table.write_text("\n".join(lines) + "\n")
    run = fit("run", "--data.train_file", table, "--data.quotes=true")
    options = ["--ckpt_path", run / "checkpoints" / "best.ckpt", "--input", table]
    result = zoo_command("predict", *options, "--id_column=key", "--output=out.jsonl")
    assert result.code == 0, result.err
    found = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [(each["id"], each["text"]) for each in found] == [
        (f"T-{i}", f"{text}\nmore") for i, (text, _) in enumerate(pairs)
    ]
    one_line(zoo_command("predict", *options, "--output=out.csv"), "JSON lines", "out.jsonl")
    (tmp_path / "lines.txt").write_text("apple\n")
    options = [*options[:2], "--input", tmp_path / "lines.txt", "--id_column=key"]
    one_line(zoo_command("predict", *options), "--id_column", "lines.txt")
    result = zoo_command("memory", "tune", run / "checkpoints" / "best.ckpt", table)
    assert result.code == 0, result.err
    result = zoo_command("index", "--file", table, "--quotes=true", "--memory=memory")
    assert "90 memories, 3 labels" in result.out


def test_data_of_another_kind_is_not_for_the_checkpoint(
    trained_run: Path, zoo_command: Command, test_csv: Path
) -> None:
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    options = ["--ckpt_path", checkpoint, "--data.test_file", test_csv, "--data=MatchingDataModule"]
    one_line(zoo_command("test", *options), "--data MatchingDataModule", "KNNBiLSTM", "leave the option out")


def test_the_options_of_a_class_are_explained(zoo_command: Command) -> None:
    for option in ("--data.help=ClassificationDataModule", "--model.help=KNNBiLSTM"):
        result = zoo_command("fit", option)
        assert result.code == 0, result.err
        assert "name or number of the label" in result.out or "num_perspectives" in result.out
