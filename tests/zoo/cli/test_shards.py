"""`zoo predict` and `zoo encode` in shards: joined, they have the bytes of one process."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from datamodules.core.errors import InputError
from datamodules.core.shards import WHOLE, Shard
from datamodules.retrieval import open_memory
from datamodules.retrieval.dense.embeddings import Embeddings
from tests.dialogues import made_up, write_published
from tests.zoo.conftest import Fit, Zoo, done, pair_rows, refusal, sentences, write_pairs, write_table
from tests.zoo.retrieval_runs import trained
from tests.zoo.tasks.test_matching_runs import SMALL as SMALL_MATCHING
from zoo.tasks.classification.predictor import ClassificationPredictor


def same_as_one(zoo_command: Zoo, command: Sequence[object], output: str, count: int = 3) -> bytes:
    """The predictions of one process, which those of several shards equal when they are joined."""
    done(zoo_command(*command, f"--output=one/{output}"))
    for number in range(count, 0, -1):
        done(zoo_command(*command, f"--output={output}", f"--shard={number}/{count}"))
    parts = sorted(Path().glob(f"{output}.*-of-{count}"))
    assert len(parts) == count
    whole = Path("one", output).read_bytes()
    assert b"".join(part.read_bytes() for part in parts) == whole
    return whole


@pytest.mark.parametrize(("total", "count"), [(0, 3), (1, 3), (39, 2), (40, 4), (41, 4), (95, 16), (1000, 7)])
def test_shards_are_whole_blocks_and_cover_the_table(total: int, count: int) -> None:
    parts = [Shard(number, count).rows(total, 10) for number in range(1, count + 1)]
    assert [row for part in parts for row in part] == [*range(total)]
    assert all(part.start % 10 == 0 for part in parts if part)
    assert len(parts[0]) > 0 or total == 0  # it has the names of the columns
    assert [*Shard(count, count).of(range(total), total, 10)] == [*parts[-1]]
    assert max(map(len, parts)) - min(map(len, parts)) < 20


def test_names_of_parts_are_in_the_order_of_the_rows() -> None:
    names = [Shard(number, 12).part_of(Path("out.csv")).name for number in range(1, 13)]
    assert names == sorted(names)
    assert names[1] == "out.csv.02-of-12"
    assert Shard.parse("1/1") == WHOLE


@pytest.mark.parametrize("option", ["4/3", "0/3", "auto", "3", "1/0", "-1/3", "a/b", ""])
def test_other_options_are_refused(option: str) -> None:
    with pytest.raises(InputError, match="write NUMBER/SHARDS, such as 3/16"):
        Shard.parse(option)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """2,100 texts with ids: 3 blocks."""
    rows = [(f"T-{number}", text) for number, (text, _) in enumerate(sentences(2100, seed=4))]
    return write_table(tmp_path / "texts.csv", rows, ("key", "text"))


@pytest.mark.parametrize(("output", "count"), [("out.jsonl", 2), ("out.csv", 3), ("out.tsv", 4)])
def test_classifications(output: str, count: int, trained_run: Path, zoo_command: Zoo, texts: Path) -> None:
    command = ["predict", "--ckpt_path", trained_run, "--input", texts, "--id_column=key"]
    lines = same_as_one(zoo_command, command, output, count).decode().splitlines()
    if output == "out.jsonl":
        assert [json.loads(line)["id"] for line in lines] == [f"T-{number}" for number in range(2100)]
    else:
        assert [line[:2] for line in lines].count("id") == 1


def test_lines_of_text(trained_run: Path, zoo_command: Zoo) -> None:
    Path("lines.txt").write_text("".join(f"{text}\n" for text, _ in sentences(2100, seed=3)))
    command = ["predict", "--ckpt_path", trained_run, "--input=lines.txt", "--memories=0"]
    assert same_as_one(zoo_command, command, "out.jsonl").count(b"\n") == 2100


def test_predictions_of_pairs_and_their_ranking(zoo_command: Zoo, tmp_path: Path) -> None:
    train = write_pairs(tmp_path / "train.tsv", pair_rows(40, seed=1))
    options = [f"--data.train_file={train}", "--data.validation_split=0.3", "--run_dir=run"]
    done(zoo_command("fit", *SMALL_MATCHING, *options, "--trainer.max_epochs=1"))
    pairs = write_pairs(tmp_path / "pairs.tsv", pair_rows(200, seed=2))
    command = ["predict", "--ckpt_path=run", f"--input={pairs}", "--batch_size=32"]
    assert same_as_one(zoo_command, command, "out.csv").count(b"\n") > 600
    rows = [
        (f"q{question.split()[-1]}", question, f"d{row}", text)
        for row, (question, text, _) in enumerate(pair_rows(200, seed=2))
    ]
    write_table(Path("ids.csv"), rows, ("qid", "first", "id", "second"))
    named = ["--first_column=first", "--second_column=second", "--question_column=qid", "--id_column=id"]
    same_as_one(zoo_command, ["predict", "--ckpt_path=run", "--input=ids.csv", *named], "out.run")
    # The candidates of this run, ranked again.
    queries = [(f"q{number}", f"where is plum {number}") for number in range(200)]
    write_table(Path("queries.csv"), queries, ("id", "text"))
    write_table(Path("documents.csv"), [(row[2], row[3]) for row in rows], ("id", "text"))
    again = ["--input=queries.csv", "--rerank=one/out.run", "--documents=documents.csv"]
    same_as_one(zoo_command, ["predict", "--ckpt_path=run", *again], "again.run")


def test_ranked_documents(zoo_command: Zoo) -> None:
    checkpoint = trained(zoo_command, Path("clicks"), "run")
    queries = [(f"q{number}", text) for number, (text, _) in enumerate(sentences(2100, seed=7))]
    write_table(Path("queries.csv"), queries, ("id", "text"))
    command = ["predict", "--ckpt_path", checkpoint, "--input=queries.csv", "--text_column=text", "--k=3"]
    assert same_as_one(zoo_command, command, "out.run").count(b"\n") == 6300
    again = [*command, "--rerank=one/out.run", "--output=again.run", "--shard=1/3"]
    refusal(zoo_command(*again), "--rerank", "omit --shard")


def test_answers_about_dialogues(zoo_command: Zoo) -> None:
    write_published(Path("train.txt"), made_up(20, seed=1))
    write_published(Path("dialogues.txt"), made_up(21, seed=2))
    options = ["--model.word_size=6", "--data.layout=hmn4qa", "--data.validation_split=0.2"]
    fit = ["fit", "--model=HMN", "--data=DialogueDataModule", "--data.train_file=train.txt", *options]
    done(zoo_command(*fit, "--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--run_dir=run"))
    command = ["predict", "--ckpt_path=run", "--input=dialogues.txt", "--batch_size=4"]
    same_as_one(zoo_command, command, "out.jsonl")
    same_as_one(zoo_command, command, "more.csv", count=8)  # shards than batches


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--input=texts.csv", "--output=out.csv", "--shard=4/3"], ["--shard 4/3", "such as 3/16"]),
        (["--input=-", "--output=out.csv", "--shard=1/3"], ["--shard", "standard input", "give a file"]),
        (["--input=texts.csv", "--output=out.csv", "--shard=1/3", "--report=true"], ["--report", "--shard"]),
    ],
)
@pytest.mark.usefixtures("texts")
def test_uncut_tables(options: list[str], words: list[str], trained_run: Path, zoo_command: Zoo) -> None:
    refusal(zoo_command("predict", "--ckpt_path", trained_run, *options), *words)
    assert not [*Path().glob("out.csv*")]


def test_a_kind_of_ones_own_without_shards(
    trained_run: Path, zoo_command: Zoo, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassificationPredictor, "records", lambda self, source, batch_size=256: iter(()))
    command = ["predict", "--ckpt_path", trained_run, "--input", texts, "--output=out.jsonl"]
    refusal(zoo_command(*command, "--shard=1/2"), "--shard", "KNNBiLSTM have no shards")
    done(zoo_command(*command))


def test_embeddings_are_joined_by_the_index(
    fit: Fit, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("zoo.search.index.BLOCK", 16)
    rows = [(f"T-{number}", *row) for number, row in enumerate(sentences(90, seed=8))]
    write_table(tmp_path / "table.csv", rows, ("key", "text", "label"))
    encoder = fit("encoder", "--model.features=M1", "--data.num_memories=0")
    columns = ["--id_column=key", "--label_column=label", "--batch_size=5"]
    command = ["encode", "--ckpt_path", encoder, "--input=table.csv", *columns]
    index = ["index", "--embeddings=out", "--memory=memory"]
    for number in (3, 1):
        done(zoo_command(*command, "--output=out", f"--shard={number}/3"))
    refusal(zoo_command(*index), "out: missing parts", "out.2-of-3")
    assert not Path("out").exists()
    done(zoo_command(*command, "--output=out", "--shard=2/3"))
    done(zoo_command(*index))
    monkeypatch.setenv("ZOO_CACHE_DIR", str(tmp_path / "empty"))  # else the vectors would be looked up
    done(zoo_command(*command, "--output=one"))
    assert Path("out/vectors.npy").read_bytes() == Path("one/vectors.npy").read_bytes()
    joined, expected = (Embeddings.open(Path(name)) for name in ("out", "one"))
    assert joined.rows.fingerprint == expected.rows.fingerprint
    assert joined.made_by == expected.made_by
    assert len(open_memory("memory", None)) == 90
    # Parts of another encoder.
    other = fit("other", "--model.features=M1", "--data.num_memories=0", "--seed_everything=5")
    Path("out").rename("before")
    done(zoo_command("encode", "--ckpt_path", other, *command[3:], "--output=out", "--shard=2/3"))
    refusal(zoo_command(*index), "out.2-of-3: made by another encoder than out.1-of-3")
