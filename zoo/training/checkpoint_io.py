"""Lightning's checkpoints, written in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytorch_lightning.plugins import TorchCheckpointIO
from typing_extensions import override

from zoo.saving.checkpoint import write_contents


class WholeCheckpoints(TorchCheckpointIO):
    """Writes Lightning's checkpoints in one step.

    Lightning writes to the system's temporary folder first; where that is another file system, a killed process or a
    full disk leaves half a file in place of a good one.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object | None = None
    ) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_contents(checkpoint, Path(path))
