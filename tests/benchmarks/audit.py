"""Planted label errors: the ranked list of `zoo audit` beside cleanlab's, on the same rows.

    python examples/demo/docstrings.py DATA/docstrings
    python -m tests.benchmarks.audit DATA/docstrings DATA/ag --encoder FOLDER --peer_python PYTHON

Each folder has train.csv and test.csv with the columns text and label. A share of the labels is replaced by another
class: drawn uniformly, or (`--noise confused`) that of the nearest text of another class. Printed are the area under
the ROC curve of the suspicion against the planted errors, the precision among the first k rows (k = number of planted
errors; real errors of the table count as false alarms), the estimated share of errors, and the accuracy
on test rows of members fitted to the labels with errors, with the first k rows corrected, and without errors.

cleanlab ranks by the label's own probability (its default) from 5-fold logistic regression on TF-IDF and, with an
encoder, on its vectors. It runs in the interpreter of --peer_python (`pip install cleanlab`).
"""

import argparse
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.text_vectors import TextVectors
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from tests.benchmarks.timing import parser
from zoo.audit import cross_judge, read_texts, share_of_errors
from zoo.ensemble.member import Readings
from zoo.ensemble.members import Members
from zoo.layers.tfidf import NGramTfidf

_PEER = """
import sys, numpy as np
from cleanlab.rank import get_label_quality_scores
given = np.load(sys.argv[1])
scores = {name: get_label_quality_scores(given["labels"], given[name]) for name in given.files if name != "labels"}
np.savez(sys.argv[2], **scores)
"""


class Sample(NamedTuple):
    """Some rows of a table, with their right labels and vectors (None: no encoder)."""

    texts: list[str]
    target: NDArray[np.int64]
    vectors: NDArray[np.float32] | None


def sample(file: Path, rows: int, seed: int, labels: list[str], encoder: str | None, cache: Path) -> Sample:
    """Draw rows of a table, and encode them; the vectors are kept in a folder."""
    table = read_table(file)
    drawn = np.random.default_rng(seed).permutation(len(table))[:rows]
    texts = table.texts.take(drawn)
    number = {label: position for position, label in enumerate(labels)}
    target = np.array([number[(table.labels or [])[row]] for row in drawn.tolist()])
    if encoder is None:
        return Sample(texts, target, None)
    stored = cache / f"{file.parent.name}-{file.stem}-{rows}-{seed}.npy"
    if not stored.exists():
        vectors = TextVectors(DenseRanking(encoder), 64, "cpu")
        np.save(stored, vectors.of(texts, 4096))
    return Sample(texts, target, np.load(stored))


def plant(
    given: Sample, share: float, kind: str, seed: int, neighbors: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The labels [n] with a share of errors; `neighbors` [n, K] are rows, the nearest first, -1 = none."""
    random = np.random.default_rng(1000 + seed)
    target, num_classes = given.target, int(given.target.max()) + 1
    wrong = random.permutation(len(target))[: round(share * len(target))]
    noisy = target.copy()
    noisy[wrong] = (target[wrong] + random.integers(1, num_classes, size=len(wrong))) % num_classes
    if kind == "confused":
        for row in wrong.tolist():
            others = [target[each] for each in neighbors[row] if each >= 0 and target[each] != target[row]]
            noisy[row] = others[0] if others else noisy[row]
    return noisy


def accuracy(train: Sample, labels: NDArray[np.int64], test: Sample, sizes: Any) -> float:
    """Of the lexical member and, with vectors, the sum of its scores and those of the kernel machine."""
    names = ["lexical"] if train.vectors is None else ["lexical", "encoder"]
    members, vectorizer = Members(names, sizes._replace(c=1.0)), NGramTfidf()
    readings, queries = (
        Readings(each.texts, ngrams, vectors=None if each.vectors is None else torch.from_numpy(each.vectors))
        for each, ngrams in ((train, vectorizer.fit(train.texts)), (test, vectorizer(test.texts)))
    )
    members.fit(readings, labels)
    outputs = members.classify(queries, names)
    scores = sum(output.log_probabilities((2.0, 0.0)) for output in outputs.values())
    return float((scores.argmax(dim=1).numpy() == test.target).mean())


def cleanlab_scores(train: Sample, noisy: NDArray[np.int64], python: str) -> dict[str, NDArray[np.float64]]:
    """Label quality (low = suspicious) by cleanlab, for each kind of probabilities."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    given: dict[str, Any] = {"labels": noisy}
    # The better cost of 1 and 10 for each.
    tfidf = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), LogisticRegression(C=10, max_iter=300)
    )
    inputs: dict[str, tuple[Any, Any]] = {"TF-IDF": (tfidf, train.texts)}
    if train.vectors is not None:
        inputs["encoder"] = LogisticRegression(C=1, max_iter=300), train.vectors
    for name, (model, values) in inputs.items():
        given[f"cleanlab, {name}"] = cross_val_predict(model, values, noisy, cv=folds, method="predict_proba")
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "given.npz", Path(folder) / "scores.npz"
        np.savez(before, **given)
        subprocess.run([python, "-c", _PEER, str(before), str(after)], check=True)
        return dict(np.load(after))


def measure(
    train: Sample, test: Sample, options: argparse.Namespace, share: float, seed: int
) -> dict[str, list[float]]:
    """Contender -> area, precision, estimated share of errors, and three accuracies (the peers': the first two)."""
    labels = [str(number) for number in range(int(train.target.max()) + 1)]
    with tempfile.TemporaryDirectory() as folder:
        rows = Rows.from_lists(train.texts, [labels[each] for each in train.target], source="clean")
        clean = FolderMemory.build(rows, EmbeddedRetriever(), Path(folder) / "clean")
        votes = read_texts(clean, clean.labels()).readings.neighbors
        assert votes is not None and votes.rows is not None  # noqa: PT018
        noisy = plant(train, share, options.noise, seed, votes.rows.numpy())
        rows = Rows.from_lists(train.texts, [labels[each] for each in noisy], source="noisy")
        memory = FolderMemory.build(rows, EmbeddedRetriever(), Path(folder) / "noisy")
        inputs = read_texts(memory, labels)
        if train.vectors is not None:
            inputs = inputs.with_vectors(EncodedMemory(memory, train.vectors, lambda texts: train.vectors))
        probabilities = np.exp(cross_judge(inputs)[1])
    is_wrong = noisy != train.target
    suspicion = 1 - probabilities[np.arange(len(noisy)), noisy]
    corrected = noisy.copy()
    first = np.argsort(-suspicion, kind="stable")[: is_wrong.sum()]
    corrected[first] = train.target[first]
    figures = {"zoo audit": [*_scores(suspicion, is_wrong), share_of_errors(probabilities, noisy)]}
    figures["zoo audit"] += [
        accuracy(train, each, test, inputs.sizes) for each in (noisy, corrected, train.target)
    ]
    if options.peer_python is not None:
        for name, quality in cleanlab_scores(train, noisy, options.peer_python).items():
            figures[name] = _scores(-quality, is_wrong)
    return figures


def _scores(suspicion: NDArray[np.float64], is_wrong: NDArray[np.bool_]) -> list[float]:
    from sklearn.metrics import roc_auc_score

    first = np.argsort(-suspicion, kind="stable")[: is_wrong.sum()]
    return [float(roc_auc_score(is_wrong, suspicion)), float(is_wrong[first].mean())]


def main() -> None:
    """Print a line for each table, share, seed and contender, and the means over seeds."""
    arguments = parser(__doc__)
    arguments.add_argument("data", nargs="+", type=Path, help="folders with train.csv and test.csv")
    arguments.add_argument("--encoder", help="folder of a sentence encoder; else texts alone are read")
    arguments.add_argument("--rows", type=int, default=3000)
    arguments.add_argument("--test_rows", type=int, default=1000)
    arguments.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--noise", choices=["uniform", "confused"], default="uniform")
    arguments.add_argument("--peer_python", help="interpreter with cleanlab")
    arguments.add_argument("--cache", type=Path, default=tempfile.gettempdir(), help="folder for vectors")
    options = arguments.parse_args()
    results: dict[tuple[str, float, str], list[list[float]]] = defaultdict(list)
    for seed in options.seeds:
        for source in options.data:
            labels = sorted(set(read_table(source / "train.csv").labels or []))
            train, test = (
                sample(source / f"{split}.csv", rows, seed, labels, options.encoder, options.cache)
                for split, rows in (("train", options.rows), ("test", options.test_rows))
            )
            for share in options.shares:
                for name, figures in measure(train, test, options, share, seed).items():
                    results[source.name, share, name].append(figures)
                    print(f"seed {seed}: {_line(source.name, share, name, figures)}", flush=True)
    print("\nmeans over seeds: area, precision; estimated share, accuracies with errors, corrected, without")
    for (table, share, name), rows in results.items():
        print(_line(table, share, name, np.mean(rows, axis=0).tolist()))


def _line(table: str, share: float, name: str, figures: list[float]) -> str:
    return f"{table:12} {share:4.0%} {name:26} {'  '.join(f'{figure:.3f}' for figure in figures)}"


if __name__ == "__main__":
    main()
