"""Batches of the sampler: every row once an epoch, on any number of processes, texts of similar length together."""

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from datamodules.sampling import BATCHES_PER_BUCKET, LengthBucketSampler

LENGTHS = np.random.default_rng(0).integers(1, 60, 101)


sampler = partial(LengthBucketSampler, lengths=LENGTHS, batch_size=8)


def rows(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("training", [True, False])
def test_every_row_is_in_one_batch_of_an_epoch(training: bool) -> None:
    batch_sampler = sampler(training=training)
    for epoch in range(3):
        batch_sampler.set_epoch(epoch)
        batches = list(batch_sampler)
        assert sorted(rows(batches)) == list(range(101))
        assert len(batches) == len(batch_sampler) == 13
        assert sorted(map(len, batches)) == [5] + [8] * 12


@pytest.mark.parametrize("processes", [2, 3, 13, 20])
def test_evaluation_has_the_same_batches_on_any_number_of_processes(processes: int) -> None:
    alone = list(sampler(training=False))
    steps, padding = [], []
    for process in range(processes):
        own = list(sampler(training=False, process=process, num_processes=processes))
        assert len(own) == -(-13 // processes)  # all processes take the same number of steps
        steps.append([batch for batch in own if batch[0] >= 0])
        padding += [batch for batch in own if batch[0] < 0]
    together = [batch for step in range(len(alone)) for part in steps for batch in part[step : step + 1]]
    assert together == alone
    assert len(padding) == -13 % processes
    for batch in padding:
        # All its rows are marked as padding.
        assert [~row for row in batch] == alone[0]


@pytest.mark.parametrize("processes", [2, 3, 20])
def test_all_processes_train_on_the_same_number_of_batches(processes: int) -> None:
    parts = [list(sampler(training=True, process=p, num_processes=processes)) for p in range(processes)]
    assert {len(part) for part in parts} == {-(-13 // processes)}
    seen = rows([batch for part in parts for batch in part])
    assert set(seen) == set(range(101))
    # Batches are repeated only to complete the last step.
    assert len(seen) - 101 <= 8 * (-13 % processes)


def test_numbers_of_redrawn_rows_contain_the_epoch() -> None:
    def lengths_in(epoch: int) -> NDArray[np.int64]:
        return LENGTHS + epoch

    batch_sampler = sampler(training=True, lengths=lengths_in)
    batch_sampler.set_epoch(3)
    assert sorted(rows(list(batch_sampler))) == list(range(303, 404))
    assert np.array_equal(batch_sampler.lengths, LENGTHS + 3)
    assert list(sampler(training=False, lengths=lengths_in)) == list(sampler(training=False))


def test_lengths_within_a_batch_are_similar() -> None:
    lengths = np.random.default_rng(1).integers(1, 100, 4000)
    batches = list(sampler(batch_size=16, training=True, lengths=lengths))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded / lengths.sum() - 1 < 0.05


def test_training_rows_have_a_random_order_despite_buckets() -> None:
    lengths = np.arange(10 * 8 * BATCHES_PER_BUCKET)
    batches = list(sampler(training=True, lengths=lengths))
    longest = np.array([lengths[batch].max() for batch in batches])
    # Neither the batches nor the buckets are sorted by length.
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.15
    # A batch has rows from all over the table.
    assert np.mean([np.ptp(batch) for batch in batches]) > 8


def test_evaluation_starts_with_the_longest_texts_whatever_seed_and_epoch() -> None:
    first, second = sampler(training=False), sampler(training=False, seed=7)
    assert (np.diff(LENGTHS[rows(list(first))]) <= 0).all()
    second.sampler.set_epoch(3)  # as Lightning does
    assert second.epoch == 3
    assert list(first) == list(second)
