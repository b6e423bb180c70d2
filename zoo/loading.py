"""Trained models for prediction: `zoo.load`, and the parts of it that commands call one by one."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import datamodules
from datamodules.core.classes import option_defaults
from datamodules.core.errors import InputError, excerpt
from datamodules.core.types import PlainDict
from datamodules.retrieval import EmbeddedRetriever, FolderMemory, Retriever
from datamodules.text.tokenization import OWN_TOKENIZERS
from zoo.model_folder.folder import FITTED, MEMORY, TOKENIZER, ModelFolder
from zoo.model_folder.state import FittedFiles, read_values
from zoo.registry import model_class
from zoo.tasks.classification.held_out import HeldOutRows

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from datamodules.base import DataModule
    from datamodules.retrieval.dense.text_vectors import ProgressBar
    from zoo.ensemble.model import MemoryEnsemble
    from zoo.tasks.base import Task


def load(
    source: str | Path | ModelFolder,
    memory: str | Path | None = None,
    retriever: Retriever | None = None,
    device: str | torch.device = "cpu",
    memory_version: int | None = None,
) -> Any:
    """Load a trained model for prediction; only its folder is needed.

    Args:
        source: a run folder (`runs/NAME`), a model folder, or a name: `user/name` on the Hub,
            `wandb:entity/project/name:v3` in W&B.
        memory: a memory folder to use instead of the model's.
        retriever: back end and ranking to use instead (another server).
        device: where to run the network.
        memory_version: of a memory that has grown: 1 is from before all additions; None uses the current version.

    Returns:
        A `Predictor` of the model's kind: a `ClassificationPredictor`, a `MatchingPredictor`, ... Any number of threads
        may use it, one computes at a time. A forked process computes in one thread; a pickled predictor loads the model
        again, with the same version of the memory.

    Raises:
        InputError: the model or its memory cannot be read, or the memory has no such version.

    Example:
        >>> zoo.load("runs/mine").predict(["a text"])[0].label  # doctest: +SKIP
    """
    from zoo.tasks.predictor import memory_of  # which imports PyTorch

    folder = source if isinstance(source, ModelFolder) else ModelFolder.open(source)
    data, model = make_data(folder, retriever), from_pretrained(folder)
    move(model, device)
    kind, opened = model.predictor_type, None
    if memory is not None or memory_version is not None or kind.needs_memory(data):
        location = None if memory is None else str(memory)
        opened = memory_of(data).open(location, memory_version, retriever)
    predictor = kind(model, data, opened)
    version = opened.version if isinstance(opened, FolderMemory) else None
    fitted = use_fitted(folder, model, version if memory is None else None)
    predictor.source = _absolute(folder.source)
    predictor.answer_file = folder.path.parent / "answer.json"
    predictor.held_out = held_out_rows(folder, fitted)
    # Another process opens the same version of the memory, although the memory may have grown.
    place = None if memory is None else _absolute(str(memory))
    predictor.reopen = partial(load, predictor.source, place, retriever, device, version)
    return predictor


def from_pretrained(source: str | Path | ModelFolder) -> Task:
    """Make the `LightningModule` of a trained model with the weights of its training, in evaluation mode.

    For prediction use `load`, which adds the memory. To train on with other data, use `--model.init_from`.

    Args:
        source: as for `load`.

    Raises:
        InputError: the model cannot be read.
    """
    folder = source if isinstance(source, ModelFolder) else ModelFolder.open(source)
    kind, meta = model_class(folder.meta.model), folder.whole_meta
    check_options(meta.options, option_defaults(kind), folder)
    model = kind(**meta.options)
    model.restore(meta, folder.weights())
    return model.eval()


def make_data(folder: ModelFolder, retriever: Retriever | None = None) -> DataModule:
    """Make the data module of a model with its memory, ready for new rows, with its retriever or another one."""
    kind, options = options_of_data(folder)
    data = kind(retriever=retriever or folder.retriever(), **options)
    data.use_state(folder.whole_meta.data)
    # The network was made for these sizes: other words would be read outside of its tables.
    if json.loads(json.dumps(data.spec._asdict())) != folder.meta.spec:
        raise InputError(f"{folder.path}: its network was made for other words or labels; copy it again")
    use_memory(folder, data)
    return data


def options_of_data(folder: ModelFolder) -> tuple[type[DataModule], PlainDict]:
    """Return the class of a model's data, and its options, which name no file outside of the folder."""
    options = dict(folder.meta.data.options)
    kind = datamodules.find(folder.meta.data.kind)
    check_options(options, [field.name for field in fields(kind.options_type)], folder)
    named = [name for name in (*kind.options_type.files, "cache_dir") if isinstance(options.get(name), str)]
    if options["tokenizer"] == TOKENIZER:
        options["tokenizer"] = str(folder.path / TOKENIZER)
    elif options["tokenizer"] not in OWN_TOKENIZERS:
        named.append("tokenizer")
    if named:
        raise InputError(f"{folder.path}: its {named[0]} names a file elsewhere; a model names none")
    return kind, options


def use_memory(folder: ModelFolder, data: DataModule) -> None:
    """Give a data module the memory of a model, if there is one in its folder."""
    if data.memory is not None and folder.has_memory:
        data.memory.location = str(folder.path / MEMORY)


def use_fitted(folder: ModelFolder, model: Task, version: int | None) -> FittedFiles:
    """Replace weights and members by those that were fitted up to a version of the memory, if any; return them.

    `version` None: for another memory, or none, the model keeps the values of its training.
    """
    if not model.fits_weights:
        return FittedFiles()
    fitted = folder.state.fitted_to(version)
    values, ensemble = folder.path / FITTED, cast("MemoryEnsemble", model)
    if fitted.weights is not None:
        from zoo.ensemble.pool import Pool  # which imports PyTorch

        ensemble.network.pool = Pool.of(read_values(values, fitted.weights))
    if fitted.members is not None:
        ensemble.network.use_members(read_values(values, fitted.members))
    return fitted


def held_out_rows(folder: ModelFolder, fitted: FittedFiles) -> HeldOutRows | None:
    """Return the held-out rows of fitted values."""
    file = fitted.held_out
    return None if file is None else HeldOutRows.of(read_values(folder.path / FITTED, file))


class SavedEncoder:
    """The text encoder of a trained model, for dense retrieval: texts have the vectors of the model's training.

    It is the entry point of `datamodules.retrieval.dense.text_vectors`, which reads it as a `TextEncoder`.
    """

    def __init__(self, model: str, device: torch.device) -> None:
        from zoo.layers.encoders import TransformerEncoder

        folder = ModelFolder.open(model)
        task = from_pretrained(folder).to(device)
        # A text has the same vector in every index, and as a query, whatever is encoded with it.
        for part in task.modules():
            if isinstance(part, TransformerEncoder):
                part.is_fast = False
        # Encoding reads no memories: the model's retriever stays closed.
        self.predictor = task.predictor_type(task, make_data(folder, EmbeddedRetriever()))
        try:
            self.size = self.predictor.vector_size
        except InputError as error:
            raise InputError(f"encoder {model!r}: {error}; use that of a KNNBiLSTM or an LSTMRNN") from None
        self.has_query_side = self.predictor.has_query_side

    def __call__(
        self, texts: list[str], batch_size: int, bar: ProgressBar, queries: bool = False
    ) -> NDArray[np.float32]:
        """Return the vectors [n, size] of the texts, with length 1; 0 for a text without words."""
        return self.predictor.encode(texts, batch_size, bar, queries)


def check_options(options: PlainDict, names: Collection[str], folder: ModelFolder) -> None:
    """Refuse options that no folder has: the parser would import a class that `optimizer.class_path` names."""
    if unknown := sorted(options.keys() - ({*names} - {"optimizer", "lr_scheduler"})):
        raise InputError(f"{folder.source}: this version lacks the options {excerpt(', '.join(unknown))}")


def move(model: torch.nn.Module, device: str | torch.device) -> None:
    """Move a model to a device, or raise an `InputError` if there is no such device."""
    import torch

    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device}: {reason}; use cpu or an available device") from error


def _absolute(name: str) -> str:
    """Return an existing path as an absolute one, and any other name as it is."""
    return str(Path(name).absolute()) if Path(name).exists() else name
