"""Small trained runs of the retrieval models, for the tests of what is done with them."""

from pathlib import Path
from typing import Any

from tests.clicks import write_collection
from tests.zoo.conftest import QUIET_TRAINER, Zoo, done, read_jsonl

#: A model and data so small that an epoch takes a tenth of a second.
SMALL = ["--data=ClickthroughDataModule", "--data.document_column=title", "--data.validation_split=0.25"]
SMALL += ["--data.batch_size=16", *QUIET_TRAINER]
#: Of a model that learns by gradient steps.
LEARNING = ["--model.num_trigrams=200", "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.02"]


def options_of(folder: Path, *options: object, model: str = "LSTMRNN", hidden_size: int = 6) -> list[object]:
    """Of `zoo fit` on a collection that is written into a folder, unless it is there."""
    if not (folder / "corpus.jsonl").exists():
        write_collection(folder, documents=40, queries=24, seed=5)
    files = {"corpus_file": "corpus.jsonl", "train_queries": "queries.jsonl", "train_judgements": "qrels.tsv"}
    named = [f"--data.{name}={folder / file}" for name, file in files.items()]
    sizes = [f"--model.hidden_size={hidden_size}"] if model == "LSTMRNN" else []
    sizes += [] if model == "RetrievalBM25" else LEARNING
    return [f"--model={model}", *sizes, *SMALL, *named, "--seed_everything=1", *options]


def trained(zoo_command: Zoo, folder: Path, run_dir: str, *options: object, **more: Any) -> str:
    """The folder of a run of one epoch."""
    given = options_of(folder, "--trainer.max_epochs=1", f"--run_dir={run_dir}", *options, **more)
    done(zoo_command("fit", *given))
    return run_dir


def titles(folder: Path) -> dict[str, str]:
    return {line["_id"]: line["title"] for line in read_jsonl(folder / "corpus.jsonl")}
