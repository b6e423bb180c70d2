"""Fitted models and small networks for the tests of the baselines."""

from pathlib import Path
from typing import Any

import torch

import zoo
from datamodules.base import DataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from tests.zoo.adapter import Adapter
from tests.zoo.conftest import trainer
from zoo.runs.finishing import fit
from zoo.tasks.base import Task
from zoo.tasks.model import Given


def fit_and_load(folder: Path, model: Task, data: DataModule) -> Any:
    """The predictor of a model that is fitted, saved and loaded."""
    fit(trainer(folder), model, data)
    model.save(folder / "fitted", data)
    return zoo.load(folder / "fitted")


def finished(model: Any, data: DataModule) -> Any:
    """The model, built for prepared data and fitted to them."""
    model._build(Given(data.spec))
    model.finish(data)
    return model


def network_of(model: Any, spec: ClassificationSpec) -> Any:
    torch.manual_seed(3)
    return model.build_network(Given(spec)).eval()


def with_short_texts(adapter: Adapter) -> tuple[ClassificationSpec, ClassificationBatch]:
    """The spec of an adapter, and its batch with a text without words and a text with one."""
    text = adapter.batch.text.clone()
    text[2] = 0
    text[3, 1:] = 0
    return adapter.data.spec, adapter.batch._replace(text=text)
