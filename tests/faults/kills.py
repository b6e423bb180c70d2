"""Commands that are killed at a random moment and run again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import zoo
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from datamodules.retrieval.dense.embeddings import Embeddings
from tests.faults.campaigns import (
    TEXTS,
    Campaign,
    Random,
    ensemble_options,
    environment,
    fit_options,
    predicted,
    zoo_command,
    zoo_run,
)
from tests.zoo.conftest import sentences, write_table


class Command(NamedTuple):
    """A command that makes something in several steps."""

    #: its arguments, in a folder with tables and two runs.
    arguments: Callable[[Path], list[str]]
    #: what it made, as values to compare.
    result: Callable[[Path], Any]
    #: what must not exist when it is run again.
    made: str | None = None


def _hits(folder: Path) -> Any:
    hits = FolderMemory(folder / "memory", EmbeddedRetriever()).search(TEXTS, 3)
    return hits.scores.round(5).tolist(), hits.memories.ids


def _labels(run: Path) -> Any:
    predictor = zoo.load(run)
    return (
        len(predictor.memory),
        [sorted(each.probabilities) for each in predictor.predict(TEXTS)],
        predicted(run),
    )


COMMANDS: dict[str, Command] = {
    "fit": Command(
        lambda folder: [*fit_options(folder), "--run_dir=new"], lambda folder: predicted(folder / "new")
    ),
    "prepare": Command(
        lambda folder: ["prepare", *fit_options(folder)[1:], "--data.split_seed=3", "--run_dir=new"],
        lambda folder: None,
    ),
    "index": Command(lambda folder: ["index", "--file", "train.csv", "--memory", "memory"], _hits),
    "memory add": Command(
        lambda folder: ["memory", "add", "run", "more.csv"], lambda folder: predicted(folder / "run")
    ),
    "memory add --new_labels": Command(
        lambda folder: ["memory", "add", "ensemble", "new.csv", "--new_labels=true"],
        lambda folder: _labels(folder / "ensemble"),
    ),
    "memory add --relabel": Command(
        lambda folder: ["memory", "add", "ensemble", "corrected.csv", "--relabel=true"],
        lambda folder: _labels(folder / "ensemble"),
    ),
    "memory remove --refit": Command(
        lambda folder: ["memory", "remove", "ensemble", "--file=ids.txt", "--refit=true"],
        lambda folder: _labels(folder / "ensemble"),
    ),
    "memory relabel": Command(
        lambda folder: ["memory", "relabel", "ensemble", "--file=labels.csv", "--refit=true"],
        lambda folder: _labels(folder / "ensemble"),
    ),
    "memory compact": Command(
        lambda folder: ["memory", "compact", "grown"],
        lambda folder: (
            _labels(folder / "grown"),
            len(list((folder / "grown/model/memory").glob("version-*"))),
        ),
    ),
    "memory tune": Command(
        lambda folder: ["memory", "tune", "ensemble", "more.csv"],
        lambda folder: predicted(folder / "ensemble"),
    ),
    "export": Command(
        lambda folder: ["export", "run", "exported"],
        lambda folder: predicted(folder / "exported"),
        "exported",
    ),
    "predict": Command(
        lambda folder: ["predict", "--ckpt_path=run", "--input=more.csv", "--output=out.jsonl"],
        lambda folder: (folder / "out.jsonl").read_text(),
    ),
    "encode": Command(
        lambda folder: [
            "encode",
            "--ckpt_path=run",
            "--input=more.csv",
            "--output=vectors",
        ],
        lambda folder: Embeddings.open(folder / "vectors").vectors.round(5).tolist(),
    ),
}


def kills(folder: Path, server: str | None) -> Campaign:
    """A command is killed at a random moment and run again: it makes what it would have made."""
    start = folder / "start"
    start.mkdir()
    write_table(start / "train.csv", sentences(90, seed=1))
    write_table(start / "more.csv", sentences(30, seed=2))
    topics = [(f"the old {word} of a new kind", "animal") for word in ("heron", "otter", "lynx")]
    write_table(start / "new.csv", topics)
    table = sentences(90, seed=1)
    write_table(start / "corrected.csv", [(text, table[0][1]) for text, _ in table[:5]])
    zoo_run(start, *fit_options(start))
    for run in ("ensemble", "grown"):
        zoo_run(start, *ensemble_options(start), f"--run_dir={run}")
    ids = FolderMemory(Path(zoo.load(start / "ensemble").memory.location()), EmbeddedRetriever()).rows.ids[:4]
    lines = [f"{name},{table[0][1]}" for name in ids]
    (start / "ids.txt").write_text("\n".join(ids) + "\n")
    (start / "labels.csv").write_text("\n".join(["id,label", *lines]) + "\n")
    zoo_run(start, "memory", "add", "grown", "more.csv")
    zoo_run(start, "memory", "remove", "grown", f"--ids=[{ids[0]}]")
    expected = {}
    for name, command in COMMANDS.items():
        work = folder / "whole"
        shutil.copytree(start, work)
        zoo_run(work, *command.arguments(work))
        expected[name] = command.result(work)
        shutil.rmtree(work)

    def case(random: Random, work: Path) -> Callable[[], Any]:
        name = sorted(COMMANDS)[int(random.integers(len(COMMANDS)))]
        command, seconds = COMMANDS[name], float(random.uniform(0.3, 12))

        def run() -> Any:
            shutil.copytree(start, work)
            arguments = command.arguments(work)
            process = subprocess.Popen(
                zoo_command(*arguments), cwd=work, env=environment(work),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            process.wait()
            is_made = command.made is not None and (work / command.made).exists()
            if process.returncode != 0 and not is_made:
                zoo_run(work, *arguments)
            result = command.result(work)
            return "same" if result == expected[name] else f"{name}: {result}"

        return run

    return Campaign(case, "same", is_slow=True)
