"""Lightning's checkpoints, written in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytorch_lightning.plugins import TorchCheckpointIO
from typing_extensions import override

from zoo.training.checkpoints import write_contents


class WholeCheckpoints(TorchCheckpointIO):
    """Leaves no half of a file in place of a good one where the system's temporary folder is on another disk."""

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object | None = None
    ) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_contents(checkpoint, Path(path))
