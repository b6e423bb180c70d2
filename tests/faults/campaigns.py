"""Campaigns: damaged files, each followed by a user's next step."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.pairs import read_pairs
from datamodules.corpora.table import read_table
from datamodules.text.vectors import read_vectors
from tests.zoo.conftest import SMALL, pair_rows, sentences, write_pairs, write_table
from tests.zoo.ensemble.conftest import SMALL as SMALL_ENSEMBLE

Random = np.random.Generator


class Campaign(NamedTuple):
    """Cases of one kind of fault."""

    #: makes a case of random numbers and an empty folder; the returned function runs in its own process.
    case: Callable[[Random, Path], Callable[[], Any]]
    #: result of an undamaged run; None where damage makes other valid contents, so that any result is right.
    expected: Any = None
    #: a case takes seconds.
    is_slow: bool = False


def damage(contents: bytes, random: Random) -> bytes:
    """Contents with a bit flipped, or with a piece that is lost, doubled or replaced."""
    if not contents:
        return b"\0"
    at = int(random.integers(len(contents)))
    piece = int(random.integers(1, 1 + min(200, len(contents))))
    kind = random.integers(6)
    if kind == 0:
        return contents[:at]
    if kind == 1:
        return contents[:at] + contents[at + piece :]
    if kind == 2:
        return contents[: at + piece] + contents[at:]
    if kind == 3:
        return contents[:at] + random.bytes(piece) + contents[at + piece :]
    if kind == 4:
        return contents[:at] + bytes([contents[at] ^ 1 << int(random.integers(8))]) + contents[at + 1 :]
    strange = [*(bytes([byte]) for byte in b'\0"\r\n\t,\xff'), b"\xed\xa0\x80", "\u2028".encode(), b"-1"]
    strange += [b"1e999"]
    return contents[:at] + strange[int(random.integers(len(strange)))] + contents[at:]


def damage_one(folder: Path, pattern: str, random: Random) -> None:
    """Damage or delete a file below a folder."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file() and path.suffix != ".lock")
    file = files[int(random.integers(len(files)))]
    if random.random() < 0.1:
        file.unlink()
        return
    contents = damage(file.read_bytes(), random)
    file.unlink()  # it may be linked to the undamaged one
    file.write_bytes(contents)


def readers(folder: Path) -> Campaign:
    """Every reader, on damaged files."""
    pairs = sentences(40, seed=1)
    write_table(folder / "table.csv", pairs)
    (folder / "table.csv.gz").write_bytes(gzip.compress((folder / "table.csv").read_bytes()))
    import pandas

    table = pandas.DataFrame(pairs, columns=["text", "label"])
    table.to_json(folder / "table.jsonl", orient="records", lines=True)
    table.to_csv(folder / "table.tsv", sep="\t", index=False)
    table.to_parquet(folder / "table.parquet")
    write_pairs(folder / "pairs.tsv", pair_rows(10, seed=1))
    numbers = np.random.default_rng(0).normal(size=(30, 5)).round(3)
    lines = (f"w{i} {' '.join(map(str, row))}\n" for i, row in enumerate(numbers))
    (folder / "vectors.txt").write_text("".join(lines))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    def case(random: Random, work: Path) -> Callable[[], Any]:
        name = sorted(whole)[int(random.integers(len(whole)))]
        work.mkdir()
        (work / name).write_bytes(damage(whole[name], random))
        if name == "pairs.tsv":
            return lambda: len(read_pairs(work / name, "first", "second", "label").target)
        if name == "vectors.txt":
            return lambda: len(read_vectors(work / name, most_frequent=100).rows)
        return lambda: len(read_table(work / name).texts[:])

    return Campaign(case)


TEXTS = [text for text, _ in sentences(8, seed=3)]


def zoo_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "zoo", *map(str, arguments)]


def environment(folder: Path) -> dict[str, str]:
    """Environment of a command, with its own cache."""
    own = {"ZOO_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    return {**os.environ, **own}


def zoo_run(folder: Path, *arguments: object) -> None:
    command, own = zoo_command(*arguments), environment(folder)
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    if done.returncode == 2 and done.stderr.strip().splitlines()[-1].startswith("zoo: error: "):
        raise InputError(done.stderr.strip().splitlines()[-1])
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def served(folder: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """A started server of a run, and its address."""
    process = subprocess.Popen(
        zoo_command("serve", folder, "--port=0", *options), env=environment(folder.parent),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().split()[1]


def post(address: str, body: object) -> Any:
    """The answer of a server; an `HTTPError` if it refuses."""
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def fit_options(
    folder: Path, run_dir: str, model: Sequence[str] = (*SMALL, "--model.features=M5")
) -> list[str]:
    """A small run, by default of a model that reads memories."""
    options = [f"--data.train_file={folder / 'train.csv'}", "--trainer.max_epochs=1", "--seed_everything=1"]
    return ["fit", *model, *options, f"--run_dir={run_dir}"]


def made_run(folder: Path, is_grown: bool = True, has_ensemble: bool = False) -> Path:
    """Make a run, perhaps one whose memory has grown, and one of a `MemoryEnsemble`, once for all cases."""
    folder.mkdir()
    write_table(folder / "train.csv", sentences(90, seed=1))
    write_table(folder / "more.csv", sentences(30, seed=2))
    zoo_run(folder, *fit_options(folder, "run"))
    if is_grown:
        zoo_run(folder, "memory", "add", "run", "more.csv")
    if has_ensemble:
        zoo_run(folder, *fit_options(folder, "ensemble", SMALL_ENSEMBLE))
    return folder


def predicted(run: Path) -> list[tuple[str, list[float]]]:
    predictions = zoo.load(run).predict(TEXTS)
    return [(row.label, [round(value, 6) for value in row.probabilities.values()]) for row in predictions]


def checkpoints(folder: Path) -> Campaign:
    """A run resumed from damaged checkpoints writes the model that whole ones give, or is refused."""
    whole = made_run(folder / "whole")

    def resumed(run: Path) -> list[tuple[str, list[float]]]:
        shutil.rmtree(run / "model")
        zoo_run(whole, "fit", f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}")
        return predicted(run)

    shutil.copytree(whole / "run", folder / "resumed")
    expected = resumed(folder / "resumed")

    def case(random: Random, work: Path) -> Callable[[], Any]:
        shutil.copytree(whole / "run", work)
        damage_one(work, "*.ckpt", random)
        return lambda: resumed(work)

    return Campaign(case, expected, is_slow=True)


def models(folder: Path) -> Campaign:
    """A model folder with a damaged file, in its memory or outside, has the same predictions, or is refused."""
    run = made_run(folder / "whole") / "run"

    def case(random: Random, work: Path) -> Callable[[], Any]:
        shutil.copytree(run, work, copy_function=os.link)
        # Most files are the memory's.
        inside = work / "model" / "memory"
        outside = inside.rename(folder / "memory") if random.random() < 0.5 else None
        damage_one(work / "model" if outside else inside, "*", random)
        if outside:
            outside.rename(inside)
        return lambda: predicted(work)

    return Campaign(case, predicted(run))


def caches(folder: Path) -> Campaign:
    """A damaged cache returns the batches of a whole one, or is refused."""
    from datamodules import ClassificationDataModule

    write_table(folder / "train.csv", sentences(90, seed=1))

    def batches(cache: Path) -> list[Any]:
        data = ClassificationDataModule(
            train_file=str(folder / "train.csv"), validation_split=0.2, num_memories=3, cache_dir=str(cache)
        )
        data.seed = 0
        data.prepare_data()
        data.setup("fit")
        loaders = (data.train_dataloader(), data.val_dataloader())
        return [
            [field.tolist() for field in batch if field is not None] for loader in loaders for batch in loader
        ]

    whole = folder / "whole"
    expected = batches(whole)
    shutil.copytree(whole, folder / "kept")

    def case(random: Random, work: Path) -> Callable[[], Any]:
        # At the same path: plans have absolute paths.
        shutil.rmtree(whole)
        shutil.copytree(folder / "kept", whole)
        damage_one(whole, "*", random)
        return lambda: batches(whole)

    return Campaign(case, expected)
