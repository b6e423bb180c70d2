"""`zoo test`, `validate` and `predict` need nothing but a trained model."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch

import zoo
from tests.zoo.conftest import (
    LABELS,
    Fit,
    Zoo,
    done,
    fit_options,
    last,
    read_csv,
    read_json,
    read_jsonl,
    refusal,
    sentences,
    write_table,
    written_scores,
)


def test_scores_of_a_table_and_of_its_classes(trained_run: Path, zoo_command: Zoo, test_csv: Path) -> None:
    command = ["test", "--ckpt_path", trained_run, "--data.test_file", test_csv, "--output", "out/m.json"]
    header, *lines = done(zoo_command(*command)).out.partition("precision")[2].splitlines()
    assert header.split() == ["recall", "f1", "support"]
    support = {"fruit": 11, "metal": 10, "weather": 10}
    assert {line.split()[0]: int(line.split()[-1]) for line in lines[:3]} == support
    scores = read_json("out/m.json")
    assert scores.pop("calibration")["rows"] == 31
    assert all(type(value) is float for value in scores.values())
    assert scores["rows"] == 31
    assert {label: scores[f"support/{label}"] for label in LABELS} == support
    assert {"accuracy", "macro_f1", "micro_f1", "loss", *(f"f1/{label}" for label in LABELS)} <= scores.keys()
    pairs = sentences(31, seed=2)
    predicted = zoo.load(trained_run).predict([text for text, _ in pairs])
    right = sum(p.label == label for p, (_, label) in zip(predicted, pairs, strict=True))
    assert scores["accuracy"] == right / 31


def test_wrong_rows_are_listed_with_memories(trained_run: Path, zoo_command: Zoo, tmp_path: Path) -> None:
    # The seventh row has a label that its text belies.
    pairs = [*sentences(6, seed=7), ("old iron and copper", "fruit"), ("=1+1 zinc", "stone")]
    table = write_table(tmp_path / "test.csv", pairs)
    done(zoo_command("test", "--ckpt_path", trained_run, "--data.test_file", table, "--output", "s.json"))
    wrong = read_csv("s_errors.csv")
    predicted = zoo.load(trained_run).predict([text for text, _ in pairs])
    expected = [
        (str(number), label, prediction.label)
        for number, (prediction, (_, label)) in enumerate(zip(predicted, pairs, strict=True))
        if prediction.label != label
    ]
    assert [(row["id"], row["label"], row["predicted"]) for row in wrong] == expected
    assert {"6", "7"} <= {row["id"] for row in wrong}
    *_, row, strange = wrong
    assert strange["text"] == "'=1+1 zinc"
    assert float(row["probability"]) == pytest.approx(predicted[6].probability, abs=1e-6)
    assert len(row["memories"].splitlines()) == 3
    for memory, line in zip(predicted[6].memories, row["memories"].splitlines(), strict=True):
        assert line.startswith(f"[{memory.label}] {memory.text} (id {memory.id}, score")


def test_validate_repeats_the_score_of_the_run(trained_run: Path, zoo_command: Zoo) -> None:
    options = ("--ckpt_path", trained_run, "--config", trained_run / "config.yaml")
    best_score = read_json(trained_run / "summary.json")["best_score"]
    assert written_scores(zoo_command, "validate", *options)["accuracy"] == best_score


def test_validate_and_test_score_rows_alike(trained_run: Path, zoo_command: Zoo, test_csv: Path) -> None:
    refusal(zoo_command("validate", "--ckpt_path", trained_run), "--data.validation_file", "config.yaml")
    scores = [
        written_scores(zoo_command, command, "--ckpt_path", trained_run, f"--data.{option}", test_csv)
        for command, option in (("validate", "validation_file"), ("test", "test_file"))
    ]
    assert "calibration" in scores[1].keys() - scores[0].keys()
    assert scores[0] == {name: score for name, score in scores[1].items() if name != "calibration"}
    assert scores[0]["rows"] == 31


def test_data_of_another_kind_is_refused(trained_run: Path, zoo_command: Zoo, test_csv: Path) -> None:
    options = ["--ckpt_path", trained_run, "--data.test_file", test_csv, "--data=MatchingDataModule"]
    refusal(zoo_command("test", *options), "--data MatchingDataModule", "KNNBiLSTM", "omit the option")


@pytest.fixture(scope="session")
def longer(trained: Fit, kept_table: Fit) -> Path:
    """A run of five epochs."""
    return trained(*map(str, fit_options(kept_table(*sentences(90, seed=1)), "--trainer.max_epochs=5")))


@pytest.mark.parametrize("source", ["csv", "jsonl", "txt", "stdin"])
def test_predict(
    source: str, longer: Path, zoo_command: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = dict(sentences(90, seed=1))
    texts = ["some ripe apple", "the rain and the wind", "old iron", ""]
    options: list[object] = ["--input", tmp_path / f"in.{source}", "--output", tmp_path / "new" / "out.jsonl"]
    if source == "csv":
        write_table(tmp_path / "in.csv", [(str(i), text) for i, text in enumerate(texts)], ("id", "words"))
        options += ["--text_column", "words"]
    elif source == "jsonl":
        (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif source == "txt":
        (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    else:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts) + "\n"))
        options = ["--input", "-"]
    result = done(zoo_command("predict", "--ckpt_path", longer, *options))
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
            assert set(memory) == {"id", "text", "label", "retrieval_score", "weight"}
            assert training[memory["text"]] == memory["label"]
            assert -1.001 <= memory["weight"] <= 1.001
        scores = [memory["retrieval_score"] for memory in record["memories"]]
        assert scores == sorted(scores, reverse=True)
    assert [len(record["memories"]) for record in records] == [3, 3, 3, 0]
    assert all(set(memory["text"].split()) & {"old", "iron"} for memory in records[2]["memories"])


def test_predict_reads_training_columns(fit: Fit, zoo_command: Zoo, train_csv: Path, tmp_path: Path) -> None:
    rows = read_csv(train_csv)
    columns = ("head", "body", "label")
    two_columns = [(*row["text"].split(" ", 1), row["label"]) for row in rows if " " in row["text"]]
    table = write_table(tmp_path / "two_columns.csv", two_columns, columns=columns)
    run = fit("run", "--data.train_file", table, "--data.text_column=[head,body]")
    write_table(tmp_path / "new.csv", [("old", "iron", "")], columns=columns)
    result = done(zoo_command("predict", "--ckpt_path", run, "--input", tmp_path / "new.csv"))
    assert json.loads(result.out)["text"] == "old iron"


def test_ids_and_quotes_of_a_table(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    """An export of an issue tracker: a TSV with quotes, whose texts have line ends."""
    pairs = sentences(90, seed=1)
    rows = [f'T-{i}\t"{text}\nmore"\t{label}' for i, (text, label) in enumerate(pairs)]
    table = tmp_path / "tickets.tsv"
    table.write_text("\n".join(["key\ttext\tlabel", *rows]) + "\n")
    run = fit("run", "--data.train_file", table, "--data.quotes=true")
    options = ["--ckpt_path", run, "--input", table]
    done(zoo_command("predict", *options, "--id_column=key", "--output=out.jsonl"))
    records = read_jsonl("out.jsonl")
    assert [(record["id"], record["text"]) for record in records] == [
        (f"T-{i}", f"{text}\nmore") for i, (text, _) in enumerate(pairs)
    ]
    refusal(zoo_command("predict", *options, "--output=out.xlsx"), "JSON lines", "out.jsonl")
    (tmp_path / "lines.txt").write_text("apple\n")
    options = [*options[:2], "--input", tmp_path / "lines.txt", "--id_column=key"]
    refusal(zoo_command("predict", *options), "--id_column", "lines.txt")
    result = zoo_command("index", "--file", table, "--quotes=true", "--memory=memory")
    assert "90 memories, 3 labels" in result.out


def test_a_test_without_its_table(trained_run: Path, zoo_command: Zoo) -> None:
    model = ["--ckpt_path", trained_run]
    refusal(zoo_command("test", *model, "--data.test_file", "gone.csv"), "gone.csv")
    refusal(zoo_command("test", *model), "data.test_file")
    refusal(zoo_command("validate", *model, "--data.validation_split=0"), "data.validation_file")


@pytest.mark.parametrize("command", ["test", "validate", "predict"])
def test_what_is_no_model(command: str, trained_run: Path, zoo_command: Zoo, test_csv: Path) -> None:
    options: list[object] = {
        "test": ["--data.test_file", test_csv],
        "validate": ["--data.validation_file", test_csv],
        "predict": ["--input", test_csv],
    }[command]

    def refused(path: object, *words: object) -> None:
        refusal(zoo_command(command, "--ckpt_path", path, *options), path, *words)

    refused("gone", "no such run folder or model folder")
    refused(last(trained_run), "only resumes a training", f"name the folder of the run, {trained_run}")
    Path("empty").mkdir()
    refused("empty", "a folder without model/model.json or model.json; give a run folder")
    unfinished = Path("unfinished/checkpoints")
    unfinished.mkdir(parents=True)
    shutil.copy(last(trained_run), unfinished)
    refused("unfinished", "zoo fit --ckpt_path unfinished/checkpoints/last.ckpt")


def test_bad_checkpoints(trained_run: Path, zoo_command: Zoo) -> None:
    good = last(trained_run).read_bytes()
    shutil.copytree(trained_run, "run")
    path = Path("run/checkpoints/last.ckpt")

    def refused(*words: str) -> None:
        refusal(zoo_command("fit", "--ckpt_path", path, "--trainer.max_epochs=2"), path, *words)

    for size in (0, 100, len(good) // 2, len(good) - 10):
        path.write_bytes(good[:size])
        refused("truncated")
    torch.save({"state_dict": {}}, path)
    refused("not a Memory Zoo checkpoint")
    torch.save(torch.zeros(3), path)
    refused("not a Memory Zoo checkpoint")
