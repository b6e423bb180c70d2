"""Run every `zoo` command of the README pages, in the page's order, on small files with the names that it uses."""

import gzip
import re
import shlex
from pathlib import Path

import pytest

from tests.clicks import write_collection
from tests.dialogues import made_up, write_jsonl, write_lines, write_published, write_records
from tests.zoo.conftest import LABELS, Zoo, done, read_jsonl, sentences, write_table

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "examples").rglob("README.md"))]

#: Added to commands that fit the default.
FITTED = [f"--trainer.{each}" for each in ("accelerator=cpu", "enable_progress_bar=false")]
#: Added to commands that train by gradients, so that they take a second.
TRAINED = [*FITTED, "--trainer.enable_model_summary=false", "--trainer.max_epochs=1", "--data.batch_size=16"]
#: By folder of the configuration, in place of those of a KNNBiLSTM.
TRAINED_OF = {
    "amv_lstm": [*TRAINED, "--model.hidden_size=4"],
    "baselines": [*TRAINED, "--data.validation_split=0.2"],
    "lstm_rnn": TRAINED,
    "hmn": [*TRAINED, "--model.word_size=6"],
    "expanet": [*TRAINED, "--model.word_size=6"],
}
KNN_BILSTM = [*TRAINED, "--model.hidden_size=4", "--model.char_hidden_size=4", "--data.validation_split=0.2"]


def commands_of(page: Path) -> list[list[str]]:
    """The arguments of the `zoo` commands in a page's code blocks; `...` stands for more options."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(block for language, block in blocks if not language).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("zoo ")]
    return [[word for word in command if word != "..."] for command in commands]


def small_options(command: str) -> list[str]:
    """Options that a command which trains gets for the test."""
    folder = re.search(r"--config (\w+)/", command)
    if "train_judgements" in command:
        return TRAINED_OF["lstm_rnn"]
    if "--model " not in command and (folder is None or folder[1] == "your_own_data"):
        return FITTED
    return TRAINED_OF.get(folder[1] if folder else "", KNN_BILSTM)


def write_wikiqa(path: Path) -> Path:
    """Twenty questions with three candidates each, in the layout of the release."""
    lines = ["QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel"]
    for number in range(20):
        for candidate in range(3):
            is_answer = candidate == 1
            sentence = f"the old apple {number}" if is_answer else f"some rain near gold {candidate}"
            document = f"D{number}\t\tD{number}-{candidate}"
            lines.append(f"Q{number}\twhich apple {number} ?\t{document}\t{sentence}\t{int(is_answer)}")
    return write_lines(path, *lines)


@pytest.fixture
def _named_files(tmp_path: Path, tiny_bert: Path, page: Path) -> None:
    """Write the files that the pages name, and a small model instead of one from the Hub.

    The tables are a user's, with texts and labels alone, but for AG News on the page of its model.
    """
    (tmp_path / "sentence-transformers").mkdir()
    tiny_bert.rename(tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name, seed in (("train.csv", 1), ("test.csv", 2), ("more.csv", 4), ("dev.csv", 5), ("tagged.csv", 6)):
        rows = [(text, label, "news", str(1 + LABELS.index(label))) for text, label in sentences(60, seed)]
        columns = ("text", "label", "title", "class")[: 4 if page.parent.name == "knn_bilstm" else 2]
        write_table(tmp_path / name, [row[: len(columns)] for row in rows], columns)
    (tmp_path / "corrections.csv").write_text(f"id,label\n18,{LABELS[0]}\n")
    (tmp_path / "corrected.csv").write_text(f"id,text,label\n20,some ripe plum,{LABELS[0]}\n")
    for name in ("WikiQA-train.tsv", "WikiQA-dev.tsv", "WikiQA-test.tsv"):
        write_wikiqa(tmp_path / name)
    for name, seed in (("train", 1), ("dev", 2), ("test", 3)):
        write_published(tmp_path / f"task_01_{name}.txt", made_up(20, seed))
        write_jsonl(tmp_path / f"{name}.jsonl", made_up(20, seed))
    judged = write_collection(tmp_path / "judged", documents=40, queries=20, seed=7)
    folder = tmp_path / "nfcorpus"
    folder.mkdir()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(judged.corpus.read_bytes()))
    for name in ("train", "dev", "test"):
        (folder / f"queries.{name}.jsonl").write_bytes(judged.queries.read_bytes())
        (folder / f"qrels.{name}.tsv").write_bytes(judged.judgements.read_bytes())
        (folder / f"qrels.{name}.tsv.gz").write_bytes(gzip.compress(judged.judgements.read_bytes()))
    titles = [(row["_id"], row["title"]) for row in read_jsonl(judged.corpus)]
    queries = [(row["_id"], row["text"]) for row in read_jsonl(judged.queries)]
    grades = [line.split("\t") for line in judged.judgements.read_text().splitlines()[1:]]
    write_table(tmp_path / "documents.csv", titles, ("id", "text"))
    for prefix in ("", "test_"):
        write_table(tmp_path / f"{prefix}queries.csv", queries, ("id", "text"))
        write_table(tmp_path / f"{prefix}judgements.csv", grades, ("query_id", "doc_id", "grade"))
    (tmp_path / "texts.txt").write_text("some ripe apple\nthe rain\n")
    write_table(tmp_path / "texts.csv", [(text,) for text, _ in sentences(70, seed=9)], ("text",))
    write_table(tmp_path / "labels.csv", [(f"it is {label}", label) for label in LABELS])
    (tmp_path / "questions.txt").write_text("which apple 3 ?\nwhich rain ?\n")
    articles = [{"body": text, "category": label} for text, label in sentences(20, seed=3)]
    abstracts = [{"abstract": text} for text, _ in sentences(30, seed=6)]
    for name, lines in (("articles", articles), ("abstracts", abstracts)):
        write_records(tmp_path / f"{name}.jsonl", *lines)
    (tmp_path / "glove.6B.100d.txt").write_text("the" + " 0.5" * 100 + "\napple" + " -0.5" * 100 + "\n")


def test_the_pages_have_commands() -> None:
    names = {command[0] for page in PAGES for command in commands_of(page)}
    assert names >= {"fit", "test", "predict", "prepare", "index", "search", "memory"}


@pytest.mark.usefixtures("_named_files", "_wandb_offline")
@pytest.mark.parametrize(
    "page",
    # The pages of the examples train for minutes.
    [PAGES[0], *(pytest.param(page, marks=pytest.mark.slow) for page in PAGES[1:])],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_of(page: Path, zoo_command: Zoo) -> None:
    for command in commands_of(page):
        text = shlex.join(command)
        if command[0] in ("reproduce", "serve"):
            continue  # They take hours, or run until they are stopped, and have tests of their own.
        trains = command[0] in ("fit", "prepare")
        if re.search("elasticsearch|opensearch|gpu", text, re.IGNORECASE):
            if trains:  # Other tests need the server or the device.
                result = done(zoo_command(*command, "--print_config"))
                assert "text_column: text\n" in result.out, text
            else:  # The options are valid; only the server is missing.
                result = zoo_command(*command, "--retriever.url", "http://127.0.0.1:9")
                assert result.code == 2, text
                assert "no connection" in result.err, (text, result.err)
            continue
        if page.parent.name == "elasticsearch":
            continue  # It reads a memory that needs a server.
        result = zoo_command(*command, *(small_options(text) if trains else []))
        if "max_error" in text:  # The table is too small to certify a level.
            assert "held-out rows can certify" in result.err, (text, result.err)
            continue
        assert result.code == 0, (text, result.err)
