"""The encoder of a ranking, loaded onto a device; PyTorch is imported with the first one."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from datamodules.core.errors import InputError
from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.text_encoder import TextEncoder

#: Entry points of installed packages, named after the suffix of a file: each makes a `TextEncoder` from the file's name
#: and a device. `zoo` registers its checkpoints this way, because this package imports no model.
FILE_ENCODERS = "memory_zoo.file_encoders"


def load_encoder(ranking: DenseRanking, device: str | None) -> TextEncoder:
    """Load the encoder of a ranking onto a device (None: a GPU if there is one), or raise an `InputError`."""
    import torch

    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r}: not on this machine; use cpu, or null to choose") from error
    path = Path(ranking.encoder)
    # Random weights are drawn before those of the file are read. A training that follows must not depend on whether the
    # vectors were in a cache.
    with torch.random.fork_rng(devices=[]):
        if not path.is_file():
            from datamodules.retrieval.dense.transformer_encoder import TransformerEncoder

            return TransformerEncoder(ranking, chosen)
        makers = {f".{entry.name}": entry for entry in entry_points(group=FILE_ENCODERS)}
        if path.suffix not in makers:
            # Without the package `zoo`, there are no kinds of files.
            files = f"a checkpoint ({', '.join(makers)}) or " if makers else ""
            raise InputError(f"encoder {ranking.encoder!r}: not a file of a known kind; use {files}a folder")
        encoder: TextEncoder = makers[path.suffix].load()(ranking.encoder, chosen)
        return encoder
