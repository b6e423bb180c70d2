"""`evaluate`: scores of a trained model on a split of its data."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar

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
from zoo.runs.training import TrainerOptions, as_list, skip_unread_memory, without_output
from zoo.tasks.base import Evaluation, Task
from zoo.tasks.classification.calibration import Calibration

#: Maximum number of classes with scores in the text.
MOST_CLASSES = 30


def as_json(evaluation: Evaluation) -> PlainDict:
    """Return an evaluation as plain values, as a command writes it."""
    calibration = _calibration(evaluation)
    described = calibration and calibration.as_json()
    tables = {"by_query": evaluation.queries, "answer": evaluation.table, "calibration": described}
    return {**evaluation.scores, **evaluation.parts, **{name: each for name, each in tables.items() if each}}


def as_text(evaluation: Evaluation) -> str:
    """Return a line for each score, a line for each part, and the tables, as a command prints them."""
    width = max(map(len, evaluation.scores), default=0)
    lines = [f"{name:{width}}  {_number(value):>9}" for name, value in evaluation.scores.items()]
    if evaluation.parts:
        lines += ["", *_lines_of(evaluation.parts)]
    for table in (_answer(evaluation), _calibration(evaluation)):
        if table is not None:
            lines += ["", table.as_markdown()]
    return "\n".join(lines)


def write(evaluation: Evaluation, file: Path) -> None:
    """Write an evaluation as JSON, and tables and charts next to it."""
    write_json(file, as_json(evaluation), "--output")
    if evaluation.errors:
        write_table(file.with_name(f"{file.stem}_errors.csv"), *evaluation.errors.values())
    if (answer := _answer(evaluation)) is not None:
        answer.write(file.parent, f"{file.stem}_answer")
    if (calibration := _calibration(evaluation)) is not None:
        chart = calibration.chart()
        chart._replace(name=f"{file.stem}_{chart.name}").write(file.parent)


def _answer(evaluation: Evaluation) -> Answer | None:
    return Answer.of(evaluation.table) if evaluation.table else None


def _calibration(evaluation: Evaluation) -> Calibration | None:
    return Calibration(**evaluation.calibration) if evaluation.calibration else None


def _lines_of(parts: Mapping[str, float]) -> Iterator[str]:
    figures = list(dict.fromkeys(name.partition("/")[0] for name in parts))
    names = list(dict.fromkeys(name.partition("/")[2] for name in parts))
    width = max(map(len, map(visible, names[:MOST_CLASSES])))
    yield " " * width + "".join(f"{figure:>11}" for figure in figures)
    for name in names[:MOST_CLASSES]:
        values = [(figure, parts.get(f"{figure}/{name}")) for figure in figures]
        fields = ["" if value is None else _number(value, figure) for figure, value in values]
        yield f"{visible(name):{width}}" + "".join(f"{field:>11}" for field in fields)
    if len(names) > MOST_CLASSES:
        yield f"and {len(names) - MOST_CLASSES} more classes (--output FILE has all)"


def _number(value: float, figure: str | None = None) -> str:
    is_count = float(value).is_integer() if figure is None else figure in ("support", "better", "worse")
    return f"{value:,.0f}" if is_count else f"{value:.4f}"


def evaluate(
    model: Task, data: DataModule, split: str, trainer: TrainerOptions, lists_errors: bool = False
) -> Evaluation | None:
    """Compute the scores of a trained model on `validation` or `test` rows; None in all processes but the first."""
    # Loggers and callbacks are those of a training, but for what shows the progress.
    arguments = without_output(trainer.arguments)
    shown = [each for each in as_list(arguments.get("callbacks")) if isinstance(each, ProgressBar)]
    arguments |= {"logger": False, "enable_checkpointing": False, "callbacks": shown}
    with running(trainer.seed), tempfile.TemporaryDirectory() as folder:
        model.run_seed = data.seed = trainer.seed
        lightning = pl.Trainer(**arguments)
        file = Path(folder) / "scores.json"
        model.evaluation = Evaluation(lists_errors=lists_errors, file=file)
        run = lightning.validate if split == "validation" else lightning.test
        run(model, datamodule=data, verbose=False)
        if not lightning.is_global_zero:
            return None
        evaluation = Evaluation(**json.loads(file.read_text(encoding="utf-8")))
    stage = "val/" if split == "validation" else "test/"
    figures = {name.removeprefix(stage): float(value) for name, value in lightning.callback_metrics.items()}
    evaluation.scores = {name: value for name, value in figures.items() if name not in evaluation.parts}
    return evaluation


def restore(model: Task, data: DataModule, folder: ModelFolder, split: str, names_memory: bool) -> None:
    """Give the trained weights to a model, and its memory to the data, unless the user names another."""
    source = f"--ckpt_path {folder.source}"
    if data.spec_type is not model.spec_type:
        raise InputError(
            f"--data {type(data).__name__}: {source} is a {folder.meta.model}, which takes other data; omit the option"
        )
    skip_unread_memory(model, data)
    named = data.options.tables
    if named["train" if data.options.split_shares.get(split) else split] is None:
        option = data.options.table_option.format(split=split)
        command = "validate" if split == "validation" else "test"
        raise InputError(f"zoo {command}: name a table by --data.{option}, or --config runs/NAME/config.yaml")
    state = folder.whole_meta.data
    check_split(data.options, data.file_contents, state, split, source)
    model.restore(folder.whole_meta, folder.weights())
    data.remember(state.seen)
    version = None
    if data.memory is not None and data.has_memory and not names_memory:
        data.memory.was_users = state.memory_is_users
        use_memory(folder, data)
        version = folder.state.version
    use_fitted(folder, model, version)
