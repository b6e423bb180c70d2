"""Encoders, which turn texts into vectors: their interface, and loading the one of a ranking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.errors import InputError
from datamodules.core.sharing import network_threads
from datamodules.retrieval.dense.ranking import DenseRanking, trained_model

#: The entry point of an installed package that makes a `TextEncoder` from the folder of a trained model and a device.
#: `zoo` registers its models this way, because this package imports no model.
MODEL_ENCODERS = "memory_zoo.file_encoders"
#: A bar that is updated by hand.
ProgressBar: TypeAlias = "tqdm[NoReturn]"


class TextEncoder(Protocol):
    """Encodes texts as vectors."""

    #: length of a vector.
    size: int
    #: True if queries have other vectors than equal texts that are searched.
    has_query_side: bool

    def __call__(
        self, texts: list[str], batch_size: int, bar: ProgressBar, queries: bool = False
    ) -> NDArray[np.float32]:
        """Return the vectors of n texts [n, size], of length 1, 0 for a text without tokens; update the bar."""


@contextmanager
def inference(threads: int | None) -> Iterator[None]:
    """Run networks without gradients, with this number of CPU threads; None keeps the setting."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(network_threads(threads or before))
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


def load_encoder(ranking: DenseRanking, device: str | None) -> TextEncoder:
    """Load the encoder of a ranking onto a device (None: a GPU if there is one), or raise an `InputError`."""
    import torch

    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r}: not on this machine; use cpu, or null to choose") from error
    model = trained_model(ranking.encoder)
    # Random weights are drawn before those of the file are read. A training that follows must not depend on whether the
    # vectors were in a cache.
    with torch.random.fork_rng(devices=[]):
        if model is None:
            from datamodules.retrieval.dense.transformer_encoder import TransformerEncoder

            return TransformerEncoder(ranking, chosen)
        makers = [*entry_points(group=MODEL_ENCODERS)]
        if not makers:
            raise InputError(f"encoder {ranking.encoder!r}: a trained model, which needs the package zoo")
        encoder: TextEncoder = makers[0].load()(str(model), chosen)
        return encoder
