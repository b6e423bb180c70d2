"""Output of `zoo predict`: tables, fewer memories and labels, checks before the model is read, and the last line."""

import json
from pathlib import Path

import pytest

import zoo
from datamodules.core.outputs import spreadsheet_cells
from tests.zoo.conftest import LABELS, Zoo, done, read_csv, read_jsonl, refusal, write_table
from zoo.model_folder.folder import ModelFolder

TEXTS = ["some ripe apple", "=HYPERLINK(1)", "old iron", ""]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [(f"T-{number}", text) for number, text in enumerate(TEXTS)]
    return write_table(tmp_path / "in.csv", rows, ("key", "text"))


def test_a_table_for_a_spreadsheet(trained_run: Path, zoo_command: Zoo, table: Path) -> None:
    options = ["predict", "--ckpt_path", trained_run, "--input", table]
    done(zoo_command(*options, "--output=out.csv", "--id_column=key"))
    predicted = zoo.load(trained_run).predict(TEXTS)
    rows = read_csv("out.csv")
    assert [[*row] for row in rows] == [["id", "text", "label", "probability"]] * 4
    assert [row["label"] for row in rows] == [prediction.label for prediction in predicted]
    assert [float(row["probability"]) for row in rows] == pytest.approx([p.probability for p in predicted])
    # A spreadsheet executes no text of a stranger.
    assert [row["text"] for row in rows] == [TEXTS[0], "'=HYPERLINK(1)", *TEXTS[2:]]

    done(zoo_command(*options, "--output=out.TSV", "--memories=1", "--top=2"))
    rows = read_csv("out.TSV", "\t")
    assert [*rows[0]] == ["text", "label", "probability", "label_2", "probability_2", "memories"]
    for row, prediction in zip(rows, predicted, strict=True):
        second = sorted(prediction.probabilities, key=lambda label: -prediction.probabilities[label])[1]
        assert (row["label"], row["label_2"]) == (prediction.label, second)
        if prediction.memories:
            heaviest = max(prediction.memories, key=lambda memory: memory.weight)
            assert row["memories"].startswith(f"[{heaviest.label}] {heaviest.text} (id {heaviest.id},")
            assert "\n" not in row["memories"]


def test_numbers_are_no_formulas() -> None:
    cells = [-0.5, "-1", "+1e3", "=1", "@a", "-a", "a=1", None, ""]
    assert spreadsheet_cells(cells) == [-0.5, "-1", "+1e3", "'=1", "'@a", "'-a", "a=1", None, ""]


def test_fewer_memories_and_labels(
    trained_run: Path, zoo_command: Zoo, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["predict", "--ckpt_path", trained_run, "--input", table, "--output=out.jsonl"]
    model = zoo.load(trained_run)
    whole = model.predict(TEXTS)
    assert model.predict(TEXTS, memories=3, top=3)[0].memories == sorted(
        whole[0].memories, key=lambda memory: -memory.weight
    )
    done(zoo_command(*options, "--memories=2", "--top=1"))
    records = read_jsonl("out.jsonl")
    for record, prediction in zip(records, whole, strict=True):
        assert len(record["memories"]) == min(2, len(prediction.memories))
        assert record["probabilities"] == {prediction.label: pytest.approx(prediction.probability)}
    # The texts of memories that are not shown are not looked up.
    monkeypatch.setattr("zoo.tasks.classification.predictor.retrieved_memories", None)
    done(zoo_command(*options, "--memories=0"))
    records = read_jsonl("out.jsonl")
    assert [record["label"] for record in records] == [prediction.label for prediction in whole]
    assert "memories" not in records[0]
    assert model.predict(TEXTS, memories=0)[0] == whole[0]._replace(memories=[])


def test_a_carriage_return_ends_a_line_as_well(trained_run: Path, zoo_command: Zoo) -> None:
    Path("texts.txt").write_bytes(b"old iron\rplum jam\r\nrain\nsnow")
    options = ["predict", "--ckpt_path", trained_run, "--input=texts.txt", "--memories=0"]
    done(zoo_command(*options, "--output=out.jsonl"))
    records = read_jsonl("out.jsonl")
    assert [record["text"] for record in records] == ["old iron", "plum jam", "rain", "snow"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--top=4", ["--top 4", "must be 1 to 3", "labels"]),
        ("--top=0", ["--top 0"]),
        ("--memories=-1", ["--memories -1", "0 or more"]),
        ("--memries=1", ["--memries", "did you mean --memories?"]),
        ("--candidates=3", ["--candidates", "KNNBiLSTM", "--top"]),
    ],
)
def test_options_that_are_refused(
    option: str, words: list[str], trained_run: Path, zoo_command: Zoo, table: Path
) -> None:
    Path("out.csv").write_text("kept")
    command = ["predict", "--ckpt_path", trained_run, "--input", table, "--output=out.csv", option]
    refusal(zoo_command(*command), *words)
    assert Path("out.csv").read_text() == "kept"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--input=in.cvs"], ["in.cvs", "did you mean in.csv?"]),
        (["--input=in.csv", "--output=out.xlsx"], ["--output out.xlsx", "out.csv"]),
        (["--input=in.csv", "--output=out.csv.gz"], ["--output out.csv.gz", "JSON lines, CSV or TSV"]),
        (["--input=in.csv", "--output=in.csv"], ["--output in.csv", "another file"]),
    ],
)
def test_files_are_checked_before_the_model_is_read(
    options: list[str], words: list[str], zoo_command: Zoo, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelFolder, "open", None)
    refusal(zoo_command("predict", "--ckpt_path=run", *options), *words)


def test_the_last_line_has_the_number_of_predictions(
    trained_run: Path, zoo_command: Zoo, table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = zoo_command("predict", "--ckpt_path", trained_run, "--input", table, "--output=out.jsonl")
    assert "%|" not in result.err  # the bar is for terminals
    assert caplog.messages[-2] == "1 texts are empty: their predictions are those without any word"
    assert caplog.messages[-1].startswith("4 predictions in ")
    assert caplog.messages[-1].endswith(" s: out.jsonl")
    assert len(LABELS) == len(json.loads(Path("out.jsonl").read_text().splitlines()[0])["probabilities"])


def test_a_text_is_answered_in_short_on_a_terminal(
    trained_run: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["predict", "--ckpt_path", trained_run, "--text", "some ripe apple"]
    record = json.loads(zoo_command(*command).out)
    assert record["text"] == "some ripe apple"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert json.loads(zoo_command(*command, "--output=-").out) == record
    first, *lines = zoo_command(*command).out.splitlines()
    assert first == f"{record['label']}  probability {record['probability']:.3f}  some ripe apple"
    heaviest = sorted(record["memories"], key=lambda memory: -memory["weight"])[:3]
    assert len(lines) == len(heaviest) > 0
    for line, memory in zip(lines, heaviest, strict=True):
        assert line.startswith(f"    {memory['id']}  {memory['label']}  retrieval_score ")
        assert line.endswith(f"  weight {memory['weight']:.3f}  {memory['text']}")
    refusal(zoo_command(*command, "--input=-"), "--input", "--text")
    refusal(zoo_command(*command[:3], "--text="), "--text: is empty")
    refusal(zoo_command(*command[:3]), "--input", "--text")
