"""Scores of an evaluation besides those that Lightning logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from datamodules.core.storage import write_json
from datamodules.core.types import PlainDict


@dataclass
class Evaluation:
    """Scores of an evaluation besides those that Lightning logs, as plain values.

    A `Task` has one and fills it, and `zoo.runs.evaluation` reads the file.
    """

    #: scores of single classes, by name.
    classes: dict[str, float] = field(default_factory=dict)
    #: the score of each query, by its id, where models are compared query by query.
    queries: dict[str, float] = field(default_factory=dict)
    #: a table in which the model compares itself with others; empty where there is none.
    table: PlainDict = field(default_factory=dict)
    #: a comparison of probabilities with the accuracy; empty where there is none.
    calibration: PlainDict = field(default_factory=dict)
    #: columns and lines of the rows with wrong predictions; empty where there are none.
    errors: PlainDict = field(default_factory=dict)
    #: whether these rows are listed.
    lists_errors: bool = False
    #: where `write` puts all: a process that is forked for a device leaves nothing else behind.
    file: Path | None = None

    def write(self) -> None:
        """Write the scores, if a file is set."""
        if self.file is not None:
            write_json(self.file, {name: value for name, value in vars(self).items() if name != "file"})
