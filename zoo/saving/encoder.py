"""The text encoder of a trained model, for dense retrieval."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.errors import InputError
from datamodules.retrieval import EmbeddedRetriever
from zoo.layers.encoders import TransformerEncoder
from zoo.loading import make_data, make_model
from zoo.model_folder.folder import ModelFolder


class SavedEncoder:
    """Encodes texts as in the model's training; see `datamodules.retrieval.dense.text_encoder.TextEncoder`."""

    def __init__(self, model: str, device: torch.device) -> None:
        folder = ModelFolder.open(model)
        task = make_model(folder).to(device)
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
        self.query_encoder = self.predictor.encode_queries if self.predictor.has_query_side else None

    def __call__(self, texts: list[str], batch_size: int, bar: tqdm[NoReturn]) -> NDArray[np.float32]:
        """Return the vectors [n, size] of the texts, with length 1; 0 for a text without words."""
        return self.predictor.encode(texts, batch_size, bar)
