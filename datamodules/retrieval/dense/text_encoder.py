"""The interface of encoders, which turn texts into vectors, and how one is loaded and run.

PyTorch is imported with the first encoder: lexical retrieval does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.errors import InputError
from datamodules.retrieval.dense.ranking import DenseRanking

if TYPE_CHECKING:
    import torch

#: A bar that is updated by hand.
ProgressBar: TypeAlias = "tqdm[NoReturn]"


class TextEncoder(Protocol):
    """Encodes texts as vectors."""

    #: length of a vector.
    size: int

    @property
    def query_encoder(self) -> Callable[[list[str], int, ProgressBar], NDArray[np.float32]] | None:
        """The encoder of queries, with the arguments of `__call__`; None if queries are encoded as all texts are."""

    def __call__(self, texts: list[str], batch_size: int, bar: ProgressBar) -> NDArray[np.float32]:
        """Return the vectors of the texts [n, size], of length 1; 0 for a text without tokens.

        Args:
            texts: n texts.
            batch_size: texts encoded at once.
            bar: updated by the number of texts encoded.
        """


#: Loaders of encoders that are one file, by the file's suffix. `zoo` registers its checkpoints here, because this
#: package may not import a model.
FILE_ENCODERS: dict[str, Callable[[str, torch.device], TextEncoder]] = {}


def load_encoder(ranking: DenseRanking, device: str | None) -> TextEncoder:
    """Load the encoder of a ranking onto a device (None: a GPU if there is one).

    Raises:
        InputError: the encoder or the device does not exist.
    """
    import torch

    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r}: not on this machine; use cpu, or null to choose") from error
    path = Path(ranking.encoder)
    # Random weights are drawn before those of the file are read. The fork keeps the state of the random numbers, so a
    # training that follows does not depend on whether the vectors were in a cache.
    with torch.random.fork_rng(devices=[]):
        if not path.is_file():
            from datamodules.retrieval.dense.transformer_encoder import TransformerEncoder

            return TransformerEncoder(ranking, chosen)
        if path.suffix not in FILE_ENCODERS:
            known = f"a checkpoint ({', '.join(FILE_ENCODERS)})"
            raise InputError(
                f"encoder {ranking.encoder!r}: not a file of a known kind; use"
                f" {known if FILE_ENCODERS else 'checkpoints after `import zoo`'}, or a folder"
            )
        return FILE_ENCODERS[path.suffix](ranking.encoder, chosen)


@contextmanager
def inference(threads: int | None) -> Iterator[None]:
    """Run networks without gradients, with this number of CPU threads; None keeps the setting."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)
