"""One contender of `few_labels` on one table, in a process of its own: accuracy as JSON.

It imports nothing of the project, so that another interpreter can run it, whose packages a peer needs:

    PYTHON tests/benchmarks/few_labels_peers.py setfit TRAIN.csv TEST.csv ENCODER

SETFIT_STEPS limits SetFit's steps, whose number grows with the square of the rows; its documentation advises to do so.
"""

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Callable


def read(path: str) -> tuple[list[str], list[str]]:
    """Texts and labels of a table."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def six(texts: list[str], labels: list[str], test: list[str], encoder: str) -> list[str]:
    """The best of six pipelines of scikit-learn on a fifth of the rows, fitted again to all rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.svm import LinearSVC

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    models = [
        make_pipeline(vectors, classifier)
        for vectors in (words, letters, make_union(words, letters))
        for classifier in (LinearSVC(C=0.5), LogisticRegression(C=10, max_iter=300))
    ]
    some, held_out, own, other = train_test_split(texts, labels, test_size=0.2, random_state=0)
    best = max(models, key=lambda model: model.fit(some, own).score(held_out, other))
    return best.fit(texts, labels).predict(test).tolist()


def regression(texts: list[str], labels: list[str], test: list[str], encoder: str) -> list[str]:
    """Logistic regression on the vectors of the encoder as it is."""
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegression

    model = SentenceTransformer(encoder, device="cpu")
    vectors = model.encode(texts, normalize_embeddings=True)
    classifier = LogisticRegression(C=10, max_iter=500).fit(vectors, labels)
    return classifier.predict(model.encode(test, normalize_embeddings=True)).tolist()


def setfit(texts: list[str], labels: list[str], test: list[str], encoder: str) -> list[str]:
    """SetFit with its defaults: one epoch, pairs by oversampling, a logistic head."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    # It oversamples the smaller of both kinds of pairs. max_steps would also prolong a shorter training.
    pairs, equal = len(texts) ** 2 / 2, sum(count**2 / 2 for count in Counter(labels).values())
    steps = int(2 * max(equal, pairs - equal) / 16)
    limit = int(os.environ.get("SETFIT_STEPS", steps))
    arguments = TrainingArguments(
        batch_size=16,
        num_epochs=1,
        max_steps=limit if limit < steps else -1,
        report_to="none",
        save_strategy="no",
    )
    trainer = Trainer(
        model=SetFitModel.from_pretrained(encoder, device="cpu"),
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts, "label": labels}),
    )
    trainer.train()
    return [str(label) for label in trainer.model.predict(test)]


PEERS: dict[str, Callable[[list[str], list[str], list[str], str], list[str]]] = {
    peer.__name__: peer for peer in (six, regression, setfit)
}


def main() -> None:
    """Train a peer, test it, and print the accuracy."""
    name, train, test, encoder = sys.argv[1:]
    texts, expected = read(test)
    predicted = PEERS[name](*read(train), texts, encoder)
    correct = sum(label == other for label, other in zip(predicted, expected, strict=True))
    print(json.dumps({"accuracy": correct / len(expected)}))


if __name__ == "__main__":
    main()
