"""Metrics of a run in one CSV file, resumed runs included."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import CSVLogger


class CSVMetrics(CSVLogger):
    """Writes `metrics.csv` into the run folder. Lightning's logger deletes an older file; this one appends to it."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(save_dir=folder, name="", version="")

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer, which continues the columns of an existing file."""
        if self._experiment is None:
            file = Path(self.log_dir) / "metrics.csv"
            before = file.read_bytes() if file.exists() else None
            writer: Any = super().experiment
            if before:
                file.write_bytes(before)
                writer.metrics_keys = next(csv.reader(before.decode().splitlines()))
            return writer
        return self._experiment
