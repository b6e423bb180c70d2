"""Commands and servers that are killed or interrupted at a random moment and run again."""

import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import zoo
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from datamodules.retrieval.dense.embeddings import Embeddings
from tests.faults import campaigns
from tests.zoo.conftest import sentences, write_table


def _hits(memory: Path) -> Any:
    hits = FolderMemory(memory, EmbeddedRetriever()).search(campaigns.TEXTS, 3)
    return hits.scores.round(5).tolist(), hits.memories.ids


def _labels(run: Path) -> Any:
    predictor = zoo.load(run)
    labels = [sorted(each.probabilities) for each in predictor.predict(campaigns.TEXTS)]
    return len(predictor.memory), labels, campaigns.predicted(run)


def _vectors(folder: Path) -> Any:
    return Embeddings.open(folder).vectors.round(5).tolist()


FIT = [*campaigns.fit_options(Path(), "new"), "--trainer.max_epochs=20"]
#: Commands of several steps in a folder with tables and runs: what they make, and its values to compare. Others are
#: killed at each of their system calls in `tests/zoo/memory/test_crashes.py`.
COMMANDS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    shlex.join(FIT): ("new", campaigns.predicted),
    shlex.join(["prepare", *FIT[1:], "--data.split_seed=3"]): ("cache", Path.exists),
    "index --file train.csv --memory memory": ("memory", _hits),
    "memory add run more.csv": ("run", campaigns.predicted),
    "memory add ensemble corrected.csv --relabel=true": ("ensemble", _labels),
    "memory remove ensemble --file=ids.txt --refit=true": ("ensemble", _labels),
    "memory relabel ensemble --file=labels.csv --refit=true": ("ensemble", _labels),
    "export run exported": ("exported", campaigns.predicted),
    "predict --ckpt_path=run --input=more.csv --output=out.jsonl": ("out.jsonl", Path.read_text),
    "encode --ckpt_path=run --input=more.csv --output=vectors": ("vectors", _vectors),
}


def kills(folder: Path) -> campaigns.Campaign:
    """A command ends by a signal at a random moment and runs again: it makes what it would have made."""
    start = campaigns.made_run(folder / "start", is_grown=False, has_ensemble=True)
    table = sentences(90, seed=1)
    write_table(start / "corrected.csv", [(text, table[0][1]) for text, _ in table[:5]])
    ids = zoo.load(start / "ensemble").memory.rows.ids[:4]
    (start / "ids.txt").write_text("\n".join(ids) + "\n")
    write_table(start / "labels.csv", [(name, table[0][1]) for name in ids], ("id", "label"))

    @cache
    def expected(command: str) -> Any:
        work, (made, result_of) = folder / "whole", COMMANDS[command]
        shutil.copytree(start, work)
        campaigns.zoo_run(work, *shlex.split(command))
        result = result_of(work / made)
        shutil.rmtree(work)
        return result

    def case(random: campaigns.Random, work: Path) -> Callable[[], Any]:
        command = sorted(COMMANDS)[int(random.integers(len(COMMANDS)))]
        arguments, seconds, whole = shlex.split(command), float(random.uniform(0.3, 12)), expected(command)
        resumes = bool(random.integers(2))
        ending = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[int(random.integers(3))]

        def run() -> Any:
            shutil.copytree(start, work)
            process = subprocess.Popen(
                campaigns.zoo_command(*arguments), cwd=work, env=campaigns.environment(work),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            time.sleep(seconds)
            process.send_signal(ending)
            process.wait()
            made, result_of = COMMANDS[command]
            # Interrupted users go on where the run was, or begin again: the result is the same.
            if (last := work / made / "checkpoints" / "last.ckpt").exists() and resumes:
                arguments[1:] = [f"--ckpt_path={last}"]
            # An export replaces nothing.
            if process.returncode != 0 and not (arguments[0] == "export" and (work / made).exists()):
                campaigns.zoo_run(work, *arguments)
            result = result_of(work / made)
            return "same" if result == whole else f"{command}: {result}"

        return run

    return campaigns.Campaign(case, "same", is_slow=True)


def servers(folder: Path) -> campaigns.Campaign:
    """A server is killed while two clients add rows: those that it acknowledged are there, and more can be added."""
    start = campaigns.made_run(folder / "start", is_grown=False, has_ensemble=True)
    labels = zoo.load(start / "ensemble").model.labels

    def case(random: campaigns.Random, work: Path) -> Callable[[], Any]:
        seconds, workers = float(random.uniform(0, 1.5)), int(random.integers(1, 3))

        def run() -> Any:
            shutil.copytree(start / "ensemble", work / "run")
            acknowledged, (process, url) = list[str](), campaigns.served(work / "run", f"--workers={workers}")

            def add_rows(client: int) -> None:
                for number in count():
                    text = f"client {client} number {number}"
                    campaigns.post(f"{url}/memory/add", {"rows": [{"text": text, "label": labels[0]}]})
                    acknowledged.append(text)

            def add_until_it_ends(client: int) -> None:
                with suppress(OSError, HTTPException):
                    add_rows(client)

            with ThreadPoolExecutor(2) as pool:
                pool.map(add_until_it_ends, range(2))
                while not acknowledged and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(seconds)
                process.kill()
            write_table(work / "more.csv", [("one more row", labels[0])])
            campaigns.zoo_run(work, "memory", "add", "run", "more.csv")
            texts = FolderMemory(work / "run" / "model" / "memory", EmbeddedRetriever()).rows.texts[:]
            lost = {*acknowledged, "one more row"}.difference(texts)
            return "same" if acknowledged and not lost and len({*texts}) == len(texts) else f"lost: {lost}"

        return run

    return campaigns.Campaign(case, "same", is_slow=True)
