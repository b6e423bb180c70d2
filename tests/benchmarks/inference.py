"""Cost of a prediction for one text and for a thousand, by every model of the zoo.

Each model is trained for two batches by `zoo fit` with its own defaults, opened by `zoo.load`, and predicts one text
(the median of 20 calls) and for 1,000 together, retrieval of 20 memories among 3,000 included. A text is what the task
takes: a text of 12 words, a pair of such texts, a question about a dialogue of 16 turns (six questions a call), a query
to rank 3,000 documents for. Words are seeded draws with Zipf's distribution. CPU seconds of one thread.

    python -m tests.benchmarks.inference [--models "KNNBiLSTM,ExpaNet"] [--transformer FOLDER]
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import zoo
from tests.benchmarks.timing import cpu_seconds, parser, zipf
from tests.dialogues import MadeUp, write_published
from zoo.cli import main as zoo_command
from zoo.registry import MODELS

MANY, CALLS = 1000, 20
FIT = [
    "--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1",
    "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false",
]  # fmt: skip
CHARACTERS = ["--data.tokenizer=characters", "--data.max_length=393", "--data.characters=false"]
OPTIONS = {
    "CharCNN": [*CHARACTERS, "--model.length=393"],
    "CharCRNN": CHARACTERS,
    "VDCNN": CHARACTERS,
    "FastText": ["--data.characters=false"],
    "CDSSM": ["--data.characters=true"],
    "DSSM": ["--data.characters=true"],
}


def draw_dialogues(number: int) -> list[MadeUp]:
    """Dialogues of the size of the published ones: 16 turns of 4 to 12 words, 6 questions."""
    random = np.random.default_rng(0)
    dialogues = []
    for dialogue in range(number):
        turns = [[f"w{word}" for word in zipf(random, random.integers(3, 12), 300)] for _ in range(16)]
        answers = [f"own{dialogue}-{i}" for i in range(6)]
        for i, answer in enumerate(answers):
            turns[2 * i + 2].append(answer)
        questions = [" ".join(f"w{word}" for word in random.integers(1, 31, size=6)) for _ in answers]
        dialogues.append(MadeUp([" ".join(turn) for turn in turns], questions, answers))
    return dialogues


class Tables:
    """Made-up data of every kind, in files, and the inputs of predictions."""

    def __init__(self, folder: Path) -> None:
        self.random, self.folder = np.random.default_rng(0), folder
        self.texts = [self.text() for _ in range(3 * MANY)]
        self.new_texts = [self.text() for _ in range(MANY)]  # not in any memory
        self.dialogues = draw_dialogues(MANY // 6 + 1)
        # A text's first word determines half of its class, so that no member of an ensemble is skipped.
        labels = [f"class {text.split()[0][-1]}{number % 2}" for number, text in enumerate(self.texts)]
        self.table("texts.csv", ["text", "label"], zip(self.texts, labels, strict=True))
        pairs = [(text, self.text(), number % 2) for number, text in enumerate(self.texts)]
        self.table("pairs.csv", ["first", "second", "label"], pairs)
        write_published(folder / "dialogues.txt", self.dialogues)
        for name, texts in (("corpus", self.texts), ("queries", self.texts[:200])):
            lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(texts)]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        judged = [f"{query}\t{query}\t1" for query in range(200)]
        (folder / "judgements.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")

    def text(self) -> str:
        ids = np.minimum(self.random.zipf(1.2, size=12), 20_000)
        return " ".join([f"topic{self.random.integers(4)}", *(f"w{number}" for number in ids[1:])])

    def table(self, name: str, columns: list[str], rows: Any) -> None:
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])

    def data_options(self, task: str) -> list[str]:
        folder = self.folder
        of_task = {
            "classification": [
                "--data=ClassificationDataModule", f"--data.train_file={folder}/texts.csv",
                "--data.validation_split=0.1", "--data.num_memories=20",
            ],
            "matching": [
                "--data=MatchingDataModule", f"--data.train_file={folder}/pairs.csv",
                "--data.goal=classification", "--data.validation_split=0.1",
            ],
            "dialogue": [
                "--data=DialogueDataModule", "--data.layout=hmn4qa", f"--data.train_file={folder}/dialogues.txt",
                "--data.validation_split=0.1",
            ],
            "retrieval": [
                "--data=ClickthroughDataModule", f"--data.corpus_file={folder}/corpus.jsonl",
                f"--data.train_queries={folder}/queries.jsonl",
                f"--data.train_judgements={folder}/judgements.tsv",
            ],
        }  # fmt: skip
        return of_task[task]

    def questions(self, task: str, model: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Calls that predict for one text and for a thousand."""
        texts = self.new_texts
        if task == "dialogue":
            inputs = [(each.turns, each.questions) for each in self.dialogues][: MANY // 6]
            turns, questions = inputs[0]
            return lambda: model.predict(turns, questions[0]), lambda: [
                model.predict(*each) for each in inputs
            ]
        if task == "matching":
            pairs = list(zip(texts, reversed(texts), strict=True))
            return lambda: model.predict(pairs[:1]), lambda: model.predict(pairs)
        return lambda: model.predict(texts[0]), lambda: model.predict(texts)


def measure(name: str, options: list[str], tables: Tables, folder: Path) -> tuple[float, float]:
    """CPU seconds of a prediction for one text and for a thousand."""
    task = MODELS[name].task
    command = ["fit", f"--model={name}", *tables.data_options(task), *FIT, *OPTIONS.get(name, []), *options]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        if zoo_command([*command, f"--run_dir={folder}", f"--data.cache_dir={tables.folder}/cache"]) != 0:
            raise SystemExit(f"{name}: {errors.getvalue()}")
        one, many = tables.questions(task, zoo.load(folder))
        one()  # opens, encodes and compiles
        return statistics.median(cpu_seconds(one) for _ in range(CALLS)), cpu_seconds(many)


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--models", help="names, with commas between; default: all")
    arguments.add_argument("--transformer", help="folder of a transformer, for rows of models that take one")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    rows = [(name, name, []) for name in MODELS if name != "TransformerMatcher"]
    if given.transformer:
        with_it = [f"--model.transformer={given.transformer}"]
        tokens = [*with_it, f"--data.tokenizer={given.transformer}", "--data.characters=false"]
        rows += [
            ("MemoryEnsemble, transformer", "MemoryEnsemble", with_it),
            ("KNNBiLSTM, transformer", "KNNBiLSTM", tokens),
            ("TransformerMatcher", "TransformerMatcher", tokens),
        ]
    selected = given.models and given.models.split(",")
    print("| model | one text, ms | 1,000 texts, s |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        tables = Tables(Path(folder))
        for number, (row, name, options) in enumerate(rows):
            if selected is None or name in selected:
                one, many = measure(name, options, tables, Path(folder, str(number)))
                print(f"| {row} | {1000 * one:.1f} | {many:.2f} |", flush=True)


if __name__ == "__main__":
    main()
