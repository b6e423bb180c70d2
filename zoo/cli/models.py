"""`zoo list` shows the models, and `zoo export` writes a trained one for others."""

from __future__ import annotations

import inspect
from itertools import groupby

from zoo.registry import MODELS, model_class, paper_of


def list_models(name: str | None = None) -> None:
    """Show the models by task, with their publications; or one model with its sizes and options.

    Args:
        name: of a model; null lists all.
    """
    if name is not None:
        _describe(name)
        return
    width = max(map(len, MODELS))
    by_task = sorted(MODELS.items(), key=lambda item: item[1].task)
    for task, entries in groupby(by_task, key=lambda item: item[1].task):
        print(f"{task}:")
        for model, entry in entries:
            print(f"  {model:{width}}  {entry.paper}")
    print("`zoo list NAME` shows the sizes and options of a model")


def _describe(name: str) -> None:
    from zoo.saving.saved_model import option_names

    kind = model_class(name)
    print(f"{kind.__name__}\n  task        {kind.task}\n  paper       {paper_of(kind)}")
    print(f"  parameters  {_size_of(name)}\n  options     {', '.join(option_names(kind))}")


def _size_of(name: str) -> str:
    import torch

    from zoo.training.trained_parts import count_parameters

    kind = model_class(name)
    arguments = inspect.signature(kind.__init__).parameters.values()
    if any(
        each.default is each.empty and each.kind == each.POSITIONAL_OR_KEYWORD for each in [*arguments][1:]
    ):
        return "those of its transformer, and a layer"
    spec, data = kind.example_spec()
    with torch.device("meta"):  # counting needs no numbers
        _, parameters = count_parameters(kind().build_network(spec, None, None))
    return f"{parameters:,} by default, with {data}"


def export_model(ckpt_path: str, folder: str, push: str | None = None, private: bool = False) -> None:
    """Write a trained model as a folder that works alone on another machine: no pickle, a checksum for every file.

    Args:
        ckpt_path: a run folder, a checkpoint or an exported folder.
        folder: to make.
        push: name of a repository on the Hugging Face Hub, `user/name`, to which the folder is uploaded.
        private: only its owner sees that repository.
    """
    from zoo.saving import hub
    from zoo.saving.export import export

    exported = export(ckpt_path, folder)
    size = sum(file.stat().st_size for file in exported.rglob("*") if file.is_file())
    print(f"{exported}: {size / 1e6:.1f} MB")
    if push is not None:
        print(hub.push(exported, push, private))
