"""A trained model from its checkpoint: its predictions with their evidence, and its text encoder alone."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

import datamodules
import zoo
from datamodules.base import TextDataModule
from datamodules.core.classes import imported_subclass
from datamodules.core.errors import InputError
from datamodules.retrieval import EmbeddedRetriever, Retriever, make_retriever
from zoo.saving.checkpoint import CHECKPOINT_KEY, making_of, model_options, read_checkpoint
from zoo.tasks.base import Task
from zoo.tasks.predictor import Predictor


def load(
    checkpoint: str | Path,
    memory: str | Path | None = None,
    retriever: Retriever | None = None,
    device: str | torch.device = "cpu",
    memory_version: int | None = None,
) -> Any:
    """Load a trained model for prediction; nothing but the checkpoint (and its memory) is needed.

    Args:
        checkpoint: a file that `zoo fit` wrote, e.g. `runs/NAME/checkpoints/best.ckpt`, or its run folder; a folder
            that `zoo export` wrote; or the name of a model on the Hugging Face Hub, `user/name`.
        memory: a memory folder to use instead of the one that the model was trained with. A matching model
            finds the candidates of questions that come alone there.
        retriever: back end and ranking to use instead (credentials, another server).
        device: where to run the network.
        memory_version: of a memory that has grown: 1 gives the predictions that the model made before
            anything was added; None uses the current version.

    Returns:
        A `Predictor` of the model's kind: a `ClassificationPredictor`, a `MatchingPredictor`, ...

    Raises:
        InputError: the checkpoint or its memory can't be read, or the memory has no such version.

    Example:
        >>> zoo.load("best.ckpt").predict(["a text"])[0].label  # doctest: +SKIP
    """
    contents = read_checkpoint(checkpoint)
    model = make_model(contents, checkpoint)
    data = make_data(contents, retriever, checkpoint)
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device}: {reason}; use cpu or a device that is there") from error
    location = None if memory is None else str(memory)
    return model.predictor_type.open(model, data, location, memory_version, retriever)


def make_model(contents: dict[str, Any], source: str | Path = "the checkpoint") -> Task:
    """The model of a checkpoint's contents, with its weights.

    Args:
        contents: what `read_checkpoint` read.
        source: what messages call the checkpoint.

    Raises:
        InputError: this version has no such model.
    """
    kind = known_model(contents, source)
    with making_of(source):
        model = kind(**model_options(contents))
        model.on_load_checkpoint(contents)
        model.load_state_dict(contents["state_dict"])
        return model.eval()


def make_data(
    contents: Mapping[str, Any],
    retriever: Retriever | None = None,
    source: str | Path = "the checkpoint",
) -> TextDataModule[Any, Any]:
    """The data side of a checkpoint's contents, ready for new rows.

    Args:
        contents: what `read_checkpoint` read.
        retriever: in place of the one of the training.
        source: what messages call the checkpoint.

    Raises:
        InputError: this version has no such data, or it can't be made again.
    """
    state = contents[CHECKPOINT_KEY]["data"]
    with making_of(source):
        data_type = datamodules.find(state["class"])
        data = data_type(**state["options"], retriever=retriever or make_retriever(state["retriever"]))
        data.use_state(state)
        return data


def known_model(contents: Mapping[str, Any], source: str | Path) -> type[Task]:
    """The class of a checkpoint's model.

    Raises:
        InputError: this version has no such model.
    """
    name = contents[CHECKPOINT_KEY]["model"]
    if (found := model_class(name)) is None:
        raise InputError(
            f"{source}: of a model {name!r}, which this version does not have (see `zoo list`); a model of your own"
            " must be imported before"
        )
    return found


def model_class(name: str) -> type[Task] | None:
    """A model by its name, with or without its module's: one of the zoo, or of a module that was imported."""
    short = name.rpartition(".")[2]
    found: type[Task] | None = getattr(zoo, short) if short in zoo.MODELS else imported_subclass(Task, short)
    return found


def option_names(kind: type[Any]) -> list[str]:
    """The names of all options of a class whose constructors pass on what is not their own."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [
        name
        for base in inspect.getmro(kind)
        if "__init__" in vars(base)
        for name, facts in inspect.signature(vars(base)["__init__"]).parameters.items()
        if facts.kind in named and name != "self"
    ]
    return list(dict.fromkeys(names))


class CheckpointEncoder:
    """A trained model's text encoder: what dense retrieval uses to see texts as the model sees them.

    Texts are cut into words, numbered and shortened as in the model's training. See
    `datamodules.retrieval.dense.text_encoder.TextEncoder`.

    Args:
        checkpoint: a file that `zoo fit` wrote.
        device: where to run the network.

    Raises:
        InputError: the checkpoint can't be read, or its model encodes no texts.
    """

    def __init__(self, checkpoint: str, device: torch.device) -> None:
        contents = read_checkpoint(checkpoint)
        model = make_model(contents, checkpoint).to(device)
        # Encoding needs no memories: whatever the model found its own with stays closed.
        data = make_data(contents, EmbeddedRetriever(), checkpoint)
        self.predictor: Predictor = model.predictor_type(model, data)
        try:
            self.size = self.predictor.vector_size
        except InputError as error:
            raise InputError(
                f"encoder {checkpoint!r}: {error}; use that of a KNNBiLSTM or an LSTMRNN"
            ) from None
        apart = self.predictor.has_query_side
        self.query_encoder = self.predictor.encode_queries if apart else None

    def __call__(self, texts: list[str], batch_size: int, bar: tqdm[Any]) -> NDArray[np.float32]:
        """The texts' vectors [n, size], of length 1; 0 for a text without words."""
        return self.predictor.encode(texts, batch_size, bar)
