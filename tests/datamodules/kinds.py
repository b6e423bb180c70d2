"""A small data module of each kind, with tables of its own: for the tests that every kind must pass."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import torch
from pytorch_lightning.trainer.states import TrainerFn

from datamodules import (
    ClassificationDataModule,
    ClickthroughDataModule,
    DialogueDataModule,
    MatchingDataModule,
)
from datamodules.base import DataModule
from tests.clicks import write_collection
from tests.datamodules.corpus import LABELS, WORDS, labelled_texts, write_csv
from tests.dialogues import made_up, write_lines, write_published

DataT = TypeVar("DataT", bound=DataModule)


class Kind(Generic[DataT]):
    """Makes data modules of one kind from the same tables.

    Attributes:
        data_type: class of the data modules.
        folder: of the caches.
        options: tables and other options.
    """

    def __init__(self, data_type: type[DataT], folder: Path, **options: Any) -> None:
        self.data_type, self.folder, self.options = data_type, folder, options

    def make(self, cache: str = "cache", **options: Any) -> DataT:
        """A data module that is not prepared; `options` override the kind's."""
        return self.data_type(**{"cache_dir": str(self.folder / cache), **self.options, **options})

    def prepared(self, cache: str = "cache", **options: Any) -> DataT:
        """A data module that is ready for batches."""
        return prepared(self.make(cache, **options))


def prepared(data: DataT) -> DataT:
    """Make a data module ready for batches."""
    data.prepare_data()
    data.setup("fit")
    return data


def classification(folder: Path) -> Kind[ClassificationDataModule]:
    """Three tables; the training rows hold repeated texts, some under two labels."""
    texts, labels = labelled_texts(60, seed=0)
    texts += texts[:10]
    labels += [LABELS[i % 2] for i in range(10)]
    return Kind(
        ClassificationDataModule,
        folder,
        num_memories=3,
        batch_size=8,
        train_file=write_csv(folder / "train.csv", texts, labels),
        validation_file=write_csv(folder / "validation.csv", *labelled_texts(17, seed=1)),
        test_file=write_csv(folder / "test.csv", *labelled_texts(11, seed=2)),
    )


def matching(folder: Path) -> Kind[MatchingDataModule]:
    """Three tables of questions with graded candidates."""
    return Kind(
        MatchingDataModule,
        folder,
        batch_size=4,
        train_file=write_pairs(folder / "train.csv", 30, seed=0),
        validation_file=write_pairs(folder / "validation.csv", 9, seed=1),
        test_file=write_pairs(folder / "test.csv", 7, seed=2),
    )


def clickthrough(folder: Path) -> Kind[ClickthroughDataModule]:
    """A collection, of whose queries a fifth are validation queries."""
    collection = write_collection(folder / "clicks", documents=50, queries=30, seed=2)
    return Kind(
        ClickthroughDataModule, folder, document_column="title", validation_split=0.2, **collection.options()
    )


def dialogue(folder: Path) -> Kind[DialogueDataModule]:
    """Two tables of dialogues."""
    return Kind(
        DialogueDataModule,
        folder,
        layout="hmn4qa",
        batch_size=4,
        train_file=str(write_published(folder / "train.txt", made_up(12, seed=3))),
        validation_file=str(write_published(folder / "validation.txt", made_up(5, seed=4))),
    )


#: Name -> kinds of folders and files in the cache of `make_kind`.
PARTS = {
    "classification": "rows tokens neighbors memory marks vocabulary plan",
    "matching": "pairs tokens neighbors memory pool marks vocabulary plan",
    "clickthrough": "judged rows tokens neighbors memory marks vocabulary plan",
    "dialogue": "dialogues tokens reading vocabulary plan",
}


def make_kind(name: str, folder: Path) -> Kind[Any]:
    """A kind by its name, with options that make it use all parts of the preparation."""
    makers: dict[str, tuple[Callable[[Path], Kind[Any]], dict[str, Any]]] = {
        "classification": (classification, {}),
        "matching": (matching, {"negatives": "retrieved", "candidates": "retrieved"}),
        "clickthrough": (clickthrough, {"num_hits": 5, "negatives": ["random", "retrieved"]}),
        "dialogue": (dialogue, {"turns_kept": "retrieved", "max_turns": 2}),
    }
    make, options = makers[name]
    kind = make(folder)
    kind.options |= options
    return kind


def write_pairs(path: Path, questions: int, seed: int) -> str:
    """Questions with 1 to 6 candidates of grades 0 to 2; some have no positive, some candidates are shared."""
    rng = random.Random(seed)
    lines, shared = ["first,second,label"], [" ".join(rng.choices(WORDS, k=4)) for _ in range(5)]
    for number in range(questions):
        question = " ".join([f"q{seed}x{number}", *rng.choices(WORDS, k=rng.randint(1, 5))])
        for _ in range(rng.randint(1, 6)):
            own = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
            text = rng.choice(shared) if rng.random() < 0.2 else own
            lines.append(f"{question},{text},{rng.choice((0, 0, 0, 1, 2))}")
    return str(write_lines(path, *lines))


def training_batches(data: DataModule, epoch: int = 0) -> list[Any]:
    loader = data.train_dataloader()
    loader.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
    return list(loader)


def all_batches(data: DataModule) -> list[Any]:
    """The batches of all splits."""
    loaders = [training_batches(data), data.val_dataloader()]
    if data.options.tables["test"] is not None:
        loaders.append(data.test_dataloader())
    return [batch for loader in loaders for batch in loader]


def are_equal(batches: Any, others: Any) -> bool:
    """Return whether all fields are equal, for which unknown grades (nan) are numbers."""
    if isinstance(batches, torch.Tensor):
        return torch.equal(batches.nan_to_num(-1), others.nan_to_num(-1))
    if batches is None:
        return others is None
    return all(are_equal(*pair) for pair in zip(list(batches), list(others), strict=True))


def set_stage(data: DataModule, function: TrainerFn, rank: int = 0, world_size: int = 1) -> None:
    """Make a data module believe that a trainer fits, validates or tests, in one of several processes."""
    state = SimpleNamespace(fn=function)
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        state=state, global_rank=rank, world_size=world_size, lightning_module=None
    )
