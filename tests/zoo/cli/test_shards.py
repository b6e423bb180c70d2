"""`zoo encode`, `predict` and `prepare` in shards: the bytes of one process, whatever happens on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamodules.core.storage import cache_folder
from datamodules.retrieval.dense.embeddings import Embeddings
from datamodules.retrieval.memories import neighbors
from tests.dialogues import made_up, write_published
from tests.zoo.conftest import (
    SMALL,
    Fit,
    Result,
    Zoo,
    pair_rows,
    refusal,
    sentences,
    write_pairs,
    write_table,
)
from tests.zoo.retrieval_runs import trained
from tests.zoo.tasks.test_matching_runs import SMALL as SMALL_MATCHING
from zoo.search import encode
from zoo.tasks.classification.predictor import ClassificationPredictor

ROOT = Path(__file__).parents[3]
ORDERS = [(1, 2, 3), (3, 1, 2), (2, 3, 1)]


def done(result: Result) -> Result:
    assert result.code == 0, (result.out, result.err)
    return result


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, without locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def same_as_one(zoo_command: Zoo, command: Sequence[object], output: str, order: Sequence[int]) -> bytes:
    """The predictions, which three shards write like one process."""
    done(zoo_command(*command, f"--output=one/{output}"))
    for number in order:
        assert not Path(output).exists()
        done(zoo_command(*command, f"--output={output}", f"--shard={number}/3"))
    assert Path(output).read_bytes() == Path("one", output).read_bytes()
    assert not Path(f"{output}.parts").exists()
    return Path(output).read_bytes()


# --- predict ---


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """3,100 texts with ids: 4 blocks."""
    rows = [(f"T-{number}", text) for number, (text, _) in enumerate(sentences(3100, seed=4))]
    return write_table(tmp_path / "texts.csv", rows, ("key", "text"))


@pytest.mark.parametrize(
    ("output", "order"), [("out.jsonl", ORDERS[0]), ("out.csv", ORDERS[1]), ("out.tsv", ORDERS[2])]
)
def test_predictions_of_a_classifier(
    output: str, order: tuple[int, ...], trained_run: Path, zoo_command: Zoo, texts: Path
) -> None:
    command = ["predict", "--ckpt_path", trained_run, "--input", texts, "--id_column=key", "--memories=2"]
    written = same_as_one(zoo_command, command, output, order)
    names = [f"T-{number}" for number in range(3100)]
    lines = written.decode().splitlines()
    if output == "out.jsonl":
        assert [json.loads(line)["id"] for line in lines] == names
    else:
        assert [line[:2] for line in lines].count("id") == 1


def test_lines_of_text(trained_run: Path, zoo_command: Zoo, texts: Path) -> None:
    lines = "".join(f"{text}\n" for text, _ in sentences(2100, seed=3))
    Path("lines.txt").write_text(lines)
    command = ["predict", "--ckpt_path", trained_run, "--input=lines.txt"]
    assert same_as_one(zoo_command, command, "out.jsonl", ORDERS[1]).count(b"\n") == 2100


def test_predictions_of_pairs_and_their_ranking(zoo_command: Zoo, tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.tsv", pair_rows(40, seed=1))
    options = [f"--data.train_file={train}", "--data.validation_split=0.3", "--run_dir=run"]
    done(zoo_command("fit", *SMALL_MATCHING, *options, "--trainer.max_epochs=1"))
    pairs = write_pairs(tmp_path / "pairs.tsv", pair_rows(200, seed=2))
    command = ["predict", "--ckpt_path=run", f"--input={pairs}", "--batch_size=32"]
    assert same_as_one(zoo_command, command, "out.csv", ORDERS[2]).count(b"\n") > 600
    rows = [
        (f"q{number}", question, f"d{row}", text)
        for row, (question, text, _) in enumerate(pair_rows(200, seed=2))
        for number in [int(question.split()[-1])]
    ]
    write_table(Path("ids.csv"), rows, ("qid", "first", "id", "second"))
    named = ["--first_column=first", "--second_column=second", "--question_column=qid", "--id_column=id"]
    command = ["predict", "--ckpt_path=run", "--input=ids.csv", *named]
    run = same_as_one(zoo_command, command, "out.run", ORDERS[0]).decode().splitlines()
    assert [line.split()[0] for line in run if line.split()[3] == "1"] == [f"q{n}" for n in range(200)]
    # The candidates of this run, ranked again.
    queries = [(f"q{number}", f"where is plum {number}") for number in range(200)]
    write_table(Path("queries.csv"), queries, ("id", "text"))
    write_table(Path("documents.csv"), [(row[2], row[3]) for row in rows], ("id", "text"))
    again = ["--input=queries.csv", "--rerank=out.run", "--documents=documents.csv"]
    same_as_one(zoo_command, ["predict", "--ckpt_path=run", *again], "again.run", ORDERS[1])


def test_ranked_documents(zoo_command: Zoo) -> None:
    checkpoint = trained(zoo_command, Path("clicks"), "run")
    queries = [(f"q{number}", text) for number, (text, _) in enumerate(sentences(2100, seed=7))]
    write_table(Path("queries.csv"), queries, ("id", "text"))
    command = ["predict", "--ckpt_path", checkpoint, "--input=queries.csv", "--text_column=text", "--k=3"]
    assert same_as_one(zoo_command, command, "out.run", ORDERS[1]).count(b"\n") == 6300
    again = [*command, "--rerank=out.run", "--output=again.run", "--shard=1/3"]
    refusal(zoo_command(*again), "--rerank", "omit --shard")


def test_answers_about_dialogues(zoo_command: Zoo) -> None:
    write_published(Path("train.txt"), made_up(20, seed=1))
    write_published(Path("dialogues.txt"), made_up(21, seed=2))
    options = ["--model.word_size=6", "--data.layout=hmn4qa", "--data.validation_split=0.2"]
    fit = ["fit", "--model=HMN", "--data=DialogueDataModule", "--data.train_file=train.txt", *options]
    done(zoo_command(*fit, "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--run_dir=run"))
    command = ["predict", "--ckpt_path=run", "--input=dialogues.txt", "--batch_size=4"]
    assert same_as_one(zoo_command, command, "out.jsonl", ORDERS[0]).count(b"\n") > 40
    # More shards than batches.
    for number in range(1, 9):
        done(zoo_command(*command, "--output=many.jsonl", f"--shard={number}/8"))
    assert Path("many.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


def test_shards_of_different_options_and_tables_are_not_mixed(
    trained_run: Path, fit: Fit, zoo_command: Zoo, texts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shard(number: int, model: Path, *options: str) -> None:
        output = ["--output=out.jsonl", f"--shard={number}/2"]
        done(zoo_command("predict", "--ckpt_path", model, "--input", texts, *options, *output))

    other = fit("other", "--seed_everything=3")
    shard(1, other)
    assert caplog.messages[-1] == "out.jsonl: shard 1/2 is done; missing: 2; the last of them merges all"
    shard(2, trained_run)
    assert caplog.messages[-1] == "out.jsonl: shard 2/2 is done; missing: 1; the last of them merges all"
    shard(1, trained_run, "--memories=0")
    shard(1, trained_run, "--batch_size=7")
    assert not Path("out.jsonl").exists()
    shard(1, trained_run)
    assert caplog.messages[-1] == "out.jsonl: has the predictions of all shards"
    done(zoo_command("predict", "--ckpt_path", trained_run, "--input", texts, "--output=one.jsonl"))
    assert Path("out.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    # Another table under the same name.
    write_table(texts, [("a", "rain")], ("key", "text"))
    shard(1, trained_run)
    assert Path("out.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    shard(2, trained_run)
    assert [json.loads(line)["text"] for line in Path("out.jsonl").read_text().splitlines()] == ["rain"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--input=texts.csv", "--output=out.csv", "--shard=4/3"], ["--shard 4/3", "such as 3/16, or auto"]),
        (["--input=-", "--output=out.csv", "--shard=1/3"], ["--shard", "standard input", "give a file"]),
        (["--input=texts.csv", "--shard=1/3"], ["--shard", "name it with --output"]),
        (["--input=texts.csv", "--output=out.csv", "--shard=auto"], ["--shard auto", "WORLD_SIZE", "SLURM"]),
        (["--input=texts.csv", "--output=out.csv", "--shard=1/3", "--report=true"], ["--report", "--shard"]),
    ],
)
def test_refused_options(
    options: list[str],
    words: list[str],
    trained_run: Path,
    zoo_command: Zoo,
    texts: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "SLURM_ARRAY_TASK_ID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    refusal(zoo_command("predict", "--ckpt_path", trained_run, *options), *words)
    assert not Path("out.csv").exists()


def test_a_kind_of_ones_own_without_shards(
    trained_run: Path, zoo_command: Zoo, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassificationPredictor, "records", lambda self, source, batch_size=256: iter(()))
    command = ["predict", "--ckpt_path", trained_run, "--input", texts, "--output=out.jsonl"]
    refusal(zoo_command(*command, "--shard=1/2"), "--shard", "KNNBiLSTM are not cut", "omit the option")
    done(zoo_command(*command))


def test_a_memory_that_grows_makes_other_predictions(fit: Fit, zoo_command: Zoo) -> None:
    run = fit("run")
    write_table(Path("in.csv"), sentences(30, seed=5))
    write_table(Path("more.csv"), sentences(20, seed=6))
    command = ["predict", "--ckpt_path", run, "--input=in.csv"]
    done(zoo_command(*command, "--output=out.jsonl", "--shard=1/2"))
    done(zoo_command("memory", "add", run, "more.csv"))
    done(zoo_command(*command, "--output=out.jsonl", "--shard=2/2"))
    assert not Path("out.jsonl").exists()
    done(zoo_command(*command, "--output=out.jsonl", "--shard=1/2"))
    done(zoo_command(*command, "--output=one.jsonl"))
    assert Path("out.jsonl").read_bytes() == Path("one.jsonl").read_bytes()


def test_an_error_of_any_shard_is_printed(zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    command = ["predict", "--ckpt_path=gone", "--input=gone.csv", "--output=out.csv"]
    refusal(zoo_command(*command, "--shard=2/3"), "gone.csv: no such file")
    assert zoo_command(*command).err == ""


# --- encode ---


@pytest.fixture
def encoder(fit: Fit) -> Path:
    return fit("encoder", "--model.features=M1", "--data.num_memories=0")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "BLOCK", 16)


def encode_command(encoder: Path, *options: object) -> list[object]:
    return ["encode", "--ckpt_path", encoder, "--input=table.csv", "--batch_size=5", *options]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """110 texts with labels and ids; the last 20 occur in the first block, too."""
    rows = sentences(90, seed=8)
    rows += rows[:20]
    return write_table(
        tmp_path / "table.csv",
        [(f"T-{number}", *row) for number, row in enumerate(rows)],
        ("key", "text", "label"),
    )


@pytest.mark.usefixtures("table", "small_blocks")
@pytest.mark.parametrize("order", ORDERS)
def test_embeddings(order: tuple[int, ...], encoder: Path, zoo_command: Zoo) -> None:
    command = encode_command(encoder, "--id_column=key", "--label_column=label")
    done(zoo_command(*command, "--output=one"))
    shutil.rmtree(cache_folder(None))  # else the vectors would be looked up
    for number in order:
        assert not Path("out").exists()
        done(zoo_command(*command, "--output=out", f"--shard={number}/3"))
    assert contents(Path("out")) == contents(Path("one"))
    assert not Path("out.parts").exists()
    assert not [*cache_folder(None).glob("vectors-*")]
    made = Embeddings.open(Path("out"))
    assert made.rows.ids[-1] == "T-109"
    assert made.rows.labels is not None
    # A shard that is started again does nothing.
    before = {path: path.stat().st_ino for path in Path("out").iterdir()}
    done(zoo_command(*command, "--output=out", "--shard=2/3"))
    assert {path: path.stat().st_ino for path in Path("out").iterdir()} == before


@pytest.mark.usefixtures("small_blocks")
def test_a_parquet_table_of_uneven_row_groups(
    encoder: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datamodules.corpora.readers.BLOCK", 40)  # of two groups, then of one
    texts = [text for text, _ in sentences(75, seed=9)]
    with pq.ParquetWriter("table.parquet", pa.schema([("text", pa.string())])) as writer:
        for start, end in ((0, 7), (7, 50), (50, 75)):
            writer.write_table(pa.table({"text": texts[start:end]}))
    command = ["encode", "--ckpt_path", encoder, "--input=table.parquet"]
    for number in (2, 1):
        done(zoo_command(*command, "--output=out", f"--shard={number}/2"))
    done(zoo_command(*command, "--output=one"))
    assert contents(Path("out")) == contents(Path("one"))
    assert Embeddings.open(Path("out")).rows.texts[:] == texts


@pytest.mark.usefixtures("table", "small_blocks")
def test_killed_shards_are_done_again(
    encoder: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = encode_command(encoder, "--output=out")
    save, saved = np.save, list[str]()

    def killed(file: Path, array: np.ndarray[Any, Any]) -> None:
        saved.append(file.name)
        if len(saved) == 2:
            raise KeyboardInterrupt
        save(file, array)

    with monkeypatch.context() as patch:
        patch.setattr(encode.np, "save", killed)
        assert zoo_command(*command, "--shard=1/2").code == 130
    assert saved == ["000000.npy", "000001.npy"]
    assert not Path("out.parts/1-of-2").exists()
    done(zoo_command(*command, "--shard=2/2"))
    write = Embeddings.write

    def killed_merge(*arguments: Any) -> None:
        write(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Embeddings, "write", killed_merge)
        assert zoo_command(*command, "--shard=1/2").code == 130
    parts = {path.name for path in Path("out.parts").iterdir() if path.name[0] != "."}
    assert {"1-of-2", "2-of-2"} < parts
    with monkeypatch.context() as patch:
        patch.setattr(encode.np, "save", None)  # nothing is encoded again
        done(zoo_command(*command, "--shard=2/2"))
    done(zoo_command(*encode_command(encoder, "--output=one")))
    assert contents(Path("out")) == contents(Path("one"))
    assert not Path("out.parts").exists()


@pytest.mark.usefixtures("table", "small_blocks")
def test_embeddings_of_other_tables_and_models_are_not_mixed(
    encoder: Path, fit: Fit, zoo_command: Zoo, table: Path
) -> None:
    other = fit("other", "--model.features=M1", "--data.num_memories=0", "--seed_everything=5")
    output = ["--output=out", "--shard=1/2"]
    done(zoo_command(*encode_command(other, *output)))
    result = done(zoo_command(*encode_command(encoder, "--output=out", "--shard=2/2")))
    assert result.out == "out: shard 2/2 is done; missing: 1; the last of them merges all\n"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines[:-1]) + "\n")
    result = done(zoo_command(*encode_command(encoder, *output)))
    assert "missing: 2" in result.out
    done(zoo_command(*encode_command(encoder, "--output=out", "--shard=2/2")))
    done(zoo_command(*encode_command(encoder, "--output=one")))
    assert contents(Path("out")) == contents(Path("one"))
    assert len(Embeddings.open(Path("out")).rows) == 109
    line = refusal(zoo_command(*encode_command(encoder, "--output=run", "--shard=2")), "--shard 2")
    assert line == "--shard 2: write a number from 1 to the number of shards, such as 3/16, or auto"


# --- prepare ---


@pytest.mark.parametrize("order", ORDERS)
def test_prepared_data(
    order: tuple[int, ...], zoo_command: Zoo, train_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbors, "BLOCK", 8)
    options = ["prepare", *SMALL, f"--data.train_file={train_csv}"]
    done(zoo_command(*options, "--data.cache_dir=one"))
    for number in order:
        assert not [*Path("out").glob("plan-*.json")]
        done(zoo_command(*options, "--data.cache_dir=out", f"--shard={number}/3"))
    one, out = contents(Path("one")), contents(Path("out"))
    plan = next(name for name in out if name.startswith("plan-"))
    # The options, which name the cache, name the plan; the prepared folders are the same.
    plans = [json.loads(next(v for k, v in each.items() if k.startswith("plan-"))) for each in (one, out)]
    for each in plans:
        del each["memory"], each["messages"]
    assert plans[0] == plans[1], plan
    prepared = [
        {name: data for name, data in each.items() if name.partition("-")[0] not in ("plan", "memory")}
        for each in (one, out)
    ]
    assert prepared[0] == prepared[1]
    assert any(name.startswith("neighbors-") for name in prepared[0])
    assert not [*Path("out").glob("*.blocks")]


def test_a_killed_shard_of_a_preparation(
    zoo_command: Zoo, train_csv: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(neighbors, "BLOCK", 8)
    options = ["prepare", *SMALL, f"--data.train_file={train_csv}", "--data.cache_dir=out"]
    savez, saved = np.savez, list[str]()

    def killed(file: Path, **arrays: Any) -> None:
        saved.append(file.name)
        if len(saved) == 3:
            raise KeyboardInterrupt
        savez(file, **arrays)

    monkeypatch.setattr(neighbors.np, "savez", killed)
    assert zoo_command(*options, "--shard=1/2").code == 130
    done(zoo_command(*options, "--shard=2/2"))
    assert caplog.messages[-1] == "shard 2/2 is done; the last shard finishes the preparation"
    done(zoo_command(*options, "--shard=1/2"))
    assert caplog.messages[-1] == "the data is prepared"
    # Blocks that were done before are not retrieved again: only the one that was killed occurs twice.
    assert len(saved) == 1 + 9 + 3
    refusal(zoo_command(*options, "--shard=3/2"), "--shard 3/2")


@pytest.mark.slow
def test_processes_of_torchrun(train_csv: Path, zoo_command: Zoo) -> None:
    """Lightning takes them for no training; they run at the same time, and one of them finishes."""
    options = ["prepare", *SMALL, f"--data.train_file={train_csv}", "--data.cache_dir=out", "--shard=auto"]
    command = [sys.executable, "-m", "zoo", *options]
    processes = []
    for rank in range(2):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": "none", **variables}
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    printed = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert any("the data is prepared" in text for text in printed)
    assert [*Path("out").glob("plan-*.json")]
    done(zoo_command(*options[:-1]))
