"""`MemoryClassifier`: a classifier of texts for scikit-learn."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self, override

from datamodules.core.errors import InputError
from datamodules.corpora.multilabel import join_labels
from datamodules.corpora.rows import Rows
from zoo.loading import load
from zoo.memory.commands import fit_again
from zoo.memory.opened import OpenedMemory
from zoo.python.fitting import SET, as_labels, columns_of, fit, label_names, label_sets
from zoo.tasks.classification.predictor import Prediction
from zoo.tasks.records import as_texts

#: Growth of the memory after which weights are fitted again.
_GROWN = 1.5
_MATRIX = "give a matrix of 0 and 1 [n, C]; make it with MultiLabelBinarizer"


class MemoryClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A model of the zoo as an estimator: `fit` trains it as `zoo.fit` and the command `zoo fit` do.

    `X` is a sequence of n strings: a list, an array or a column of a data frame. `y` has n labels, or is a matrix of 0
    and 1 [n, C] with a column for each label of a set, as scikit-learn's `MultiLabelBinarizer` makes it. A pickled
    estimator contains its model with the memory, and needs no other file.

    Attributes:
        classes_: the labels, sorted, as they were given; of sets, the names or numbers of the columns.
        model_: the predictor, as `zoo.load` returns it; its `export` writes a folder that stays.

    Example:
        >>> classifier = MemoryClassifier(trainer={"max_epochs": 4}, data_options={"num_memories": 10})
    """

    def __init__(
        self,
        model: str | type[Any] | None = None,
        model_options: Mapping[str, object] | None = None,
        data_options: Mapping[str, object] | None = None,
        trainer: Mapping[str, object] | None = None,
        config: str | Path | Sequence[str | Path] = (),
        random_state: int | np.random.RandomState | None = 0,
        device: str = "cpu",
        verbose: bool = False,
        class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
    ) -> None:
        """Store the parameters; see `zoo.fit` for their values.

        `random_state` is the `seed`, or draws it in each `fit`: a `RandomState`, or None for that of NumPy.
        `class_weight` is that of a `MemoryEnsemble`, by labels as they are in `y`.
        """
        self.model = model
        self.model_options = model_options
        self.data_options = data_options
        self.trainer = trainer
        self.config = config
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.class_weight = class_weight

    @override
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array = True, True
        tags.input_tags.two_d_array = False
        return tags

    def fit(self, X: Iterable[str], y: Iterable[object]) -> Self:
        """Train on n texts and their n labels: strings, numbers or booleans, or a matrix [n, C] of sets."""
        texts, labels = _texts(X), _labels(y)
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        data_options: Mapping[str, Any] = self.data_options or {}
        model_options, weights = dict(self.model_options or {}), self.class_weight
        if isinstance(weights, Mapping) and weights:
            weights = dict(zip(label_names([*weights], len(weights), 1), weights.values(), strict=True))
        if weights:
            model_options["class_weight"] = weights
        if label_sets(labels, len(texts)) is None:
            label_names(labels, len(texts))  # refuses wrong ones before the training
            if data_options.get("label_separator") is not None:
                raise InputError(f"data_options: label_separator is for sets of labels; {_MATRIX}")
        check_classification_targets(labels)
        model = fit(
            texts,
            labels,
            model=self.model,
            model_options=model_options,
            trainer=self.trainer,
            config=self.config,
            seed=seed,
            device=self.device,
            verbose=self.verbose,
            **data_options,
        )
        self.classes_ = np.array(columns_of(labels)) if np.ndim(labels) == 2 else np.unique(labels)
        # The run folder is deleted with the predictor that `fit` returned.
        self.model_ = self._first_model = model
        return self

    def partial_fit(self, X: Iterable[str], y: Iterable[object], classes: object = None) -> Self:
        """Add n texts with their labels to the memory of the fitted model, as `zoo memory add` does; or fit a model.

        Predictions use them at once, without training; a `MemoryEnsemble` takes labels that are new. Its weights are
        fitted again (`zoo memory tune`) when the memory has grown by a half since. `classes` is not used.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        texts, labels = _texts(X), _labels(y)
        sets, separator = label_sets(labels, len(texts)), self.model_.model.spec.label_separator
        if (sets is None) == self._gives_sets:
            raise InputError("labels: one label a text or a matrix of sets; give what the first rows had")
        if sets is not None:
            if list(map(str, columns_of(labels))) != list(map(str, self.classes_.tolist())):
                raise InputError("labels: the columns are not those of the first rows; give the same ones")
            names = [join_labels(each, separator) for each in sets]
        else:
            names = label_names(labels, len(texts), 1)
            given, known = (type(np.ravel(each).tolist()[0]).__name__ for each in (labels, self.classes_))
            if given != known:
                raise InputError(f"labels: row 0 is a {given}, the labels before are {known}; give one type")
        opened = OpenedMemory.open_to_change(self.model_.source)
        memory, model = opened.folder, opened.named_model("partial_fit")
        rows = Rows.from_lists(texts, names, source="texts")
        version = opened.add(rows, model.meta.takes_new_labels, keep_ids=False).version
        if model.meta.fits_weights:
            number_of = {entry["version"]: entry["rows"] for entry in memory.history()}
            # Versions before the first one are gone after an export, or `zoo memory compact`.
            fitted = max(min(number_of), *(each for each in (0, *model.state.fitted) if each <= version))
            if number_of[version] >= _GROWN * number_of[fitted]:
                fit_again(model, None, refit=False)
        self.model_ = load(model, device=self.device)
        weakref.finalize(self.model_, id, self._first_model)
        if np.ndim(labels) == 1:
            self.classes_ = np.union1d(self.classes_, labels)
        return self

    @property
    def _gives_sets(self) -> bool:
        return self.model_.model.spec.label_separator is not None

    @property
    def _names(self) -> list[str]:
        """The model's names of the classes."""
        return [str(name).strip() if self._gives_sets else str(name) for name in self.classes_.tolist()]

    def explain(self, X: Iterable[str]) -> list[Prediction]:
        """Return the prediction for each text with its evidence: contributions of the members, and memories."""
        check_is_fitted(self)
        return self.model_.predict(_texts(X))

    def predict(self, X: Iterable[str]) -> NDArray[Any]:
        """Return the label of each of n texts [n]; of sets, a matrix [n, C] of 0 and 1."""
        predictions = self.explain(X)
        if self._gives_sets:
            chosen = [{each.label for each in prediction.of_labels or ()} for prediction in predictions]
            rows = [[name in each for name in self._names] for each in chosen]
            return np.array(rows, np.int64).reshape(-1, len(self._names))
        number = {name: column for column, name in enumerate(self._names)}
        return self.classes_[[number[each.label or ""] for each in predictions]]

    def predict_proba(self, X: Iterable[str]) -> NDArray[np.float64]:
        """Return the probabilities of n texts [n, C], in the order of `classes_`; of sets, that of each label."""
        predictions = self.explain(X)
        rows = [[each.probabilities.get(name, 0.0) for name in self._names] for each in predictions]
        probabilities = np.array(rows, np.float64).reshape(-1, len(self._names))
        if self._gives_sets:
            return probabilities
        # Their sum is 1 only in float32.
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters, and the files of the exported model."""
        state = dict(super().__getstate__())
        if state.pop("_first_model", None) is None:
            return state
        with tempfile.TemporaryDirectory() as parent:
            model = state.pop("model_")
            folder = model.export(Path(parent) / "model")
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
            return {**state, "_files": contents}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model from its files, which are kept in a temporary folder for as long as the estimator lives."""
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is None:
            return
        with ExitStack() as resources:
            folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="memory-zoo-")))
            for name, contents in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(contents)
            self.model_ = self._first_model = load(folder, device=self.device)
            weakref.finalize(self.model_, resources.pop_all().close)


def _labels(y: Any) -> Any:
    labels = as_labels(y)
    if isinstance(labels, list) and any(isinstance(each, SET) for each in labels):
        raise InputError(f"labels: sets are no lists; {_MATRIX}")
    return column_or_1d(labels, warn=True) if getattr(labels, "shape", ())[1:] == (1,) else labels


def _texts(X: Iterable[str]) -> list[str]:
    if isinstance(X, str):
        raise InputError("texts: a str is one text; give a list of texts, such as [text]")
    return as_texts(X, "texts: row")
