"""`zoo fit` and `zoo prepare`: run folders, resumed runs, and refused options."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import zoo
from datamodules.core.errors import InputError
from tests.datamodules.checks import files_of
from tests.zoo.conftest import (
    SMALL,
    Fit,
    Zoo,
    best,
    done,
    fit_options,
    last,
    python,
    read_csv,
    refusal,
    resume,
)
from tests.zoo.ensemble.conftest import SMALL as SMALL_ENSEMBLE


def weights_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint, weights_only=True)["state_dict"]


def has_same_weights(first: Path, second: Path) -> bool:
    weights, others = weights_of(first), weights_of(second)
    return weights.keys() == others.keys() and all(torch.equal(weights[key], others[key]) for key in weights)


def test_a_run_folder(fit: Fit) -> None:
    run = fit("run", "--trainer.max_epochs=2")

    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["hidden_size"] == 6
    assert config["data"]["init_args"]["num_memories"] == 3
    assert config["trainer"]["max_epochs"] == 2

    rows = read_csv(run / "metrics.csv")
    assert [float(row["val/accuracy"]) for row in rows if row["val/accuracy"]][-1] > 0.5
    assert sum(bool(row["train/loss"]) for row in rows) == 10  # 72 rows in batches of 16, twice
    assert all(float(row["val/rows"]) == 18 for row in rows if row["val/rows"])
    assert "val/f1/fruit" in rows[0]
    assert any(float(row["train/examples_per_second"] or 0) > 0 for row in rows)

    summary = json.loads((run / "summary.json").read_text())
    assert summary["model"] == "KNNBiLSTM"
    assert (summary["epochs"], summary["steps"]) == (2, 10)
    assert summary["best_score"] == max(float(row["val/accuracy"]) for row in rows if row["val/accuracy"])
    assert Path(summary["best_checkpoint"]) == best(run)
    # The monitor is written at the start, too, because a killed run has no summary.
    for described in (summary, yaml.safe_load((run / "hparams.yaml").read_text())):
        assert (described["monitor"], described["mode"]) == ("val/accuracy", "max")
    trained = sum(weight.numel() for weight in zoo.load(run).model.parameters())
    assert summary["trained_parameters"] == trained

    contents = torch.load(last(run), weights_only=True)
    assert (contents["epoch"], contents["global_step"]) == (1, 10)


def test_no_validation(fit: Fit, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    fit("run", "--data.validation_split=0")
    assert "no validation rows chose an epoch" in caplog.text
    assert not [each for each in recwarn if "could not find the monitored key" in str(each.message)]


def test_a_pipe_gets_a_line_for_each_epoch(train_csv: Path) -> None:
    """In a new process: Lightning sets the levels of its log when it is imported.

    The process has imported neither the model nor that of the configuration, and the parser checks both.
    """
    options = [option for option in SMALL if "progress_bar" not in option and "summary" not in option]
    options += [f"--data.train_file={train_csv}", "--run_dir=run", "--trainer.max_epochs=3"]
    done = python("-m", "zoo", "fit", "--config=expanet/dblp_short", "--data.characters=true", *options)
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.partition(":")[0] for line in epochs] == ["epoch 1", "epoch 2", "epoch 3"]
    assert {row["epoch"] for row in read_csv("run/metrics.csv") if row["epoch"]} == {"1", "2", "3"}
    losses = [row["train/loss_epoch"] for row in read_csv("run/metrics.csv") if row["train/loss_epoch"]]
    accuracies = [row["val/accuracy"] for row in read_csv("run/metrics.csv") if row["val/accuracy"]]
    for line, loss, accuracy in zip(epochs, losses, accuracies, strict=True):
        assert f"train/loss_epoch {float(loss):.4g}, " in line
        assert line.endswith(f"val/accuracy {float(accuracy):.4g}")
    assert len(lines) < 10
    for word in ("GPU", "FLOPs", "Seed set", "%|", "Epoch 0", "max_epochs"):
        assert not any(word in line for line in lines), lines
    assert yaml.safe_load(Path("run/config.yaml").read_text())["model"]["class_path"] == "zoo.KNNBiLSTM"


def test_the_written_configuration_repeats_the_run(fit: Fit, zoo_command: Zoo) -> None:
    run = fit("run", "--model.dropout=0.2")
    repeat = ["fit", "--config", run / "config.yaml"]
    done(zoo_command(*repeat, "--run_dir", "again"))
    assert has_same_weights(last(run), last(Path("again")))
    done(zoo_command(*repeat, "--run_dir=other", "--model.features=M2", "--data.num_memories=1"))
    config = yaml.safe_load(Path("other/config.yaml").read_text())
    assert config["model"]["init_args"]["features"] == "M2"
    assert zoo.load("other").predict("apple")[0].memories[1:] == []


def test_a_second_run_moves_the_first_one_aside(copied_run: Path, fit: Fit) -> None:
    first = set(files_of(copied_run).values())
    fit("run", "--seed_everything=9")
    assert set(files_of(Path("run.1")).values()) == first
    assert not has_same_weights(last(Path("run")), last(Path("run.1")))
    fit("run")
    assert best(Path("run.2")).exists()


@pytest.mark.parametrize(
    "validated", ["val_check_interval=1.0", "val_check_interval=0.5", "check_val_every_n_epoch=2"]
)
def test_a_resumed_run_equals_an_uninterrupted_one(validated: str, fit: Fit, zoo_command: Zoo) -> None:
    options = ("--model.dropout=0.4", "--trainer.precision=32-true", f"--trainer.{validated}")
    whole = fit("whole", "--trainer.max_epochs=3", *options)
    half = fit("half", "--trainer.max_epochs=2", *options)
    before = read_csv(half / "metrics.csv")
    assert not has_same_weights(last(whole), last(half))
    resumed = resume(zoo_command, half, max_epochs=3)

    assert has_same_weights(last(whole), last(resumed))
    states = [
        torch.load(last(run), weights_only=True)["optimizer_states"][0]["state"] for run in (whole, resumed)
    ]
    assert all(torch.equal(states[0][key]["exp_avg_sq"], states[1][key]["exp_avg_sq"]) for key in states[0])
    # The metrics continue in the same file, with the numbers of the uninterrupted run.
    after = read_csv(resumed / "metrics.csv")
    assert after[: len(before)] == before
    for name in ("train/loss", "val/loss"):
        values, expected = (
            [row[name] for row in rows if row[name]] for rows in (after, read_csv(whole / "metrics.csv"))
        )
        assert values == expected
    # The configuration still starts the run from its beginning.
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in (resumed, whole)]
    assert {**configs[0], "run_dir": None} == {**configs[1], "run_dir": None}


def command_in(message: str) -> list[str]:
    """The arguments of the command at the end of a message."""
    return message.rpartition(" with zoo ")[2].replace("FOLDER", "new").split()


FINISHED = {"KNNBiLSTM": SMALL, "TfidfSVM": ["--model=TfidfSVM"], "MemoryEnsemble": SMALL_ENSEMBLE}


@pytest.mark.parametrize("model", FINISHED)
def test_a_finished_run_is_not_resumed_unless_its_model_is_missing(
    model: str, zoo_command: Zoo, train_csv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = [*FINISHED[model], "--trainer.max_epochs=1", f"--data.train_file={train_csv}", "--run_dir=run"]
    done(zoo_command("fit", *options))
    run, resumed = Path("run"), ("fit", "--ckpt_path", last(Path("run")))
    before = files_of(run)
    message = refusal(zoo_command(*resumed), "the run is finished")
    assert files_of(run) == before
    # A run that was killed while it wrote the model writes only that.
    expected = zoo.load(run).predict(["apple", "old zinc"])
    shutil.rmtree(run / "model")
    with pytest.raises(InputError, match=f"zoo fit --ckpt_path {last(run)}"):
        zoo.load(run)
    done(zoo_command(*resumed))
    assert zoo.load(run).predict(["apple", "old zinc"]) == expected
    assert {**before, **files_of(run)}.items() - before.items() <= files_of(run / "model").items()
    # The only epoch is the last one.
    best(run).unlink(missing_ok=True)
    shutil.rmtree(run / "model")
    done(zoo_command(*resumed))
    assert zoo.load(run).predict(["apple", "old zinc"]) == expected
    assert ("is missing): the model is of the last one" in caplog.text) == (model == "KNNBiLSTM")
    done(zoo_command(*command_in(message)))


def test_a_run_whose_memory_was_edited_is_not_resumed(copied_run: Path, zoo_command: Zoo) -> None:
    done(zoo_command("memory", "remove", copied_run, "--ids=[3]"))
    before = files_of(copied_run)
    result = zoo_command("fit", "--ckpt_path", last(copied_run), "--trainer.max_epochs=2")
    message = refusal(result, "was edited since the training", f"--model.init_from {copied_run}")
    assert files_of(copied_run) == before
    done(zoo_command(*command_in(message)))
    assert files_of(copied_run) == before


def test_m1_retrieves_nothing(fit: Fit, zoo_command: Zoo, test_csv: Path, tmp_path: Path) -> None:
    run = fit("run", "--model.features=M1")
    assert not list((tmp_path / "cache").glob("neighbors-*"))
    assert not list((tmp_path / "cache").glob("memory-*"))
    result = zoo_command("predict", "--ckpt_path", run, "--input", test_csv)
    assert all(json.loads(line)["memories"] == [] for line in result.out.splitlines())


def test_bfloat16_trains(fit: Fit) -> None:
    run = fit("run", "--config=trainer/bf16", "--trainer.max_epochs=4")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["precision"] == "bf16-mixed"
    assert summary["best_score"] > 0.6
    weights = weights_of(best(run)).values()
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in weights)


def test_no_retriever_after_prepare(zoo_command: Zoo, fit: Fit, train_csv: Path, tmp_path: Path) -> None:
    done(zoo_command("prepare", *SMALL, "--data.train_file", train_csv))
    neighbors = list((tmp_path / "cache").glob("neighbors-*/rows.npy"))
    times = {path: path.stat().st_mtime_ns for path in neighbors}
    assert len(times) == 2  # training and validation
    for folder in (tmp_path / "cache").glob("memory-*/version-*/index-*"):
        shutil.rmtree(folder)
    fit("run")
    neighbors = list((tmp_path / "cache").glob("neighbors-*/rows.npy"))
    assert {path: path.stat().st_mtime_ns for path in neighbors} == times


@pytest.mark.parametrize(
    "option", ["--data.train_file=gone.csv", "--data.memory=gone", "--data.characters=false"]
)
def test_a_refused_run_leaves_the_earlier_one_in_place(
    option: str, copied_run: Path, zoo_command: Zoo, train_csv: Path
) -> None:
    before = files_of(copied_run)
    refusal(zoo_command(*fit_options(train_csv, option)))
    assert files_of(copied_run) == before
    assert [path.name for path in Path.cwd().glob("run*")] == ["run"]
    zoo_command(*fit_options(train_csv, option, "--run_dir=new"))
    assert not Path("new").exists()
    Path("empty").mkdir()
    zoo_command(*fit_options(train_csv, option, "--run_dir=empty"))
    assert list(Path("empty").iterdir()) == []


@pytest.mark.parametrize("command", ["fit", "prepare"])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--data.num_memories=0", ["data.num_memories is 0"]),
        ("--model=DSSM", ["DSSM is for matching", "ClassificationDataModule"]),
    ],
)
def test_a_model_refuses_its_data_before_anything_is_read(
    command: str, option: str, words: list[str], zoo_command: Zoo, train_csv: Path, tmp_path: Path
) -> None:
    data = ["--data=ClassificationDataModule", f"--data.train_file={train_csv}"]
    options = [*data, option] if option == "--model=DSSM" else [*SMALL, *data, option]
    refusal(zoo_command(command, *options), *words)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "option",
    ["--model.optimizer.lr=0.1", "--data.train_file=mine.csv", "--config=trainer/bf16", "--run_dir=other"],
)
def test_a_run_is_resumed_with_its_own_options(option: str, trained_run: Path, zoo_command: Zoo) -> None:
    before = files_of(trained_run)
    result = zoo_command("fit", "--ckpt_path", last(trained_run), "--trainer.max_epochs=2", option)
    message = refusal(result, f"zoo fit --model.init_from {last(trained_run)}")
    assert message.startswith(f"{option.partition('=')[0]}: a resumed run has its own options")
    assert files_of(trained_run) == before


def test_a_run_is_resumed_from_its_last_checkpoint(trained_run: Path, zoo_command: Zoo) -> None:
    """Not from a copy elsewhere, nor by the run folder, which stands for its best checkpoint, rarely the last one."""
    shutil.copy(last(trained_run), "last.ckpt")
    result = zoo_command("fit", "--ckpt_path=last.ckpt")
    refusal(result, "config.yaml: no such file", "--model.init_from last.ckpt")
    result = zoo_command("fit", "--ckpt_path", trained_run, "--trainer.max_epochs=2")
    refusal(result, "checkpoints/last.ckpt", "--model.init_from")
    assert not Path("run").exists()
