"""Seeded, stratified samples of a table: validation rows, and fewer rows a class.

Each class has its own stream of PCG64, which numpy promises to keep: the sample of a class does not depend on other
classes, and a smaller sample is a part of a larger one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows

log = logging.getLogger(__name__)


def stratified_split(
    labels: Sequence[str], validation: int | float, seed: int, groups: NDArray[np.integer] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose validation rows from each class; 0 = none.

    An int takes this number of rows of each class, a float below 1 that share of each class (to the nearest row, but at
    least one; a class of a single row stays in training). Groups [n] are equal for rows that must be on one side, such
    as duplicates. Returns the ascending row numbers for training and for validation.
    """
    if not validation >= 0 or (isinstance(validation, float) and validation >= 1):
        raise InputError(f"validation {validation}: give a share between 0 and 1, or a whole number of rows")
    if not validation:
        return np.arange(len(labels)), np.arange(0)
    if groups is None:
        groups = np.arange(len(labels))
    # The number of each row's group; the size and the first row of each group.
    _, first, group, size = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    chosen = np.zeros(len(size), dtype=bool)
    classes, single = _rows_by_class(labels), 0
    for label, rows in classes.items():
        if isinstance(validation, float):
            count = min(_share(validation, len(rows)), len(rows) - 1)
            single += not count
        else:
            count = validation
            if count >= len(rows):
                problem = f"class {label!r} has only {len(rows)} rows, and training needs at least one"
                raise InputError(f"validation {validation}: {problem}; take fewer rows")
        order = _sample(rows, len(rows), label, seed, "validation")
        # A group with several labels belongs to the class of its first row, and counts for that class alone.
        own = group[order[first[group[order]] == order]]
        chosen[own[_nearest(size[own], count)]] = True
    for rows in classes.values():
        # Groups of other classes, or one large group, may have taken all rows of a class.
        if chosen[group[rows]].all():
            chosen[group[rows]] = False
    if single:
        log.warning("classes with a single row, which stays in training: %d", single)
    is_validation = chosen[group]
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def _nearest(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose groups of these sizes, in their order, so that they have nearly `count` rows."""
    taken, missing = [], count
    for position, size in enumerate(sizes.tolist()):
        if missing <= 0:
            break
        if size <= 2 * missing:  # the excess would be at most the rows that are missing now
            taken.append(position)
            missing -= size
    return np.array(taken, np.int64)


def limit_classes(rows: Rows, limits: int | float | Mapping[str, int], seed: int) -> Rows:
    """Keep a seeded sample of each class, in the table's order.

    An int keeps this number of rows of each class, a float up to 1 that share of each class (to the nearest row, but at
    least one), a mapping this number of rows of the classes that it names and all rows of the others.
    """
    if rows.labels is None:
        raise InputError(f"{rows.source}: no labels; name a label column to choose rows by class")
    classes = _rows_by_class(rows.labels)
    if isinstance(limits, Mapping):
        if unknown := [label for label in limits if label not in classes]:
            named = ", ".join(map(repr, classes))
            raise InputError(f"{rows.source}: no class {unknown[0]!r}; there are {named}")
    elif isinstance(limits, float) and not 0 < limits <= 1:
        raise InputError(f"class limit {limits}: give a share up to 1, or a whole number of rows")
    kept = []
    for label, members in classes.items():
        if isinstance(limits, Mapping):
            count = limits.get(label, len(members))
        else:
            count = _share(limits, len(members)) if isinstance(limits, float) else limits
        if count < 1:
            raise InputError(f"class limit {count} of {label!r}: keep at least one row")
        if count > len(members):
            problem = f"class {label!r} has only {len(members)} rows, not {count}"
            raise InputError(f"{rows.source}: {problem}; lower its limit")
        kept.append(_sample(members, count, label, seed, "limit"))
    return rows.select(np.sort(np.concatenate(kept)))


def _rows_by_class(labels: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Return the ascending row numbers of each class, classes in alphabetical order."""
    codes_of = {label: code for code, label in enumerate(sorted(set(labels)))}
    codes = np.fromiter((codes_of[label] for label in labels), dtype=np.int64, count=len(labels))
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(codes_of)))
    return dict(zip(codes_of, np.split(order, ends)[:-1], strict=True))


def _share(share: float, num_rows: int) -> int:
    return max(1, int(share * num_rows + 0.5))


def _sample(rows: NDArray[np.int64], count: int, label: str, seed: int, purpose: str) -> NDArray[np.int64]:
    """Draw `count` rows of a class. The purpose makes a limit and a split with the same seed independent."""
    name = hashlib.sha256(f"{purpose}\0{label}".encode()).digest()
    stream = np.random.PCG64(np.random.SeedSequence([seed, int.from_bytes(name, "little")]))
    return rows[np.argsort(stream.random_raw(len(rows)), kind="stable")[:count]]
