from collections import Counter

import numpy as np
import pytest

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import limit_classes, stratified_split

#: 20 rows of a, 10 of b and 1 of c, mixed.
LABELS = [label for i in range(10) for label in ("a", "b", "a")] + ["c"]


def table(labels: list[str] | None = LABELS) -> Rows:
    return Rows.from_lists([f"text {i}" for i in range(len(LABELS))], labels, source="mine.csv")


def counts(rows) -> dict[str, int]:
    return dict(Counter(LABELS[row] for row in rows))


def test_a_number_of_rows_of_each_class():
    labels = LABELS[:-1]
    train, validation = stratified_split(labels, 3, seed=0)
    assert counts(validation) == {"a": 3, "b": 3}
    assert sorted([*train, *validation]) == list(range(30))
    assert list(train) == sorted(train)
    assert list(validation) == sorted(validation)
    assert train.dtype == validation.dtype == np.int64


def test_a_share_of_each_class(caplog):
    train, validation = stratified_split(LABELS, 0.25, seed=0)
    # 2.5 rows of b are rounded up; the only row of c stays in training, with a warning.
    assert counts(validation) == {"a": 5, "b": 3}
    assert counts(train) == {"a": 15, "b": 7, "c": 1}
    assert "classes with a single row, which stays in training: 1" in caplog.text


def test_a_share_takes_at_least_one_row_and_leaves_one():
    assert counts(stratified_split(["a", "a"], 0.01, seed=0)[1]) == {"a": 1}
    assert len(stratified_split(["a", "a"], 0.99, seed=0)[0]) == 1


def test_the_sample_is_the_same_everywhere():
    # Results are compared across machines and versions, so these rows must never change.
    assert stratified_split(LABELS[:-1], 3, seed=42)[1].tolist() == [1, 7, 8, 14, 17, 25]
    assert stratified_split(LABELS[:-1], 3, seed=43)[1].tolist() != [1, 7, 8, 14, 17, 25]


def test_every_row_is_chosen_about_as_often():
    chosen = np.bincount(
        np.concatenate([stratified_split(["a"] * 10, 5, seed)[1] for seed in range(400)]), minlength=10
    )
    # 200 expected, standard deviation 10.
    assert chosen.min() > 150
    assert chosen.max() < 250


def test_the_sample_of_a_class_does_not_depend_on_others():
    both = stratified_split(["a", "b"] * 10, 3, seed=0)[1]
    # The same rows of a, with other numbers.
    alone = stratified_split(["a"] * 10, 3, seed=0)[1]
    assert np.array_equal(both[both % 2 == 0] // 2, alone)
    assert not np.array_equal(both[both % 2 == 1] // 2, alone)


def test_a_smaller_sample_is_a_part_of_a_larger_one():
    small, large = (set(stratified_split(["a"] * 50, n, seed=0)[1]) for n in (5, 20))
    assert small < large


@pytest.mark.parametrize(("labels", "validation"), [(LABELS, 0), (LABELS, 0.0), ([], 0.1)])
def test_nothing_is_split_off(labels, validation):
    train, split_off = stratified_split(labels, validation, seed=0)
    assert train.tolist() == list(range(len(labels)))
    assert len(split_off) == 0


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (1, "class 'c' has only 1 rows, and training needs at least one"),
        (10, "class 'b' has only 10 rows"),
        *((out_of_range, "give a share") for out_of_range in (-1, 1.0, 2.5, -0.1, float("nan"))),
    ],
)
def test_bad_validation(validation, message):
    with pytest.raises(InputError, match=message):
        stratified_split(LABELS if validation == 1 else LABELS[:-1], validation, seed=0)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (0.1, {"a": 2, "b": 1, "c": 1}),
        ({"a": 2, "b": 5}, {"a": 2, "b": 5, "c": 1}),  # classes without a limit keep their rows
        (1, {"a": 1, "b": 1, "c": 1}),
        (1.0, {"a": 20, "b": 10, "c": 1}),
    ],
)
def test_limits(limits, kept):
    rows = limit_classes(table(), limits, seed=0)
    assert Counter(rows.labels) == kept
    numbers = [int(id_) for id_ in rows.ids]
    assert numbers == sorted(numbers)
    assert list(rows.texts) == [f"text {number}" for number in numbers]


def test_limits_are_seeded():
    limits = {"a": 5, "b": 5}
    assert limit_classes(table(), limits, seed=1).ids == limit_classes(table(), limits, seed=1).ids
    assert limit_classes(table(), limits, seed=1).ids != limit_classes(table(), limits, seed=2).ids


def test_a_limit_and_a_split_of_one_seed_are_independent():
    kept = set(map(int, limit_classes(table(["a"] * 31), 10, seed=0).ids))
    assert kept != set(stratified_split(["a"] * 31, 10, seed=0)[1])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"d": 1}, r"mine.csv: no class 'd'; there are 'a', 'b', 'c'"),
        ({"b": 11}, r"mine.csv: class 'b' has only 10 rows, not 11"),
        (2, "class 'c' has only 1 rows, not 2"),
        ({"b": 0}, "at least one"),
        (0, "at least one"),
        (0.0, "share"),
        (1.5, "share"),
    ],
)
def test_bad_limits(limits, message):
    with pytest.raises(InputError, match=message):
        limit_classes(table(), limits, seed=0)


def test_no_labels():
    with pytest.raises(InputError, match=r"mine.csv: no labels"):
        limit_classes(table(None), 1, seed=0)


def test_groups_of_single_rows_change_nothing():
    random = np.random.default_rng(0)
    labels = [str(label) for label in random.integers(0, 5, 300)]
    for seed in range(3):
        for validation in (0.1, 0.5, 7):
            alone = stratified_split(labels, validation, seed)
            grouped = stratified_split(labels, validation, seed, random.permutation(300))
            assert [side.tolist() for side in alone] == [side.tolist() for side in grouped]


@pytest.mark.parametrize("validation", [0.1, 0.4, 7])
def test_a_group_is_on_one_side(validation):
    random = np.random.default_rng(1)
    labels = [str(label) for label in random.integers(0, 5, 400)]
    groups = random.integers(0, 200, 400)
    train, chosen = stratified_split(labels, validation, 0, groups)
    assert sorted([*train, *chosen]) == list(range(400))
    assert not set(groups[train]) & set(groups[chosen])
    wanted = 5 * validation if isinstance(validation, int) else 400 * validation
    assert len(chosen) == pytest.approx(wanted, abs=5)  # a row a class


def test_a_class_keeps_rows_to_train_on():
    # All rows of b are duplicates of rows of a; c is a single row, repeated.
    labels = ["a"] * 6 + ["b"] * 3 + ["c"] * 5
    train, _ = stratified_split(labels, 0.5, 0, np.array([0, 1, 2, 3, 4, 5, 0, 1, 2, *[6] * 5]))
    assert {labels[row] for row in train} == {"a", "b", "c"}
