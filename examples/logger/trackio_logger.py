"""A logger for Trackio: a dashboard on your own machine, without an account; an example of a logger of your own.

pip install trackio
zoo fit --import trackio_logger --config trackio.yaml --model KNNBiLSTM --data.train_file train.csv
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trackio
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only
from typing_extensions import override

from datamodules.core.types import PlainDict


class TrackioLogger(Logger):
    """Writes configuration and metrics of a run for `trackio show`; Trackio's variable TRACKIO_DIR names the folder.

    A resumed run resumes its run there.
    """

    def __init__(self, project: str = "memory-zoo", run_name: str | None = None) -> None:
        """Choose where the run is shown.

        Args:
            project: that the run belongs to.
            run_name: None = the name of the run folder, or Trackio's choice without one.
        """
        super().__init__()
        self.project, self.run_name = project, run_name
        self._config: PlainDict = {}
        self._run: Any = None

    @property
    @override
    def name(self) -> str:
        return self.project

    @property
    @override
    def version(self) -> str | None:
        return self.run_name

    @override
    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self._config |= dict(params)

    @override
    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self._run is None:
            folder = self._config.get("config", {}).get("run_dir")
            name = self.run_name or (folder and Path(folder).name)
            self._run = trackio.init(self.project, name, config=self._config, resume="allow", embed=False)
        self._run.log(metrics, step)

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        # What a model finishes after its epochs is logged later, by the same run.
        if self._run is not None:
            self._run.finish()
            self._run = None
