"""Batches of every kind of data: the same in any number of workers and processes, and in a resumed run."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.datamodules.kinds import Kind, all_batches, are_equal, classification


def test_workers_make_the_same_batches(kind: Kind[Any]) -> None:
    alone = list(kind.prepared().train_dataloader())
    assert are_equal(kind.prepared(num_workers=2).train_dataloader(), alone)


@pytest.mark.slow
def test_spawned_workers_make_the_same_batches(tmp_path: Path) -> None:
    kind = classification(tmp_path)
    alone = list(kind.prepared().train_dataloader())
    loader = kind.prepared(num_workers=2).train_dataloader()
    loader.multiprocessing_context = "spawn"
    assert are_equal(loader, alone)


def test_a_spawned_worker_receives_names_of_files_and_maps_them(kind: Kind[Any]) -> None:
    data = kind.prepared()
    split = data.split("train")
    assert len(pickle.dumps(split)) < 2500  # and not the rows
    copied = pickle.loads(pickle.dumps(data.dataset(split)))
    assert are_equal([copied.__getitems__([3, 1, ~2])], [data.dataset(split).__getitems__([3, 1, ~2])])


def test_a_negative_index_is_padding(kind: Kind[Any]) -> None:
    data = kind.prepared()
    dataset = data.dataset(data.split("validation"))
    real, padding = dataset.__getitems__([3, 0, 2]), dataset.__getitems__([~3, ~0, ~2])
    assert (real.weight == 1).all()
    assert (padding.weight == 0).all()
    assert are_equal([real._replace(weight=None)], [padding._replace(weight=None)])


def test_only_the_seed_and_the_epoch_decide_the_training_batches(kind: Kind[Any]) -> None:
    def batches(seed: int, epoch: int, after: tuple[int, ...] = ()) -> list[Any]:
        data = kind.prepared()
        data.seed = seed
        loader = data.train_dataloader()
        for number in (*after, epoch):
            loader.batch_sampler.set_epoch(number)  # type: ignore[union-attr]
            result = list(loader)
        return result

    first = batches(seed=0, epoch=3)
    assert are_equal(batches(seed=0, epoch=3, after=(0, 1)), first)
    for other in (batches(seed=0, epoch=4), batches(seed=1, epoch=3)):
        assert sum(len(batch.row) for batch in other) == sum(len(batch.row) for batch in first)
        assert [batch.row.tolist() for batch in other] != [batch.row.tolist() for batch in first]


def test_batches_have_the_sizes_of_the_options(kind: Kind[Any]) -> None:
    data = kind.prepared(batch_size=3, eval_batch_size=2)
    for dataset, loader, size in (
        (data.dataset(data.split("train"), training=True), data.train_dataloader(), 3),
        (data.dataset(data.split("validation")), data.val_dataloader(), 2),
    ):
        assert len(list(loader)) == len(loader) == -(-len(dataset) // size)
    assert all_batches(data)
