"""`zoo suggest`: the texts of a table whose labels would help most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from callbacks.chart import Cell
from datamodules.core.errors import InputError, check_count, visible
from datamodules.core.outputs import check_output, write_csv
from datamodules.corpora.readers import read_blocks
from datamodules.corpora.records import Columns, TextColumn
from datamodules.corpora.rows import Texts
from datamodules.corpora.table import read_table
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.text_vectors import TextVectors
from datamodules.retrieval.folding import distinct_rows, fold, fold_hashes
from zoo.loading import load
from zoo.search.index import BLOCK
from zoo.tasks.classification.metric_learning import using
from zoo.tasks.classification.predictor import ClassificationPredictor, Prediction
from zoo.tasks.records import AT_RANDOM

#: Texts that are compared, drawn from a larger table.
_MOST_TEXTS = 20_000
#: Share of the texts that is drawn at random: their labels measure a model, which those of chosen texts do not.
_RANDOM = 0.2
#: Texts among which one is chosen: those that a model is most unsure of, for each that is wanted.
_UNSURE = 10
#: Labelled rows from which the accuracy of further ones is extrapolated, those of them that are not of the most
#: frequent class, and those that are read at most.
_FEWEST_ROWS, _FEWEST_OTHERS, _MOST_ROWS = 100, 20, 1_000
#: Share of the accuracy of any number of labels with which labelling may end.
_ENOUGH = 0.95
_COLUMNS = ["id", "text", "label", "drawn", "likely_label", "probability", "memory_label", "memory_text"]


def suggest(
    input: str,
    ckpt_path: str | None = None,
    encoder: str | None = None,
    n: int = 50,
    text_column: TextColumn = "text",
    output: str = "to_label.csv",
) -> None:
    """Write the texts of a table to label next: typical ones that differ, and those that a model is unsure of.

    The texts that the model is most unsure of, ten times as many as wanted, are divided into groups of similar ones
    (k-means of their vectors); the text next to the center of each group is chosen. A fifth is drawn at random in its
    place. Fill the column `label` of the written table. `zoo fit --data.train_file` takes it as it is, and so does
    `zoo memory add`. `likely_label`, and the memory nearest to the text, are the model's. With 100 labelled rows or
    more, the share is printed that they reach of the accuracy that any number would have.

    Args:
        input: a table of texts (CSV, TSV, JSONL, Parquet, hub:NAME); those in the model's memory are left out.
        ckpt_path: the model that has learned from the labels so far; null: there are none.
        encoder: for a model without an encoder, or without a model, a sentence encoder: its name on the Hub, or its
            folder; null: texts are similar if they share words.
        n: number of texts.
        text_column: name or number of the text, or several, which are joined.
        output: the table, a CSV file.
    """
    check_count("n", n, _MOST_TEXTS)
    table = check_output(output, [input], ".csv")
    earlier = read_blocks(output, Columns(["label"])) if table.exists() else iter(())
    if any(any(block.strings(0)) for block in earlier):
        raise InputError(f"--output {output}: has labels, which would be lost; name another file")
    model = None if ckpt_path is None else load(ckpt_path)
    if model is not None and not isinstance(model, ClassificationPredictor):
        raise InputError(f"--ckpt_path {ckpt_path}: gives no labels; name a classifier")
    rows = read_table(input, text_column, label_column=None)
    keys = fold_hashes(rows.texts)
    pool = distinct_rows(rows.texts, keys)
    if model is not None and isinstance(model.memory, FolderMemory):
        pool = pool[model.memory.opened.lookup.first_rows(keys[pool]) < 0]
    if len(pool) < n:
        raise InputError(f"{input}: has {len(pool)} different texts outside of the memory; use --n up to it")
    picked = pick(rows.texts, pool, n, np.random.default_rng(0), model, encoder)
    shown = rows.texts.take([row for row, _ in picked])
    # Memories are looked up for these texts alone.
    likely = [None] * n if model is None else model.predict(shown, memories=1)
    lines = [_line(*each, text, found) for each, text, found in zip(picked, shown, likely, strict=True)]
    write_csv(table, [_COLUMNS, *lines], "--output")  # as they are: the table is read again
    chance = int(_RANDOM * n)
    print(f"{visible(output)}: {n} of {len(pool):,} texts, {chance} at random; fill the column label")
    if model is not None and (reached := _reached(model, encoder)) > 0:
        end = "; more are hardly worth it" if reached >= _ENOUGH else ""
        print(f"the labels so far reach about {reached:.0%} of the accuracy that any number would have{end}")


def pick(
    texts: Texts,
    rows: NDArray[np.int64],
    n: int,
    random: np.random.Generator,
    model: ClassificationPredictor | None = None,
    encoder: str | None = None,
    most: int = _MOST_TEXTS,
) -> list[tuple[int, str]]:
    """Pick n of the given rows of a table to label next, each with the way: `by model` or `at random`.

    At most `most` rows are compared. These, the share at random, and the order are drawn.
    """
    if len(rows) > most:
        rows = np.sort(random.choice(rows, most, replace=False))
    compared, at_random = texts.take(rows), int(_RANDOM * n)
    found, vectors = ([], None) if model is None else model.predict_and_encode(compared)
    if vectors is None or encoder is not None:
        vectors = _vectors(compared, encoder)
    # First, so that they stand for all rows, and not for those that the model is sure of.
    drawn, others = np.split(random.permutation(len(rows)), [at_random])
    if model is not None:
        others = others[np.argsort([-_doubt(found[row]) for row in others])[: _UNSURE * (n - at_random)]]
    chosen = others[choose(vectors[others], n - at_random)]
    numbers = rows[np.concatenate([chosen, drawn])].tolist()
    ways = ["by model"] * len(chosen) + [AT_RANDOM] * at_random
    return [(numbers[place], ways[place]) for place in random.permutation(n)]


def share_reached(vectors: NDArray[np.float32], labels: Sequence[str]) -> float:
    """Cross-validated accuracy of n texts [n, l] as a share of that of any number, by 1 / sqrt(n); 0 of one class."""
    from sklearn.linear_model import RidgeClassifier
    from sklearn.model_selection import RepeatedKFold, learning_curve

    if len(labels) - max(Counter(labels).values()) < _FEWEST_OTHERS:
        return 0.0
    folds, ridge = RepeatedKFold(n_splits=5, n_repeats=10, random_state=0), RidgeClassifier(alpha=0.3)
    given = {"train_sizes": [0.5, 1.0], "cv": folds, "shuffle": True, "random_state": 0}
    half, whole = learning_curve(ridge, vectors, labels, **given)[2].mean(axis=1)
    return 0.0 if whole <= 0 else float(whole / (whole + max(0.0, whole - half) / (2**0.5 - 1)))


def _reached(model: ClassificationPredictor, encoder: str | None) -> float:
    """See `share_reached`, of the rows of a model's memory; 0 where they are few, or sets of labels."""
    if not isinstance(model.memory, FolderMemory) or model.model.spec.label_separator is not None:
        return 0.0
    memory, network = model.memory, model.model.network
    distinct = distinct_rows(memory.rows.texts, memory.opened.lookup.keys_by_row())
    rows = np.random.default_rng(0).permutation(distinct)
    drawn = memory.rows.select(rows[:_MOST_ROWS])
    if drawn.labels is None or len(drawn) < _FEWEST_ROWS:
        return 0.0
    if encoder is not None or model.model.vector_size is None or not hasattr(network, "encoder_before"):
        return share_reached(_vectors(drawn.texts[:], encoder), drawn.labels)
    with using(network.encoder, network.encoder_before or {}):  # vectors of a tuned encoder know the labels
        return share_reached(model.encode(drawn.texts[:]), drawn.labels)


def choose(vectors: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    """The rows [n] nearest to the centers of n clusters of vectors [N, l] (k-means)."""
    from sklearn.cluster import MiniBatchKMeans

    clusters = MiniBatchKMeans(n, n_init=3, batch_size=1024, random_state=0)
    centers = clusters.fit(vectors).cluster_centers_
    likeness = 2 * vectors @ centers.T - (centers**2).sum(axis=1)
    chosen = np.empty(n, np.int64)
    for cluster in range(n):
        chosen[cluster] = row = likeness[:, cluster].argmax()
        likeness[row] = -np.inf  # two centers may be equal
    return chosen


def _doubt(prediction: Prediction) -> float:
    """1 - the lead of the most probable label over the next; of a set, the probability that it is wrong."""
    if prediction.of_labels is not None:
        return 1.0 - prediction.probability
    second, first = sorted([0.0, *prediction.probabilities.values()])[-2:]
    return 1.0 - first + second


def _line(row: int, drawn: str, text: str, found: Prediction | None) -> list[Cell]:
    nearest = [(memory.label, memory.text) for memory in ([] if found is None else found.memories)]
    likely = ("", "") if found is None else (found.label, round(found.probability, 4))
    return [row, text, "", drawn, *likely, *(nearest or [("", "")])[0]]


def _vectors(texts: list[str], encoder: str | None) -> NDArray[np.float32]:
    """Vectors [n, l], of length 1, by an encoder or by the words."""
    if encoder is not None:
        return TextVectors(DenseRanking(encoder), 256, "cpu").of(texts, BLOCK)
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    # Every text has a word: a few texts of signs alone are compared, too.
    words = TfidfVectorizer(analyzer=lambda text: fold(text).split() or [text], sublinear_tf=True)
    counts = words.fit_transform(texts)
    if (size := min(100, counts.shape[1] - 1)) == 0:
        return np.ones((len(texts), 1), np.float32)
    with np.errstate(invalid="ignore"):  # a single text has no variance
        topics = TruncatedSVD(size, random_state=0).fit_transform(counts)
    return np.asarray(normalize(topics), np.float32)
