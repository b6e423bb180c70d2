"""`zoo list` shows the models, `zoo config` configurations, and `zoo export` writes a trained model for others."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import groupby

from datamodules.core.classes import option_defaults
from datamodules.core.errors import InputError, excerpt
from zoo.registry import MODELS, list_models, model_class
from zoo.runs import configs


def show_models(name: str = "*") -> None:
    """Show the models by task, with their publications; or one model with its options and measured scores.

    Args:
        name: of a model, or a pattern, such as "*lstm*".
    """
    if not (names := list_models(name)) or names[0].lower() == name.lower():
        name = names[0] if names else name
        kind = model_class(name)
        paper = MODELS[name].paper if name in MODELS else ""
        print(f"{kind.__name__}\n  task        {kind.task}\n  paper       {paper}")
        print(f"  options     {', '.join(option_defaults(kind))}")
        for line in _scores(kind.__name__):
            print(f"  measured    {line}")
        return
    by_task = sorted(names, key=lambda model: MODELS[model].task)
    for task, models in groupby(by_task, key=lambda model: MODELS[model].task):
        print(f"{task}:")
        for model in models:
            print(f"  {model:{max(map(len, MODELS))}}  {MODELS[model].paper}")
    print("`zoo list NAME` shows the options and the scores of a model")


def _scores(model: str) -> Iterator[str]:
    """Yield the scores of a model in the tables of `zoo reproduce`, in percent."""
    with (configs.FOLDER.parent / "reproduce" / "results.csv").open(newline="", encoding="utf-8") as opened:
        for line in csv.DictReader(opened):
            if line["model"] == model and line["mean"]:
                spread = f" ± {line['sd']}" if line["sd"] else ""
                paper = f", paper {line['paper']}" if line["paper"] else ""
                score = f"{line['metric']} {line['mean']}{spread}{paper}"
                yield f"{line['table']}, {line['row']}: {score} (seeds: {line['runs']})"


def export_model(ckpt_path: str, folder: str, push: str | None = None) -> None:
    """Write a trained model as a folder that works alone on another machine: no pickle, a checksum for every file.

    Args:
        ckpt_path: a run folder or a model folder.
        folder: to make.
        push: upload the model, too: user/name on the Hugging Face Hub, where a new repository is private since it
            contains texts of the memory, or wandb:entity/project/name, a new version of an artifact.
    """
    from zoo.model_folder.export import check_target, export, upload

    if push is not None:
        check_target(push)
    exported = export(ckpt_path, folder)
    size = sum(file.stat().st_size for file in exported.rglob("*") if file.is_file())
    print(f"{exported}: {size / 1e6:.1f} MB")
    if push is not None:
        try:
            print(upload(exported, push))
        except InputError as error:
            raise InputError(f"{error}; the model is in {exported}, from where it can be uploaded") from error


def config(name: str | None = None) -> None:
    """Print a configuration of the zoo, to read it or to make it your own; without a name, the names of all.

    Args:
        name: a name, such as hmn/hmn4qa.
    """
    if name is not None:
        print(configs.find(name).read_text(encoding="utf-8"), end="")
        return
    for each in configs.names():
        first = (configs.FOLDER / f"{each}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        print(f"{each:32} {excerpt(first.lstrip('# '), 85)}")
