"""Labels and vectors of the rows of a Ray dataset, by actors on all machines of a cluster.

labels = zoo.ray.predict(ray.data.read_csv("texts.csv"), "/shared/model", keep=["id"], actors=16)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError, excerpt
from zoo.loading import load
from zoo.tasks.classification.predictor import ClassificationPredictor

if TYPE_CHECKING:
    from ray.data import Dataset

#: Column -> its values of n rows.
Batch: TypeAlias = "Mapping[str, NDArray[np.generic]]"


class _Reader:
    """An actor: labels or encodes batches of rows; it opens its model once."""

    def __init__(self, model: str, text: str, keep: Sequence[str], encodes: bool) -> None:
        """Open a model, which the machine must have under this name; see `predict` for the columns."""
        self.predictor, self.text, self.keep, self.encodes = load(model), text, list(keep), encodes
        if not encodes and not isinstance(self.predictor, ClassificationPredictor):
            raise InputError(f"{model}: gives no labels; zoo.ray.encode gives the vectors of its texts")

    def __call__(self, batch: Batch) -> Batch:
        """The kept columns of n rows, with `label` and `probability`, or with `vector` [n, l]."""
        texts, kept = batch[self.text].tolist(), {name: batch[name] for name in self.keep}
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"column {self.text!r}: {excerpt(repr(text))} is no text; fill or drop it")
        if self.encodes:
            return {**kept, "vector": self.predictor.encode(texts)}
        found = self.predictor.predict(texts, memories=0)
        labels = np.array([each.label for each in found], object)
        return {**kept, "label": labels, "probability": np.array([each.probability for each in found])}


def predict(
    dataset: Dataset,
    model: str,
    text: str = "text",
    keep: Sequence[str] = (),
    actors: int = 1,
    encodes: bool = False,
    **options: object,
) -> Dataset:
    """Label the rows of a dataset; nothing is computed before the result is read or written.

    Args:
        dataset: with a column of texts.
        model: a folder that all machines have under the same name, or a name on the Hub.
        text: name of the column of texts.
        keep: other columns of the result, such as an id: rows come in any order.
        actors: processes with a CPU each; one CPU of the cluster must be left to read the dataset.
        encodes: give vectors in place of labels.
        **options: of Ray's `map_batches`, such as `batch_size`.

    Returns:
        The kept columns, `label` and `probability` (of the label), or `vector`, float32 [l].

    Raises:
        InputError: there is no such column, or the cluster has too few CPUs. Ray reports errors of actors by itself.
    """
    import ray

    schema = dataset.schema()
    for name in () if schema is None else (text, *keep):
        if name not in schema.names:
            raise InputError(f"the dataset has no column {name!r}; it has {', '.join(schema.names)}")
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if not 0 < actors < cpus:
        raise InputError(f"actors={actors}: one of {cpus} CPUs reads the dataset; use 1 to {cpus - 1}")
    pool = ray.data.ActorPoolStrategy(size=actors)
    given = {"batch_size": 1024, "compute": pool, "num_cpus": 1, **options}
    return dataset.map_batches(_Reader, fn_constructor_args=(model, text, list(keep), encodes), **given)


def encode(
    dataset: Dataset, model: str, text: str = "text", keep: Sequence[str] = (), actors: int = 1
) -> Dataset:
    """Encode the texts of a dataset: `predict`, with a `vector`, float32 [l], in place of each label."""
    return predict(dataset, model, text, keep, actors, encodes=True)
