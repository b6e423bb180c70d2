"""`MemoryClassifier` follows the rules of scikit-learn, and equals `zoo.fit`."""

import gc
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks, get_tags

import zoo
from datamodules.core.errors import InputError
from datamodules.retrieval import DenseRetriever
from tests.zoo.ensemble.conftest import distinct_sentences
from tests.zoo.processes import printed_by
from tests.zoo.python.test_fitting import ENSEMBLE, NETWORK, NEW, TEXTS, TOPICS, probabilities
from zoo import MemoryClassifier
from zoo.model_folder.folder import ModelFolder


def parameters(options: dict[str, Any]) -> dict[str, Any]:
    own = ("model", "model_options", "trainer")
    data = {name: value for name, value in options.items() if name not in own}
    return {**{name: options[name] for name in own if name in options}, "data_options": data}


def small() -> MemoryClassifier:
    return MemoryClassifier(**parameters(NETWORK))


def test_the_rules_of_estimators() -> None:
    for check in (
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_valid_tag_types,
    ):
        check("MemoryClassifier", MemoryClassifier())
    assert is_classifier(MemoryClassifier())
    assert get_tags(MemoryClassifier()).input_tags.string
    copy = clone(small())
    assert copy.get_params() == small().get_params()
    assert copy is not small()


@pytest.mark.filterwarnings("error:The y_prob values")
@pytest.mark.parametrize("labels", [("2", "10", "-1"), (2, 10, -1), (True, False), (1.0, 3.0, 2.0)])
def test_labels_are_returned_as_they_were_given(labels: tuple[object, ...]) -> None:
    y = np.array([labels[("fruit", "metal", "weather").index(topic) % len(labels)] for topic in TOPICS])
    classifier = small().fit(pd.Series(TEXTS), y)
    assert classifier.classes_.tolist() == sorted(labels)
    predicted = classifier.predict(NEW)
    assert predicted.dtype == y.dtype
    probabilities = classifier.predict_proba(np.array(NEW, object))
    assert probabilities.shape == (len(NEW), len(labels))
    assert (classifier.classes_[probabilities.argmax(axis=1)] == predicted).all()
    assert log_loss(predicted, probabilities, labels=classifier.classes_) > 0
    assert classifier.score(NEW, predicted) == 1.0
    assert classifier.predict([]).shape == (0,)
    assert classifier.predict_proba([]).shape == (0, len(labels))
    assert classifier.explain(NEW[:1])[0].memories


def test_random_states_and_columns_of_labels() -> None:
    probabilities = []
    for state in (np.random.RandomState(3), np.random.RandomState(3), np.random.RandomState(4), None):
        with pytest.warns(DataConversionWarning, match="column-vector y was passed"):
            classifier = small().set_params(random_state=state).fit(TEXTS, pd.DataFrame({"y": TOPICS}))
        probabilities.append(classifier.predict_proba(NEW).tolist())
    assert classifier.classes_.tolist() == sorted(set(TOPICS))
    assert probabilities[0] == probabilities[1]
    assert probabilities[2] != probabilities[0]  # the last is drawn from NumPy's own state, which may be any
    for refused in (classifier.predict, lambda text: classifier.fit(text, ["fruit"])):
        with pytest.raises(InputError, match="a str is one text; give a list"):
            refused("apple")


def test_tools_of_scikit_learn() -> None:
    strip = FunctionTransformer(lambda X: [text.strip() for text in X])
    steps = Pipeline([("strip", strip), ("zoo", small())])
    grid = GridSearchCV(steps, {"zoo__random_state": [0, 1]}, cv=2).fit(TEXTS, TOPICS)
    assert grid.best_params_["zoo__random_state"] in (0, 1)
    assert set(grid.predict(NEW)) <= set(TOPICS)
    assert len(cross_val_predict(small(), TEXTS, TOPICS, cv=2, method="predict_proba")) == len(TEXTS)


def test_one_model_a_label_predicts_several_labels() -> None:
    labels = pd.Series([topic if topic == "metal" else f"{topic};not metal" for topic in TOPICS])
    has_label = labels.str.get_dummies(";")
    several = MultiOutputClassifier(small()).fit(TEXTS, has_label)
    predicted = pd.DataFrame(several.predict(TEXTS), columns=has_label.columns)
    assert (predicted == has_label).to_numpy().mean() > 0.8  # the most frequent values: 0.67
    alone = small().fit(TEXTS, has_label["not metal"])
    assert predicted["not metal"].tolist() == alone.predict(TEXTS).tolist()


def print_probabilities(pickled: bytes) -> None:
    print(json.dumps(pickle.loads(pickled).predict_proba(NEW).tolist()))


def test_a_pickled_classifier_needs_no_other_file() -> None:
    classifier = MemoryClassifier(**parameters(ENSEMBLE)).fit(TEXTS, TOPICS)
    expected = classifier.predict_proba(NEW).tolist()
    assert expected == pytest.approx(np.array(probabilities(zoo.fit(TEXTS, TOPICS, **ENSEMBLE))))
    pickled = pickle.dumps(classifier)
    # A copy of a copy, whose first folder is gone.
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(classifier))))
    assert again.predict_proba(NEW).tolist() == expected
    assert again.classes_.tolist() == classifier.classes_.tolist()
    folder = Path(classifier.model_.source)
    del classifier, again
    gc.collect()
    assert not folder.exists()
    assert json.loads(printed_by(print_probabilities, pickled)[0]) == expected
    assert pickle.loads(pickle.dumps(small())).get_params() == small().get_params()


def test_a_pickled_classifier_keeps_its_transformer_and_its_retriever(tiny_bert: Path) -> None:
    for data_options in ({}, {"retriever": DenseRetriever(str(tiny_bert))}):
        classifier = MemoryClassifier(
            model_options={"transformer": str(tiny_bert), "metric_steps": 0},
            data_options=data_options,
            trainer={"accelerator": "cpu"},
        ).fit(TEXTS, TOPICS)
        pickled, expected = pickle.dumps(classifier), classifier.predict_proba(NEW).tolist()
        moved = tiny_bert if data_options else tiny_bert.rename("moved")
        again = pickle.loads(pickled)
        assert again.predict_proba(NEW).tolist() == expected
        assert "encoder    tiny-bert" in repr(again.model_)
        moved.rename(tiny_bert)


def test_class_weights_multiply_probabilities() -> None:
    def fitted(**weights: Any) -> MemoryClassifier:
        return MemoryClassifier(**parameters(ENSEMBLE), **weights).fit(texts, numbers)

    pairs = distinct_sentences(40, seed=8) + distinct_sentences(40, seed=9, noise=True)
    texts, numbers = [text for text, _ in pairs], np.array([1 + (topic == "fruit") for _, topic in pairs])
    plain, weighted = fitted(), fitted(class_weight={1: 3.0})
    expected = plain.predict_proba(NEW) * [3, 1]
    expected /= expected.sum(axis=1, keepdims=True)
    assert np.allclose(weighted.predict_proba(NEW), expected, atol=1e-6)
    evidence = weighted.explain(NEW)[0].contributions or {}
    assert evidence["class weight"] == pytest.approx(np.log(3) / 2 * (1 if expected[0, 0] > 0.5 else -1))
    odds = [np.divide(*model.predict_proba(NEW).T) for model in (fitted(class_weight="balanced"), plain)]
    weights = np.divide(*odds)
    assert np.allclose(weights, weights[0])
    of_training = np.divide(*np.bincount(numbers)[:0:-1])  # but for a few rows of validation
    assert weights[0] == pytest.approx(of_training, abs=0.1) != pytest.approx(1, abs=0.2)
    with pytest.raises(InputError, match="class_weight: no training row has the label '3'"):
        fitted(class_weight={3: 2.0})
    with pytest.raises(InputError, match=r"class_weight=\{'1': -2.0\}: use positive numbers, or balanced"):
        fitted(class_weight={1: -2.0})


def test_partial_fit_adds_rows_and_labels() -> None:
    is_old = np.array([topic != "weather" for topic in TOPICS])
    texts, topics = np.array(TEXTS), np.array(TOPICS)
    classifier = MemoryClassifier(**parameters(ENSEMBLE)).partial_fit(
        texts[is_old], topics[is_old], sorted(set(TOPICS))
    )
    first = classifier.model_
    assert classifier.classes_.tolist() == ["fruit", "metal"]
    classifier.partial_fit(["a mango or two"], ["fruit"])
    assert classifier.predict(["a mango or two"]) == ["fruit"]
    state = ModelFolder.open(first.source).state
    assert (state.version, max(state.fitted, default=1)) == (2, 1)
    classifier = pickle.loads(pickle.dumps(classifier))  # whose earlier version is not kept
    with pytest.raises(InputError, match="row 0 is a int, the labels before are str"):
        classifier.partial_fit(["a mango"], [1])
    with pytest.raises(InputError, match="one label a text or a matrix of sets"):
        classifier.partial_fit(["a mango"], np.eye(3)[:1])
    with pytest.raises(InputError, match="sets are no lists; give a matrix"):
        classifier.partial_fit(["a mango"], [["fruit"]])
    classifier.partial_fit(texts[~is_old], topics[~is_old])
    state = ModelFolder.open(classifier.model_.source).state
    assert state.version == max(state.fitted)
    assert classifier.classes_.tolist() == ["fruit", "metal", "weather"]
    assert (classifier.predict(texts[~is_old]) == "weather").all()
    assert classifier.predict_proba(NEW).shape == (len(NEW), 3)
    kept = classifier.partial_fit(["some more mangos"], ["fruit"]).model_
    del classifier
    gc.collect()
    assert kept.export("kept").is_dir()
    network = small().fit(texts[is_old], topics[is_old])
    with pytest.raises(InputError, match="weather"):
        network.partial_fit(texts[~is_old], topics[~is_old])
    assert network.partial_fit(["a mango or two"], ["fruit"]).predict(NEW).shape == (len(NEW),)


def test_wrong_input_is_named() -> None:
    with pytest.raises(NotFittedError):
        small().predict(TEXTS)
    with pytest.raises(ValueError, match="continuous"):
        small().fit(TEXTS, np.linspace(0.1, 0.9, len(TEXTS)))
    classifier = small().fit(TEXTS, TOPICS)
    with pytest.raises(InputError, match="give one column"):
        classifier.predict(pd.DataFrame({"text": NEW}))
    with pytest.raises(InputError, match="texts: row 1 is a float"):
        classifier.predict(["apple", float("nan")])
    assert not hasattr(classifier, "n_features_in_")
