"""Encoders: what turns texts into vectors, which kinds there are, and how one is loaded and run.

PyTorch is imported with the first encoder and not before: lexical retrieval does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.errors import InputError
from datamodules.retrieval.dense.ranking import DenseRanking

if TYPE_CHECKING:
    import torch


class TextEncoder(Protocol):
    """Texts in, vectors out."""

    #: numbers in a vector.
    size: int

    @property
    def query_encoder(self) -> Callable[[list[str], int, tqdm[Any]], NDArray[np.float32]] | None:
        """What makes vectors of queries, called likewise; None: queries are encoded as all texts are."""

    def __call__(self, texts: list[str], batch_size: int, bar: tqdm[Any]) -> NDArray[np.float32]:
        """The vectors of the texts [n, size], of length 1; 0 for a text without tokens.

        Args:
            texts: n texts.
            batch_size: texts encoded at once.
            bar: told of each text that is done.
        """


#: What reads encoders that are one file, by the file's suffix. `zoo` enters its checkpoints here, since
#: nothing in this package may import a model.
FILE_ENCODERS: dict[str, Callable[[str, torch.device], TextEncoder]] = {}


def load_encoder(ranking: DenseRanking, device: str | None) -> TextEncoder:
    """The encoder that a ranking names, on a device (None: a GPU if there is one).

    Raises:
        InputError: no such encoder, or no such device.
    """
    import torch

    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r}: not on this machine; use cpu, or null to choose") from error
    path = Path(ranking.encoder)
    # Weights are drawn before they are read. A training that follows must not see whether this was in a cache.
    with torch.random.fork_rng(devices=[]):
        if not path.is_file():
            from datamodules.retrieval.dense.transformer_encoder import TransformerEncoder

            return TransformerEncoder(ranking, place)
        if path.suffix not in FILE_ENCODERS:
            known = (
                f"a checkpoint ({', '.join(FILE_ENCODERS)})"
                if FILE_ENCODERS
                else "checkpoints after `import zoo`"
            )
            raise InputError(
                f"encoder {ranking.encoder!r}: not a file of a known kind; use {known}, or a folder"
            )
        return FILE_ENCODERS[path.suffix](ranking.encoder, place)


@contextmanager
def inference(threads: int | None) -> Iterator[None]:
    """Run networks without gradients, on so many threads of the CPU; None leaves the setting."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)
