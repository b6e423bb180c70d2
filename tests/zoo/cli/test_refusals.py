"""Errors that the user can correct are one line and exit code 2: ours, Lightning's, the parser's, the system's."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pytorch_lightning.loggers import CSVLogger

import zoo
from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError, excerpt
from tests.zoo.conftest import Fit, Zoo, fit_options, refusal, sentences, write_table
from zoo.runs.process import running

#: A callback that watches a metric which no model logs.
MONITOR = '{"class_path": "pytorch_lightning.callbacks.%s", "init_args": {"monitor": "val/luck"}}'


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--seed_everything=-1", ["--seed_everything: -1"]),
        (f"--seed_everything={2**32}", ["--seed_everything"]),
        ("--trainer.strategy=hope", ["hope"]),
        ("--trainer.precision=64", ["trainer.precision=64-true"]),
        ("--trainer.check_val_every_n_epoch=0", ["check_val_every_n_epoch=0"]),
        ("--trainer.accumulate_grad_batches=0", ["accumulate_grad_batches=0"]),
        ("--trainer.max_time=soon", ["soon"]),
        (f"--trainer.callbacks=[{MONITOR % 'EarlyStopping'}]", ["val/luck"]),
        (f"--trainer.callbacks=[{MONITOR % 'ModelCheckpoint'}]", ["val/luck"]),
        ("--run_dir=.", ["--run_dir"]),
        ("--run_dir=train.csv", ["--run_dir", "is a file"]),
        ("--run_dir=train.csv/run", ["--run_dir", "train.csv/run"]),
        ("--run_dir=" + "x" * 300, ["File name too long"]),
        ("--ckpt_path=gone.ckpt", ["gone.ckpt"]),
        ("--config=gone.yaml", ["gone.yaml"]),
        ("--config=binary.yaml", ["UTF-8"]),
        ("--config=nul.yaml", ["control characters"]),
        ("--data.train_file=gone.csv", ["gone.csv"]),
        ("--data.text_column=words", ["train.csv", "words", "text", "label"]),
        ("--data.label_column=null", ["data.label_column"]),
        ("--data.rows_per_class={wine: 1}", ["wine", "fruit"]),
        ("--data.split_seed=-1", ["data.split_seed=-1"]),
        ("--data.eval_batch_size=0", ["data.eval_batch_size=0"]),
        ("--data.memory=gone", ["gone", "zoo index"]),
        ("--data.retriever=Oracle", ["Oracle"]),
        ("--data.retriever.similarity=TFIDF", ["TFIDF", "BM25"]),
        ("--data.cache_dir=train.csv/cache", ["train.csv"]),
        ("--model=Perceptron", ["Perceptron", "KNNBiLSTM"]),
        ("--model=" + "x" * 5000, ["no model"]),
        ("--model.features=M9", ["features", "M9", "M1", "M7"]),
        ("--model.dropout=3", ["model", "dropout", "between 0 and 1"]),
        ("--model.hidden_units=3", ["hidden_units"]),
        ("--model.init_from=nowhere.ckpt", ["nowhere.ckpt: no such"]),
        ("--model.optimizer=null", ["model.optimizer=null: name one"]),
        ("--model.optimizer.lr=-1", ["model.optimizer", "learning rate"]),
        (
            "--model.optimizer=torch.optim.SparseAdam",
            ["--model.optimizer: SparseAdam does not support dense"],
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_options_of_fit(option: str, words: list[str], zoo_command: Zoo, train_csv: Path) -> None:
    Path("binary.yaml").write_bytes(bytes(range(256)))
    Path("nul.yaml").write_bytes(b"a: \0\n")
    refusal(zoo_command(*fit_options(train_csv, option)), *words)


class AbsentLogger(CSVLogger):
    """A logger that cannot be used, such as one whose package is not installed."""

    def __init__(self, save_dir: str) -> None:
        raise ModuleNotFoundError("no package 'absent'; pip install absent")


def test_one_of_several_loggers_is_not_installed(zoo_command: Zoo, train_csv: Path) -> None:
    names = ("CSVLogger", f"{__name__}.AbsentLogger")
    loggers = [{"class_path": name, "init_args": {"save_dir": "."}} for name in names]
    line = refusal(
        zoo_command(*fit_options(train_csv, f"--trainer.logger={json.dumps(loggers)}")), "pip install absent"
    )
    assert "subclass" not in line


def test_wandb_without_an_account() -> None:
    from wandb.errors import UsageError

    with (
        pytest.raises(InputError, match=r"WandbLogger: No API key configured.*WANDB_MODE=offline"),
        running(seed=0),
    ):
        raise UsageError("No API key configured. Use `wandb login` to log in.")


def test_tables_that_no_reader_takes(zoo_command: Zoo, train_csv: Path) -> None:
    texts, labels = pa.array(["a b", "c d"] * 20), pa.array(["x", "y"] * 20)
    pq.write_table(pa.table([texts, labels, labels], names=["text", "label", "label"]), "twice.parquet")
    pq.write_table(pa.table([texts, labels], names=["text", "label"]), "name.parquet")
    Path("name.parquet").write_bytes(Path("name.parquet").read_bytes().replace(b"label", b"l\xff\xfeel"))
    Path("blank.jsonl").write_text("\n \n")
    Path("wide.csv").write_text(",".join(f"column{i}" for i in range(20_000)) + "\n")
    os.mkfifo("pipe.csv")
    for file, word in {
        "twice.parquet": "more than once",
        "name.parquet": "not UTF-8",
        "blank.jsonl": "no rows",
        "wide.csv": "column1",
        "pipe.csv": "is a pipe",
    }.items():
        line = refusal(zoo_command(*fit_options(train_csv, f"--data.train_file={file}")), file, word)
        assert len(line) < 500


def test_vectors_in_archives(zoo_command: Zoo, fit: Fit, train_csv: Path) -> None:
    vectors = "apple 1 2 3 4 5 6 7 8\n"
    with zipfile.ZipFile("folder.zip", "w") as archive:
        archive.writestr("deep/v.txt", vectors)
        archive.writestr("deep/w.txt", vectors)
    fit("good", "--data.word_vectors=folder.zip/deep/v.txt")
    line = refusal(zoo_command(*fit_options(train_csv, "--data.word_vectors=folder.zip/deep/x.txt")))
    assert "as in folder.zip/deep/v.txt" in line
    with zipfile.ZipFile("locked.zip", "w") as archive:
        archive.writestr("v.txt", vectors)
    locked = bytearray(Path("locked.zip").read_bytes())
    locked[6] |= 1
    locked[locked.find(b"PK\x01\x02") + 8] |= 1
    Path("locked.zip").write_bytes(locked)
    refusal(zoo_command(*fit_options(train_csv, "--data.word_vectors=locked.zip")), "locked.zip", "encrypted")


def test_inputs_of_predict(
    trained_run: Path, zoo_command: Zoo, test_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("pipe.txt")
    Path("folder.txt").mkdir()
    Path("latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    Path("out.jsonl").write_text("kept")
    latin = io.TextIOWrapper(io.BytesIO("caf\xe9\n".encode("latin-1")), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", latin)
    for options, words in (
        (["--input=pipe.txt"], ["is a pipe"]),
        (["--input=folder.txt"], ["is a folder"]),
        (["--input=gone.txt"], ["gone.txt"]),
        (["--input=latin.txt"], ["latin.txt", "UTF-8"]),
        (["--input=-"], ["standard input", "UTF-8"]),
        (["--input", test_csv, "--device=meta"], ["device meta"]),
        (["--input", test_csv, "--batch_size=0"], ["--batch_size 0"]),
        (["--input", test_csv, "--text_column=body"], ["test.csv", "body", "text"]),
    ):
        command = ["predict", "--ckpt_path", trained_run, "--output=out.jsonl"]
        refusal(zoo_command(*command, *options), *words)
    assert Path("out.jsonl").read_text() == "kept"


def test_numbers_and_texts_in_python(trained_run: Path) -> None:
    predictor = zoo.load(trained_run)
    for size in (0, -1):
        with pytest.raises(InputError, match=f"batch_size {size}"):
            predictor.predict(["apple"], batch_size=size)
    with pytest.raises(InputError, match=r"text 1 is a list, no string: \['a'\]"):
        predictor.predict(["apple", ["a"]])
    with pytest.raises(InputError, match="text 0 is a NoneType"):
        predictor.predict([None])


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(trained_run: Path, test_csv: Path) -> None:
    rows = write_table(Path("many.csv"), sentences(3000, seed=3))
    command = [sys.executable, "-m", "zoo", "predict", "--ckpt_path", str(trained_run), "--input", str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["label"]
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_excerpts_are_short_and_on_one_line() -> None:
    assert excerpt("a\n  b") == "a b"
    assert excerpt("x" * 200) == "x" * 200
    assert excerpt("x" * 10**7) == "x" * 199 + "…"


@pytest.mark.parametrize("hook", ["prepare_split", "learn", "setup"])
def test_a_cache_that_is_removed_meanwhile(
    hook: str, zoo_command: Zoo, train_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = getattr(ClassificationDataModule, hook)

    def removing(self: ClassificationDataModule, *arguments: object, **options: object) -> object:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        return before(self, *arguments, **options)

    monkeypatch.setattr(ClassificationDataModule, hook, removing)
    refusal(zoo_command(*fit_options(train_csv)), "cache")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]" for n in range(9)),
            "aliases",
        ),
        ("a: &a [*a]", "aliases"),
        (f"a: {'[' * 3000}{']' * 3000}", "nested too deeply"),
    ],
    ids=["multiplied", "circle", "deep"],
)
def test_endless_configurations_are_refused(text: str, message: str, zoo_command: Zoo) -> None:
    Path("endless.yaml").write_text(text)
    assert "endless.yaml: " in refusal(zoo_command("fit", "--config=endless.yaml"), message)
