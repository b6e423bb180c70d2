"""A trained model from its checkpoint: its predictions with their evidence, and its text encoder alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from numpy.typing import NDArray
from torch.nn import functional
from tqdm import tqdm

import zoo
from datamodules.classification import ClassificationDataModule, Split
from datamodules.corpora.table import Rows
from datamodules.errors import InputError
from datamodules.matching import MatchingDataModule
from datamodules.retrieval import EmbeddedRetriever, make_retriever
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.encoder import FILE_ENCODERS
from datamodules.retrieval.memory import Memory, is_existing_index, open_memory
from datamodules.sampling import LengthBucketSampler
from zoo.checkpoints import CHECKPOINT_KEY, read_checkpoint
from zoo.knn_bilstm import KNNNetwork
from zoo.matching import MatchingPredictor
from zoo.tasks.base import Task
from zoo.tasks.classification import ClassificationTask, Prediction, RetrievedMemory
from zoo.tasks.ranking import MatchingTask

#: Texts that are retrieved, tokenised and classified together.
BLOCK = 1024


class Predictor:
    """A trained model with its data side: texts in, predictions with evidence out."""

    def __init__(
        self, model: ClassificationTask, data: ClassificationDataModule, memory: Memory | None
    ) -> None:
        self.model = model.eval()
        self.data = data
        self.memory = memory

    def predict(self, texts: str | Sequence[str], batch_size: int = 256) -> list[Prediction]:
        """Classify texts.

        Args:
            texts: one text or several.
            batch_size: texts that go through the network together.

        Returns:
            For each text its label, probabilities, and the memories that were retrieved for it.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        found: list[Prediction] = []
        for start in range(0, len(texts), BLOCK):
            rows = Rows.from_lists(texts[start : start + BLOCK], source="texts to predict")
            found.extend(
                predict_split(self.model, self.data, self.data.split_of(rows, self.memory), batch_size)
            )
        return found


def load(
    checkpoint: str | Path,
    memory: str | Path | None = None,
    retriever: Retriever | None = None,
    device: str | torch.device = "cpu",
    memory_version: int | None = None,
) -> Predictor | MatchingPredictor:
    """Load a trained model for prediction; nothing but the checkpoint (and its memory) is needed.

    Args:
        checkpoint: a file that `zoo fit` wrote, e.g. `runs/NAME/checkpoints/best.ckpt`.
        memory: a memory folder to use instead of the one that the model was trained with. A matching model
            finds the candidates of questions that come alone there.
        retriever: back end and ranking to use instead (credentials, another server).
        device: where to run the network.
        memory_version: of a memory that has grown: 1 gives the predictions that the model made before
            anything was added; None uses the current version.

    Returns:
        A `Predictor` of a classifier, a `MatchingPredictor` of a model that scores pairs.

    Raises:
        InputError: the checkpoint or its memory can't be read, or the memory has no such version.

    Example:
        >>> zoo.load("best.ckpt").predict(["a text"])[0].label  # doctest: +SKIP
    """
    contents = read_checkpoint(checkpoint)
    state = contents[CHECKPOINT_KEY]["data"]
    model = make_model(contents)
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device}: {reason}; use cpu or a device that is there") from error
    if isinstance(model, MatchingTask):
        pairs = make_matching_data(state, retriever)
        return MatchingPredictor(model, pairs, _candidates(pairs, memory, memory_version))
    assert isinstance(model, ClassificationTask)
    data = make_data(state, retriever)
    opened: Memory | None = None
    if model.uses_memory and state["num_memories"] > 0:
        location = str(memory) if memory is not None else state["memory"]
        if is_existing_index(data.retriever):
            location = f"index:{data.retriever.existing_index}"
        opened = open_memory(location, data.retriever, memory_version)
    return Predictor(model, data, opened)


def load_classifier(checkpoint: str | Path, **options: Any) -> Predictor:
    """`load` for what is done with classifiers only.

    Raises:
        InputError: the checkpoint is another model's.
    """
    predictor = load(checkpoint, **options)
    if not isinstance(predictor, Predictor):
        raise InputError(
            f"{checkpoint}: of the model {type(predictor.model).__name__}; give a classifier's checkpoint"
        )
    return predictor


def _candidates(data: MatchingDataModule, memory: str | Path | None, version: int | None) -> Memory | None:
    """The memory that was asked for; None = that of the training, which is built when it is first needed."""
    if is_existing_index(data.retriever):
        return open_memory(f"index:{data.retriever.existing_index}", data.retriever, version)
    if memory is None and version is None:
        return None
    return data.open_memory(None if memory is None else str(memory), version)


def make_model(checkpoint: dict[str, Any]) -> Task:
    """The model of a checkpoint's contents, with its weights."""
    name = checkpoint[CHECKPOINT_KEY]["model"]
    model: Task = getattr(zoo, name)(**model_options(checkpoint))
    model.on_load_checkpoint(checkpoint)
    model.load_state_dict(checkpoint["state_dict"])
    return model


def model_options(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a checkpoint's model was made with, but for optimizer and schedule."""
    ignored = ("optimizer", "lr_scheduler")
    return {
        name: value
        for name, value in checkpoint["hyper_parameters"].items()
        if not name.startswith("_") and name not in ignored
    }


def make_data(state: dict[str, Any], retriever: Retriever | None = None) -> ClassificationDataModule:
    """The data side of a checkpoint's state, ready for new texts."""
    if retriever is None:
        retriever = make_retriever(state["retriever"])
    data = ClassificationDataModule(**state["options"], retriever=retriever)
    data.use_state(state)
    return data


def make_matching_data(state: dict[str, Any], retriever: Retriever | None = None) -> MatchingDataModule:
    """The data side of a matching checkpoint's state, ready for new pairs."""
    if retriever is None:
        retriever = make_retriever(state["retriever"])
    data = MatchingDataModule(**state["options"], retriever=retriever)
    data.use_state(state)
    return data


def predict_split(
    model: ClassificationTask,
    data: ClassificationDataModule,
    split: Split,
    batch_size: int = 256,
    rows: int | None = None,
) -> Iterator[Prediction]:
    """Predictions for the first rows of a prepared table, in row order."""
    labels = data.spec.labels
    total = len(split.rows) if rows is None else min(rows, len(split.rows))
    training = model.training
    model.eval()
    try:
        with data.dataset_for_now(split) as dataset:
            for start in range(0, total, batch_size):
                batch = dataset.__getitems__(range(start, min(start + batch_size, total)))
                batch = move_data_to_device(batch, model.device)
                with torch.inference_mode():
                    output = model(batch)
                probabilities = output.logits.softmax(dim=1).cpu().tolist()
                weights = output.memory_weight.cpu().tolist()
                for row, probability, weight in zip(count(start), probabilities, weights, strict=False):
                    best = max(range(len(labels)), key=probability.__getitem__)
                    yield Prediction(
                        text=split.rows.texts[row],
                        label=labels[best],
                        probability=probability[best],
                        probabilities=dict(zip(labels, probability, strict=True)),
                        memories=_memories(split, row, weight),
                    )
    finally:
        model.train(training)


def _memories(split: Split, row: int, weights: Sequence[float]) -> list[RetrievedMemory]:
    if split.neighbors is None:
        return []
    memories = split.neighbors.memories
    return [
        RetrievedMemory(
            text=memories.texts[int(number)],
            label=memories.label(int(number)),
            retrieval_score=float(score),
            weight=weight,
        )
        for number, score, weight in zip(
            split.neighbors.rows[row], split.neighbors.scores[row], weights, strict=True
        )
        if number >= 0
    ]


class CheckpointEncoder:
    """A trained model's text encoder: what dense retrieval uses to see texts as the model sees them.

    Texts are cut into words, numbered and shortened as in the model's training. See
    `datamodules.retrieval.encoder.TextEncoder`.

    Args:
        checkpoint: a file that `zoo fit` wrote.
        device: where to run the network.

    Raises:
        InputError: the checkpoint can't be read, or its model encodes no texts.
    """

    def __init__(self, checkpoint: str, device: torch.device) -> None:
        contents = read_checkpoint(checkpoint)
        network = make_model(contents).network
        if not isinstance(network, KNNNetwork):
            name = contents[CHECKPOINT_KEY]["model"]
            raise InputError(f"encoder {checkpoint!r}: a {name} has no text encoder; use that of a KNNBiLSTM")
        self.network = network.eval().to(device)
        self.size = network.encoder.size
        self.device = device
        # Encoding needs no memories: whatever the model found its own with stays closed.
        self.data = make_data(contents[CHECKPOINT_KEY]["data"], EmbeddedRetriever())

    def __call__(self, texts: list[str], batch_size: int, bar: tqdm[Any]) -> NDArray[np.float32]:
        """The texts' vectors [n, size], of length 1; 0 for a text without words."""
        split = self.data.split_of(Rows.from_lists(texts, source="texts to encode"), None)
        vectors = np.zeros((len(texts), self.size), np.float32)
        with self.data.dataset_for_now(split) as dataset:
            full = np.flatnonzero(dataset.lengths)
            bar.update(len(texts) - len(full))
            for places in LengthBucketSampler(dataset.lengths[full], batch_size, training=False):
                rows = full[places]
                batch = move_data_to_device(dataset.__getitems__(rows.tolist()), self.device)
                encoded = functional.normalize(self.network.encode_texts(batch).float(), dim=1)
                vectors[rows] = encoded.cpu().numpy()
                bar.update(len(rows))
        return vectors


FILE_ENCODERS[".ckpt"] = CheckpointEncoder
