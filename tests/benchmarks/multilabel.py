"""Sets of labels: the default beside one linear classifier a label, whose threshold is chosen by cross-validation.

A JSONL table of texts, lists of labels and folds is drawn into folds to train on and fifteen others to test on. Without
a table, the packages of Debian that this machine knows, with their tags, are drawn into training rows and 3,000 others.

    python -m tests.benchmarks.multilabel hotels.jsonl --folds 5 --encoder FOLDER
    python -m tests.benchmarks.multilabel --rows 5000 --seeds 1
"""

import json
import re
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_union
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC

import zoo
from datamodules.core.types import PlainDict
from datamodules.retrieval import DenseRetriever
from tests.benchmarks.timing import parser

TESTED, TESTED_PACKAGES = 15, 3000
Sets = NDArray[np.int64]


def tuned(
    classifier: LinearSVC | LogisticRegression, vectors: NDArray[np.float32], sets: Sets, others: object
) -> Sets:
    """Sets of other vectors by one classifier a label, at the threshold of the best micro F1 of five folds."""
    model = OneVsRestClassifier(classifier)
    held_out = cross_val_predict(
        model, vectors, sets, cv=KFold(5, shuffle=True, random_state=0), method="decision_function"
    )
    cuts = np.quantile(held_out, np.linspace(0.8, 1, 101))
    best = max(cuts, key=lambda cut: f1_score(sets, held_out > cut, average="micro"))
    found: Sets = (model.fit(vectors, sets).decision_function(others) > best).astype(np.int64)
    return found


def compare(learned: list[PlainDict], tested: list[PlainDict], seed: int, encoder: str | None) -> None:
    """Print a line for each contender: micro and macro F1 of the labels that training has, CPU seconds."""
    texts, labels = [row["text"] for row in learned], [row["labels"] for row in learned]
    others = [row["text"] for row in tested]
    binarizer = MultiLabelBinarizer().fit(labels)
    sets, known = binarizer.transform(labels), set(binarizer.classes_)
    truth = binarizer.transform([known.intersection(row["labels"]) for row in tested])

    def words() -> Sets:
        letters = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 5))
        vectors = make_union(TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), letters)
        return tuned(LinearSVC(C=0.5), vectors.fit_transform(texts), sets, vectors.transform(others))

    def regression() -> Sets:
        vectors = DenseRetriever(encoder).vectors
        read = [vectors.of(each, 256) for each in (texts, others)]
        return tuned(LogisticRegression(C=10, max_iter=500), read[0], sets, read[1])

    def ours(**model: object) -> Sets:
        predictions = zoo.fit(texts, labels, model_options=model).predict(others, memories=0)
        found: Sets = binarizer.transform([[each.label for each in row.of_labels] for row in predictions])
        return found

    contenders = {"linear SVM of each label": words, "default": ours}
    if encoder is not None:
        contenders["logistic regression of each label, encoder"] = regression
        contenders["default, encoder"] = partial(ours, transformer=encoder)
    for name, predict in contenders.items():
        begun = time.process_time()
        found = predict()
        seconds = time.process_time() - begun
        micro, macro = (
            100 * f1_score(truth, found, average=kind, zero_division=0) for kind in ("micro", "macro")
        )
        print(f"{seed} {name}: micro {micro:.1f}, macro {macro:.1f}, {seconds:.0f} CPU s", flush=True)


def packages() -> list[PlainDict]:
    """Name and beginning of the description of each package, and its tags."""
    written = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    rows = []
    for paragraph in re.sub(r"\n +", " ", written).split("\n\n"):
        fields = dict(line.split(":", 1) for line in paragraph.splitlines())
        tags = list[str]()
        for tag in re.split(r", (?![^{]*})", fields.get("Tag", "").strip()):  # a::{b,c} is two tags
            facet, _, values = tag.partition("{")
            tags += [facet + value.strip() for value in values.strip("}").split(",")]
        if any(tags):
            description = fields.get("Description", fields.get("Description-en", ""))
            rows.append({"text": f"{fields['Package'].strip()}:{description}"[:200], "labels": tags})
    return rows


def main() -> None:
    """Compare on several draws of the folds."""
    arguments = parser(__doc__)
    arguments.add_argument("table", type=Path, nargs="?", help="omit it for Debian's packages")
    arguments.add_argument("--folds", type=int, default=5, help="folds to train on")
    arguments.add_argument("--rows", type=int, default=5000, help="packages to train on")
    arguments.add_argument("--encoder", help="the default's transformer; omit it for words alone")
    arguments.add_argument("--seeds", type=int, default=3)
    options = arguments.parse_args()
    if options.table is None:
        rows = packages()
        for seed in range(options.seeds):
            order = np.random.default_rng(seed).permutation(len(rows))
            parts = order[: options.rows], order[-TESTED_PACKAGES:]
            learned, tested = ([rows[row] for row in part] for part in parts)
            compare(learned, tested, seed, options.encoder)
        return
    rows = [json.loads(line) for line in options.table.read_text().splitlines()]
    folds = sorted({row["fold"] for row in rows})
    for seed in range(options.seeds):
        order = np.random.default_rng(seed).permutation(folds)
        parts = order[: options.folds], order[-TESTED:]
        learned, tested = ([row for row in rows if row["fold"] in part] for part in parts)
        compare(learned, tested, seed, options.encoder)


if __name__ == "__main__":
    main()
