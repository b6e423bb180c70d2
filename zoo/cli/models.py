"""`zoo list` shows the models, and `zoo export` writes a trained one for others."""

from __future__ import annotations

import inspect
from typing import Any

import torch

import zoo
from zoo.saving import export as sharing
from zoo.saving.loading import option_names


def list_models() -> None:
    """Show the models: name, task, paper, parameters, options."""
    for name, kind in zoo.list_models().items():
        required: dict[str, Any] = {"transformer": "..."} if "transformer" in _required(kind) else {}
        with torch.device("meta"):  # weights that are counted need no numbers
            size = kind(**required).describe_size()
        print(f"{name}\n  task        {kind.task}\n  paper       {kind.paper}")
        print(f"  parameters  {size}\n  options     {', '.join(option_names(kind))}")


def _required(kind: type[Any]) -> list[str]:
    parameters = inspect.signature(kind.__init__).parameters.values()
    return [each.name for each in parameters if each.default is inspect.Parameter.empty]


def export_model(ckpt_path: str, folder: str, push: str | None = None, private: bool = False) -> None:
    """Write a trained model as a folder that works alone on another machine: no pickle, a checksum for every file.

    Args:
        ckpt_path: a checkpoint that `zoo fit` wrote, or its run folder.
        folder: to make.
        push: name of a repository of the Hugging Face Hub, `user/name`, that the folder is uploaded to.
        private: make that repository one that only its owner sees.
    """
    made = sharing.export(ckpt_path, folder)
    print(f"{made}: {sum(file.stat().st_size for file in made.rglob('*') if file.is_file()) / 1e6:.1f} MB")
    if push is not None:
        print(sharing.push(made, push, private))
