"""Trainings to measure: options of `zoo fit`, with the data of the papers or, where it is absent, made-up data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    seconds=(10.0, 20.0, 60.0),
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


def workloads(folder: Path, data: Path, transformer: str, scale: Scale) -> Iterator[Workload]:
    """Yield the models, the most important ones first; made-up tables are written to a folder."""
    is_toy = scale.name == "toy"
    width, hidden = (("--model.word_size=8",), ("--model.hidden_size=8",)) if is_toy else ((), ())
    glove = data / "glove/glove.6B.100d.subset.txt.xz"
    vectors = (f"--data.word_vectors={glove}",) if glove.exists() and not is_toy else ()

    def choose(
        name: str, files: Mapping[str, str], options: tuple[str, ...], make: Callable[[], tuple[str, ...]]
    ) -> tuple[tuple[str, ...], str]:
        """Options of a paper's data, and its name, where all files (option -> file) exist; else made-up data."""
        if not is_toy and all((data / file).exists() for file in files.values()):
            return (*(f"--data.{option}={data / file}" for option, file in files.items()), *options), name
        return (*make(), *scale.sizes), MADE_UP

    def make_texts() -> tuple[str, ...]:
        table = write_table(folder / "texts.csv", sentences(scale.rows, seed=1))
        return f"--data.train_file={table}", "--data.validation_split=0.2"

    def make_dialogues() -> tuple[str, ...]:
        train, validation = (
            write_published(folder / f"dialogues-{seed}.txt", made_up(scale.rows, seed)) for seed in (1, 2)
        )
        return f"--data.train_file={train}", f"--data.validation_file={validation}"

    def make_pairs() -> tuple[str, ...]:
        table = write_pairs(folder / "pairs.tsv", pair_rows(scale.rows, seed=1))
        columns = ("first_column=first", "second_column=second", "label_column=label", "layout=table")
        return f"--data.train_file={table}", *(f"--data.{column}" for column in columns)

    def make_clicks() -> tuple[str, ...]:
        collection = write_collection(folder / "clicks", scale.rows, queries=scale.rows // 2, seed=1)
        others = {"validation_queries": "null", "validation_judgements": "null", "validation_split": 0.2}
        return tuple(f"--data.{option}={value}" for option, value in collection.options(**others).items())

    columns = ("--data.text_column=text", "--data.label_column=label", "--data.class_names=null")
    news, news_name = choose(
        "AG News", {"train_file": "ag_news/train_pool.csv.gz"}, (), lambda: (*make_texts(), *columns)
    )
    titles, titles_name = choose("Dblp titles", {"train_file": "dblp/train.csv"}, (), make_texts)
    task = "hmn4qa/task_03_air_ticket_booking_EN"
    files = {"train_file": f"{task}_train.txt", "validation_file": f"{task}_dev.txt"}
    dialogues, dialogues_name = choose("HMN4QA, task 3", files, (), make_dialogues)
    files = {"train_file": "wikiqa/WikiQA-train.tok.tsv", "validation_file": "wikiqa/WikiQA-dev.tok.tsv"}
    tokens = ("--data.tokenizer=whitespace", "--data.lowercase=true", *vectors)
    pairs, pairs_name = choose("WikiQA", files, tokens, make_pairs)
    files = {
        "corpus_file": "nfcorpus/corpus.jsonl.gz",
        "train_queries": "nfcorpus/queries.train.jsonl",
        "train_judgements": "nfcorpus/qrels.train.tsv.gz",
        "validation_queries": "nfcorpus/queries.dev.jsonl",
        "validation_judgements": "nfcorpus/qrels.dev.tsv",
    }
    clicks, clicks_name = choose("NFCorpus", files, (), make_clicks)

    knn = ("--config=knn_bilstm/ag_news", *news)
    tuned = (*knn, f"--model.transformer={transformer}", "--model.optimizer.lr=5e-5")
    yield Workload("KNNBiLSTM with MiniLM", "texts", "accuracy", news_name, tuned)
    yield Workload("KNNBiLSTM", "texts", "accuracy", news_name, (*knn, *vectors, *width, *hidden))
    expanet = ("--config=expanet/dblp_short", *titles, *width)
    yield Workload("ExpaNet", "texts", "accuracy", titles_name, expanet)
    hmn = ("--config=hmn/hmn4qa", *dialogues, *width)
    yield Workload("HMN", "questions", "accuracy", dialogues_name, hmn)
    amv_lstm = ("--config=amv_lstm/wikiqa", *pairs, *width, *hidden)
    yield Workload("AMVLSTM", "pairs", "map", pairs_name, amv_lstm)
    lstm_rnn = ("--config=lstm_rnn/nfcorpus", *clicks, *hidden)
    yield Workload("LSTMRNN", "clicks", "ndcg@10", clicks_name, lstm_rnn)
    ensemble = ("--config=your_own_data/classification", *titles, *width, *hidden)
    yield Workload("MemoryEnsemble", "texts", "accuracy", titles_name, ensemble)


def random_transformer(folder: Path, scale: Scale) -> str:
    """Write a transformer of MiniLM's shape with random weights, and return its folder."""
    words = [*COMMON_WORDS, *(word for topic in TOPIC_WORDS.values() for word in topic)]
    words += [f"##{number}" for number in range(scale.words - len(words))]
    return str(write_bert(folder / "transformer", words, **scale.transformer))
