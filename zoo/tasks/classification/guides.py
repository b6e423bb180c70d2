"""Texts that a fit learns from and that are no labelled rows: the classes' own words, and texts without labels."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from datamodules.classification import ClassificationDataModule, as_indicators, label_numbers
from datamodules.core.arrays import find_sorted
from datamodules.core.errors import InputError, excerpt, name_some
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval.dense.vector_store import Encode
from datamodules.retrieval.folding import distinct_rows, fold_hashes
from zoo.tasks.classification.held_out import drift

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

log = logging.getLogger("zoo")

#: Class of a text without a label.
UNLABELLED = -1
#: Share of the other classes that a class's text has to be farther from: each of them, and all on average.
_LEAST_SHARE, _LEAST_MEAN_SHARE = 0.5, 0.7
#: Rows that a text is near to where it is like them.
_NEAREST = 3
#: Texts without labels that are drawn from a larger file: more bring nothing where labels are few.
MOST_TEXTS = 3_000


class Guides(NamedTuple):
    """Texts that are no rows, with a class or without one; `read_guides` makes them, `SelfTrained` learns from them.

    The words of classes stay with a model, for a later fit of its members. Texts without labels do not.
    """

    #: m texts.
    texts: list[str]
    #: int64 [m], classes; `UNLABELLED` for none.
    target: NDArray[np.int64]
    #: float32 [m, l], vectors of the encoder; None before they are encoded.
    vectors: Tensor | None = None
    #: there are no labelled rows but these texts, each class of which counts as much as any other.
    stand_alone: bool = False
    #: of those that have a class, vectors [number, V] by kinds of n-grams; None where no member reads them.
    ngrams: list[csr_matrix] | None = None

    @property
    def named(self) -> list[str]:
        """The texts that have a class."""
        return [self.texts[row] for row in np.flatnonzero(self.target != UNLABELLED)]

    def encoded_by(self, encode: Encode) -> Self:
        """The same texts with their vectors by an encoder."""
        return self._replace(vectors=torch.from_numpy(encode(self.texts)) if self.texts else None)

    def without_misleading(self, vectors: NDArray[np.float32], target: NDArray[np.int64]) -> Self:
        """Leave out, and log, texts of classes whose rows, of n with vectors [n, l], are elsewhere; [n] or [n, C].

        A text is like its class if it is nearer to the mean of its rows than to those of most others. Distances count
        relative to those of the other guides, since some classes are near to all texts. If the share of the others is
        low on average, as where names were mixed up, all are left out.
        """
        guides, sets = np.flatnonzero(self.target != UNLABELLED), target > 0
        if target.ndim == 1:
            sets = target[:, None] == np.arange(target.max(initial=0) + 1)
        classes = np.flatnonzero(sets.any(axis=0))
        if len(classes) < 2 or not len(guides):
            return self
        means = np.stack([vectors[sets[:, number]].mean(axis=0) for number in classes])
        nearness = self._directions(guides) @ means.T
        nearness -= nearness.mean(axis=0) if len(guides) > 1 else 0
        of_class = find_sorted(classes, self.target[guides])
        own = nearness[np.arange(len(guides)), of_class][:, None]
        shares = (own > nearness).sum(axis=1) / (len(classes) - 1)
        shares[of_class < 0] = 1.0  # no row shows the class
        is_like = (shares >= _LEAST_SHARE) & (shares.mean() >= _LEAST_MEAN_SHARE)
        if is_like.all():
            return self
        message = "names and texts of classes that their rows are not like are not used"
        return self._without(guides[~is_like], message)

    def without_foreign(self, vectors: NDArray[np.float32]) -> Self:
        """Leave out, and log, texts without labels that are unlike n rows with vectors [n, l], if many are.

        Some of a file of the rows' own kind are, and teach the most; see `drift`.
        """
        unlabelled = np.flatnonzero(self.target == UNLABELLED)
        if len(vectors) < 2 or not len(unlabelled):
            return self
        own, texts = vectors @ vectors.T, self._directions(unlabelled) @ vectors.T
        np.fill_diagonal(own, -np.inf)
        nearest = min(_NEAREST, len(vectors) - 1)
        of_rows, of_texts = (np.sort(each, axis=1)[:, -nearest:].mean(axis=1) for each in (own, texts))
        found = drift(of_rows.tolist(), of_texts.tolist())
        if not found["is_alarm"]:
            return self
        foreign = unlabelled[of_texts < found["threshold"]]
        counts = f"{len(foreign)} of {len(unlabelled)} texts without labels"
        return self._without(foreign, f"{counts} are not used, since they are unlike all rows")

    def _directions(self, texts: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of some texts, encoded before."""
        assert self.vectors is not None
        return np.asarray(self.vectors[texts], np.float32)

    def _without(self, texts: NDArray[np.int64], message: str) -> Self:
        log.info("%s: %s", message, name_some([self.texts[text] for text in texts]))
        kept = np.setdiff1d(np.arange(len(self.texts)), texts)
        vectors = None if self.vectors is None else self.vectors[kept]
        return type(self)([self.texts[text] for text in kept], self.target[kept], vectors)

    def sets(self, num_labels: int) -> NDArray[np.int64]:
        """The classes as sets of labels [m, C] of 0 and 1; those of a text without a label are empty."""
        return as_indicators(self.target[:, None], num_labels)

    def describe(self) -> PlainDict:
        """Plain values of the texts that have a class."""
        return {"texts": self.named, "target": self.target[self.target != UNLABELLED].tolist()}

    @classmethod
    def of(cls, described: PlainDict) -> Self:
        """The texts that `describe` described."""
        return cls(described["texts"], np.array(described["target"], np.int64))


def words_of(label: str) -> str:
    """The words of a label: two of `card_arrival` and `cardArrival`; an empty string for a number or a code (`c1`)."""
    parts = re.sub(r"[\W_]+", " ", re.sub(r"([a-z])([A-Z])", r"\1 \2", label)).split()
    return " ".join(parts) if any(len(re.findall(r"[^\W\d]", part)) > 1 for part in parts) else ""


def read_guides(data: ClassificationDataModule, labels: Sequence[str], unlabelled: bool = True) -> Guides:
    """The words of the labels, the texts of `data.label_texts` and, if wanted, those of `data.unlabelled_file`.

    Raises:
        InputError: a text of a label is empty, or of an unknown label or two; no text without a label is left.
    """
    words = [words_of(label) for label in labels]
    shared = Counter(each.casefold() for each in words)
    target = [number for number, each in enumerate(words) if each and shared[each.casefold()] == 1]
    texts = [words[number] for number in target]
    if data.options.label_texts is not None:
        one_label = {"label_column": data.options.label_column, "label_separator": None, "id_column": None}
        rows = read_table(data.options.label_texts, **data.table_columns() | one_label)
        for row, (text, number) in enumerate(zip(rows.texts, label_numbers(rows, labels), strict=True), 1):
            if number < 0:
                label = excerpt(rows.label(row - 1))
                raise InputError(f"{rows.source}: row {row}: {label!r} is no label of the training table")
            if not text:
                raise InputError(f"{rows.source}: row {row} has no text; write one, or remove the row")
        if not data.options.is_described:
            # Held-out rows would be answered by their own texts; rows of later tables are compared with the others.
            keys, seen = fold_hashes(rows.texts), [] if data.seen is None else [data.seen]
            kept = _new_rows(data, rows, keys, np.arange(len(rows)))
            rows, data.seen = rows.select(kept), np.unique(np.concatenate([*seen, keys[kept]]))
        texts += rows.texts[:]
        target += label_numbers(rows, labels).tolist()
    owners: dict[str, int] = {}
    for text, number in zip(texts, target, strict=True):
        key = text.casefold().strip()
        if (owner := owners.setdefault(key, number)) != number:
            both = name_some([labels[each] for each in sorted((owner, number))])
            raise InputError(f"data.label_texts: {excerpt(key)!r} is a text of the labels {both}; name one")
    others = _unlabelled_texts(data) if unlabelled and data.options.unlabelled_file is not None else []
    return Guides([*texts, *others], np.array([*target, *[UNLABELLED] * len(others)], np.int64))


def _unlabelled_texts(data: ClassificationDataModule) -> list[str]:
    """Distinct texts of the file that are new, at most `MOST_TEXTS`."""
    columns = {**data.table_columns(), "label_column": None, "id_column": None}
    rows = read_table(str(data.options.unlabelled_file), **columns)
    keys = fold_hashes(rows.texts)
    chosen = _new_rows(data, rows, keys, distinct_rows(rows.texts, keys))
    if not len(chosen):
        raise InputError(f"{rows.source}: no text that is new; change or omit data.unlabelled_file")
    if len(chosen) > MOST_TEXTS:
        log.info("%s: %d of %d texts are drawn", rows.source, MOST_TEXTS, len(chosen))
        chosen = np.sort(np.random.default_rng(data.seed).choice(chosen, MOST_TEXTS, replace=False))
    return list(rows.texts.take(chosen))


def _new_rows(
    data: ClassificationDataModule, rows: Rows, keys: NDArray[np.uint64], chosen: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The chosen rows, with these keys, whose texts are in no table of the fit and the test; others are logged."""
    tables = {name: data.split(name).rows for name in ("train", "validation")}
    if data.options.tables["test"] is not None or data.options.is_split_off("test"):
        tables["test"] = data.read_tables(["test"])["test"]
    for name, table in tables.items():
        is_known = np.isin(keys[chosen], fold_hashes(table.texts))
        if count := int(is_known.sum()):
            log.info("%s: %d texts are %s rows; they are skipped", rows.source, count, name)
        chosen = chosen[~is_known]
    return chosen
