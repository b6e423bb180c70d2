"""Trainings to measure: options of `zoo fit`, with the data of the papers or, where it is absent, made-up data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.gpu.stopwatch import Window
from tests.clicks import write_collection
from tests.dialogues import made_up, write_published
from tests.sentence_folders import write_bert
from tests.zoo.conftest import COMMON_WORDS, TOPIC_WORDS, pair_rows, sentences, write_pairs, write_table

MADE_UP = "made-up data"


class Scale(NamedTuple):
    """Sizes of all measurements: those for a GPU, or toy sizes."""

    name: str
    window: Window
    #: made-up texts, questions, dialogues or documents.
    rows: int
    #: options of all models that have sizes.
    sizes: tuple[str, ...]
    #: sizes of a transformer with random weights, and its number of words.
    transformer: dict[str, int]
    words: int
    #: vectors, their size and queries of the dense search.
    search: tuple[int, int, int]
    #: processes that make batches.
    workers: int
    #: backend of `torch.compile`.
    backend: str
    #: seconds that a measurement takes in the process, the first compilation adds, and several processes add.
    seconds: tuple[float, float, float]


FULL = Scale(
    "full",
    Window(warm_up=30, timed=200, profiled=20),
    rows=4_000,
    sizes=(),
    transformer={
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1_536,
    },
    words=30_000,
    search=(1_000_000, 384, 1_024),
    workers=4,
    backend="inductor",
    seconds=(20.0, 60.0, 45.0),
)
TOY = Scale(
    "toy",
    Window(warm_up=1, timed=2, profiled=1),
    rows=80,
    sizes=("--data.batch_size=8",),
    transformer={},
    words=50,
    search=(2_000, 16, 8),
    workers=1,
    backend="eager",
    seconds=(10.0, 10.0, 20.0),
)


class Workload(NamedTuple):
    """One model on one table."""

    name: str
    #: of an example: texts, pairs, questions, clicks.
    unit: str
    #: validation score, as `val/SCORE` in `metrics.csv`.
    score: str
    #: the data's name.
    data: str
    #: of `zoo fit`.
    options: tuple[str, ...]
    #: whether FSDP can shard it.
    can_be_sharded: bool = False


def workloads(folder: Path, data: Path, transformer: str, scale: Scale) -> Iterator[Workload]:
    """Yield the models, the most important ones first; made-up tables are written to a folder."""
    is_toy = scale.name == "toy"
    small = ("--model.word_size=8",) if is_toy else ()
    smaller = (*small, "--model.hidden_size=8") if is_toy else ()
    texts, texts_name = _texts(folder, data, scale)
    vectors = _vectors(data) if scale.name == "full" else ()
    dblp, dblp_name = _table(folder, data / "dblp/train.csv", "Dblp titles", scale)
    fine_tuned = ("--config=knn_bilstm/ag_news", f"--model.transformer={transformer}", *texts)
    yield Workload("KNNBiLSTM with MiniLM", "texts", "accuracy", texts_name, fine_tuned, True)
    yield Workload(
        "KNNBiLSTM",
        "texts",
        "accuracy",
        texts_name,
        ("--config=knn_bilstm/ag_news", *texts, *vectors, *smaller),
    )
    yield Workload("ExpaNet", "texts", "accuracy", dblp_name, ("--config=expanet/dblp_short", *dblp, *small))
    hmn, hmn_name = _dialogues(folder, data, scale)
    yield Workload("HMN", "questions", "accuracy", hmn_name, ("--config=hmn/hmn4qa", *hmn, *small))
    pairs, pairs_name = _pairs(folder, data, scale)
    yield Workload("AMVLSTM", "pairs", "map", pairs_name, ("--config=amv_lstm/wikiqa", *pairs, *smaller))
    clicks, clicks_name = _clicks(folder, data, scale)
    hidden = ("--model.hidden_size=8",) if is_toy else ()
    yield Workload(
        "LSTMRNN", "clicks", "ndcg@10", clicks_name, ("--config=lstm_rnn/nfcorpus", *clicks, *hidden)
    )
    ensemble = ("--config=your_own_data/classification", *dblp, *smaller)
    yield Workload("MemoryEnsemble", "texts", "accuracy", dblp_name, ensemble)


def _texts(folder: Path, data: Path, scale: Scale) -> tuple[tuple[str, ...], str]:
    """The table of AG News, with its columns and classes as in the configuration."""
    table = data / "ag_news/train_pool.csv.gz"
    if scale.name == "full" and table.exists():
        return (f"--data.train_file={table}",), "AG News"
    options, name = _table(folder, table, "", scale)
    columns = ("--data.text_column=text", "--data.label_column=label", "--data.class_names=null")
    return (*options, *columns, "--data.validation_split=0.2"), name


def _table(folder: Path, table: Path, name: str, scale: Scale) -> tuple[tuple[str, ...], str]:
    """A table of texts and labels."""
    if scale.name == "full" and name and table.exists():
        return (f"--data.train_file={table}",), name
    written = _once(folder / "texts.csv", lambda file: write_table(file, sentences(scale.rows, seed=1)))
    return (f"--data.train_file={written}", "--data.validation_split=0.2", *scale.sizes), MADE_UP


def _dialogues(folder: Path, data: Path, scale: Scale) -> tuple[tuple[str, ...], str]:
    parts = [data / f"hmn4qa/task_03_air_ticket_booking_EN_{part}.txt" for part in ("train", "dev")]
    name = "HMN4QA, task 3"
    if scale.name != "full" or not all(part.exists() for part in parts):
        parts = [
            _once(folder / f"dialogues-{seed}.txt", lambda file, seed=seed: write_published(file, made_up(scale.rows, seed)))  # noqa: E501
            for seed in (1, 2)
        ]  # fmt: skip
        return (*_named(parts), *scale.sizes), MADE_UP
    return _named(parts), name


def _pairs(folder: Path, data: Path, scale: Scale) -> tuple[tuple[str, ...], str]:
    parts = [data / f"wikiqa/WikiQA-{part}.tok.tsv" for part in ("train", "dev")]
    if scale.name == "full" and all(part.exists() for part in parts):
        return (
            *_named(parts),
            "--data.tokenizer=whitespace",
            "--data.lowercase=true",
            *_vectors(data),
        ), "WikiQA"
    parts = [
        _once(folder / f"pairs-{seed}.tsv", lambda file, seed=seed: write_pairs(file, pair_rows(scale.rows, seed)))
        for seed in (1, 2)
    ]  # fmt: skip
    columns = ("--data.first_column=first", "--data.second_column=second", "--data.label_column=label")
    return (*_named(parts), "--data.layout=table", *columns, *scale.sizes), MADE_UP


def _clicks(folder: Path, data: Path, scale: Scale) -> tuple[tuple[str, ...], str]:
    source = data / "nfcorpus"
    files = {
        "corpus_file": "corpus.jsonl.gz",
        "train_queries": "queries.train.jsonl",
        "train_judgements": "qrels.train.tsv.gz",
        "validation_queries": "queries.dev.jsonl",
        "validation_judgements": "qrels.dev.tsv",
    }
    if scale.name == "full" and all((source / file).exists() for file in files.values()):
        return tuple(f"--data.{option}={source / file}" for option, file in files.items()), "NFCorpus"
    collection = write_collection(folder / "clicks", documents=scale.rows, queries=scale.rows // 2, seed=1)
    options = collection.options(
        validation_queries="null", validation_judgements="null", validation_split=0.2
    )
    return tuple(f"--data.{option}={value}" for option, value in options.items()) + scale.sizes, MADE_UP


def _named(parts: list[Path]) -> tuple[str, ...]:
    train, validation = parts
    return f"--data.train_file={train}", f"--data.validation_file={validation}"


def _vectors(data: Path) -> tuple[str, ...]:
    file = data / "glove/glove.6B.100d.subset.txt.xz"
    return (f"--data.word_vectors={file}",) if file.exists() else ()


def _once(file: Path, write: Callable[[Path], object]) -> Path:
    if not file.exists():
        write(file)
    return file


def random_transformer(folder: Path, scale: Scale) -> str:
    """Write a transformer of MiniLM's shape with random weights, and return its folder."""
    words = [*COMMON_WORDS, *(word for topic in TOPIC_WORDS.values() for word in topic)]
    words += [f"##{number}" for number in range(scale.words - len(words))]
    return str(_once(folder / "transformer", lambda path: write_bert(path, words, **scale.transformer)))
