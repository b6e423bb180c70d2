"""TF-IDF with a linear layer, against scikit-learn."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.naive_bayes import ComplementNB
from sklearn.svm import LinearSVC

from tests.zoo.conftest import LABELS, sentences
from zoo.layers.tfidf import NGramTfidf, Planes, SparseLinear, naive_bayes, support_vectors


def fitted(ngrams: NGramTfidf, texts: Sequence[str], target: NDArray[np.int64], classes: int) -> SparseLinear:
    """A support vector machine of all n-grams."""
    linear = SparseLinear(classes)
    linear.fit(hstack(ngrams.fit(texts)).tocsr(), target, partial(support_vectors, c=1.0))
    return linear


def vectors_of(ngrams: NGramTfidf, texts: Sequence[str]) -> csr_matrix:
    return hstack(ngrams(texts)).tocsr()


def test_whole_words_alone_are_the_usual_support_vector_machine() -> None:
    texts, labels = zip(*sentences(60, seed=3), strict=True)
    target = np.array([LABELS.index(label) for label in labels])
    ngrams = NGramTfidf(0)
    linear = fitted(ngrams, texts, target, 3)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    others = [text for text, _ in sentences(20, seed=4)] + ["", "unknown"]
    vectors = vectorizer.fit_transform(texts)
    for fit, reference in ((None, LinearSVC(random_state=0)), (naive_bayes, ComplementNB(alpha=0.3))):
        if fit is not None:
            linear.fit(vectors_of(ngrams, texts), target, fit)
        reference.fit(vectors, target)
        score = reference.decision_function if fit is None else reference._joint_log_likelihood
        expected = score(vectorizer.transform(others))
        np.testing.assert_allclose(linear(vectors_of(ngrams, others)).numpy(), expected, atol=1e-4)
        restored, restored_ngrams = SparseLinear(3), NGramTfidf(0)
        assert not restored(vectors_of(ngrams, others)).any()
        restored.load_state_dict(linear.state_dict())
        restored_ngrams.load_state_dict(ngrams.state_dict())
        again = restored(vectors_of(restored_ngrams, others))
        assert torch.equal(again, linear(vectors_of(ngrams, others)))
    restored.fit(
        vectors_of(ngrams, texts), np.eye(3, dtype=np.int64)[target], partial(naive_bayes, is_label=True)
    )
    of_sets = restored(vectors_of(ngrams, others))  # of one label each
    torch.testing.assert_close(of_sets.log_softmax(dim=1), again.log_softmax(dim=1), rtol=0, atol=1e-4)


def test_letters_help_with_words_that_training_lacks() -> None:
    texts, target = ["applesauce here", "ironworks there"] * 3, np.array([0, 1] * 3)
    for letters, is_right in ((0, False), (5, True)):
        ngrams = NGramTfidf(letters)
        linear = fitted(ngrams, texts, target, 2)
        scores = linear(vectors_of(ngrams, ["apples", "iron"]))
        predicted = scores.argmax(dim=1).tolist() == [0, 1] and bool((scores[0] != scores[1]).all())
        assert predicted is is_right


@pytest.mark.parametrize("fit", [partial(support_vectors, c=1.0), naive_bayes])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_a_class_without_rows_never_wins(classes: int, fit: Callable[..., Planes]) -> None:
    ngrams, linear = NGramTfidf(0), SparseLinear(classes + 1)
    target = np.array([0, 1, 2] * 4) % classes
    texts = ["red sun", "green leaf", "blue sea"] * 4
    linear.fit(hstack(ngrams.fit(texts)).tocsr(), target, fit)
    predicted = linear(vectors_of(ngrams, ["red sun", "green leaf", "other"])).argmax(dim=1)
    assert predicted[:2].tolist() == [0, 1 % classes]
    assert not (predicted == classes).any()
