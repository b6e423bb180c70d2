"""TF-IDF with a linear layer, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

from tests.zoo.conftest import LABELS, sentences
from zoo.layers.tfidf import TfidfLinear


def test_whole_words_alone_are_the_usual_support_vector_machine() -> None:
    texts, labels = zip(*sentences(60, seed=3), strict=True)
    target = np.array([LABELS.index(label) for label in labels])
    linear = TfidfLinear(2, 0, 3)
    assert not linear(texts[:2]).any()
    linear.fit(texts, target, 1.0)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = LinearSVC(random_state=0).fit(vectorizer.fit_transform(texts), target)
    others = [text for text, _ in sentences(20, seed=4)] + ["", "unknown"]
    expected = classifier.decision_function(vectorizer.transform(others))
    np.testing.assert_allclose(linear(others).numpy(), expected, atol=1e-5)
    restored = TfidfLinear(2, 0, 3)
    restored.load_state_dict(linear.state_dict())
    assert torch.equal(restored(others), linear(others))


def test_letters_help_with_words_that_training_lacks() -> None:
    texts, target = ["applesauce here", "ironworks there"] * 3, np.array([0, 1] * 3)
    for letters, is_right in ((0, False), (5, True)):
        linear = TfidfLinear(1, letters, 2)
        linear.fit(texts, target, 1.0)
        scores = linear(["apples", "iron"])
        predicted = scores.argmax(dim=1).tolist() == [0, 1] and bool((scores[0] != scores[1]).all())
        assert predicted is is_right


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_without_rows_never_wins(classes: int) -> None:
    linear = TfidfLinear(1, 0, classes + 1)
    target = np.array([0, 1, 0 if classes == 2 else 2] * 4)
    linear.fit(["red sun", "green leaf", "blue sea"] * 4, target, 1.0)
    predicted = linear(["red sun", "green leaf", "other"]).argmax(dim=1)
    assert predicted[:2].tolist() == [0, 1]
    assert not (predicted == classes).any()
