"""`evaluate`: scores of a trained model on a split of its data."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytorch_lightning as pl

from callbacks.chart import write_table
from datamodules.base import DataModule
from datamodules.core.errors import InputError, visible
from datamodules.core.storage import write_json
from datamodules.core.types import PlainDict
from datamodules.state import check_split
from zoo.ensemble.answer import Answer
from zoo.loading import use_fitted, use_memory
from zoo.model_folder.folder import ModelFolder
from zoo.runs.process import running
from zoo.runs.training import TrainerOptions, skip_unread_memory, without_output
from zoo.tasks.base import Task
from zoo.tasks.classification.calibration import Calibration

#: Maximum number of classes with scores in the text.
MOST_CLASSES = 30


@dataclass(frozen=True)
class Scores:
    """The scores of a model on a split; `evaluate` makes them."""

    #: name -> value.
    scores: dict[str, float]
    #: scores of single classes, such as `f1/World`, or of the parts of a search, such as `map/BM25 alone`.
    parts: dict[str, float]
    #: the score of each query by its id, where models are compared query by query.
    queries: dict[str, float]
    #: a table in which the model compares itself with others.
    answer: Answer | None
    #: a comparison of probabilities with the accuracy.
    calibration: Calibration | None
    #: columns and lines of a table of the rows with wrong predictions.
    errors: PlainDict | None

    def as_json(self) -> PlainDict:
        """Return plain values."""
        return {
            **self.scores,
            **self.parts,
            **({"by_query": self.queries} if self.queries else {}),
            **({} if self.answer is None else {"answer": self.answer.as_json()}),
            **({} if self.calibration is None else {"calibration": self.calibration.as_json()}),
        }

    def as_text(self) -> str:
        """Return a line for each score, a line for each part, and the tables, as a command prints them."""
        width = max(map(len, self.scores), default=0)
        lines = [f"{name:{width}}  {_number(value):>9}" for name, value in self.scores.items()]
        if self.parts:
            lines += ["", *self._lines_of_parts()]
        for table in (self.answer, self.calibration):
            if table is not None:
                lines += ["", table.as_markdown()]
        return "\n".join(lines)

    def _lines_of_parts(self) -> Iterator[str]:
        figures = list(dict.fromkeys(name.partition("/")[0] for name in self.parts))
        names = list(dict.fromkeys(name.partition("/")[2] for name in self.parts))
        width = max(map(len, map(visible, names[:MOST_CLASSES])))
        yield " " * width + "".join(f"{figure:>11}" for figure in figures)
        for name in names[:MOST_CLASSES]:
            values = [(figure, self.parts.get(f"{figure}/{name}")) for figure in figures]
            fields = ["" if value is None else _number(value, figure) for figure, value in values]
            yield f"{visible(name):{width}}" + "".join(f"{field:>11}" for field in fields)
        if len(names) > MOST_CLASSES:
            yield f"and {len(names) - MOST_CLASSES} more classes (--output FILE has all)"

    def write(self, file: Path) -> None:
        """Write the scores as JSON, and tables and charts next to it."""
        write_json(file, self.as_json(), "--output")
        if self.errors is not None:
            write_table(file.with_name(f"{file.stem}_errors.csv"), *self.errors.values())
        if self.answer is not None:
            self.answer.write(file.parent, f"{file.stem}_answer")
        if self.calibration is not None:
            chart = self.calibration.chart()
            chart._replace(name=f"{file.stem}_{chart.name}").write(file.parent)


def _number(value: float, figure: str | None = None) -> str:
    is_count = float(value).is_integer() if figure is None else figure in ("support", "better", "worse")
    return f"{value:,.0f}" if is_count else f"{value:.4f}"


def evaluate(
    model: Task,
    data: DataModule,
    split: str,
    trainer: TrainerOptions | None = None,
    lists_errors: bool = False,
) -> Scores | None:
    """Compute the scores of a trained model on `validation` or `test` rows; None in all processes but the first."""
    trainer = trainer or TrainerOptions()
    arguments = {"logger": False, **without_output(trainer.arguments), "enable_checkpointing": False}
    with running(trainer.seed), tempfile.TemporaryDirectory() as folder:
        model.run_seed = data.seed = trainer.seed
        lightning = pl.Trainer(**arguments)
        model.evaluation.file = Path(folder) / "scores.json"
        model.evaluation.lists_errors = lists_errors
        run = lightning.validate if split == "validation" else lightning.test
        run(model, datamodule=data, verbose=False)
        if not lightning.is_global_zero:
            return None
        evaluation = json.loads(model.evaluation.file.read_text(encoding="utf-8"))
    stage = "val/" if split == "validation" else "test/"
    parts = evaluation["parts"]
    figures = {name.removeprefix(stage): float(value) for name, value in lightning.callback_metrics.items()}
    return Scores(
        scores={name: value for name, value in figures.items() if name not in parts},
        parts=parts,
        queries=evaluation["queries"],
        answer=Answer.of(evaluation["table"]) if evaluation["table"] else None,
        calibration=Calibration.from_dict(evaluation["calibration"]) if evaluation["calibration"] else None,
        errors=evaluation["errors"] or None,
    )


def restore(
    model: Task, data: DataModule, folder: ModelFolder, split: str, names_memory: bool = False
) -> None:
    """Give the trained weights to a model, and its memory to the data, unless the user names another."""
    source = f"--ckpt_path {folder.source}"
    if data.spec_type is not model.spec_type:
        raise InputError(
            f"--data {type(data).__name__}: {source} is a {folder.meta.model}, which takes other data; omit the option"
        )
    skip_unread_memory(model, data)
    named = data.options.tables
    if named["train" if data.options.is_split_off(split) else split] is None:
        option = data.options.table_option.format(split=split)
        command = "validate" if split == "validation" else "test"
        raise InputError(
            f"zoo {command}: name a table with --data.{option}, or --config runs/NAME/config.yaml"
        )
    state = folder.data_state
    check_split(data.options, data.file_contents, state, split, source)
    model.restore(replace(folder.meta, data=state), folder.weights())
    data.remember(state.seen)
    version = None
    if data.memory is not None and data.has_memory and not names_memory:
        data.memory.was_users = state.memory_is_users
        use_memory(folder, data)
        version = folder.state.version
    use_fitted(folder, model, version)
