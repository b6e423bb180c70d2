"""Methods that `torch.compile` does not trace.

PyTorch's own decorator, `torch.compiler.disable`, imports the compiler: 2 s in every process that only predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

Method = TypeVar("Method", bound=Callable[..., Any])

_MARK = "is_uncompiled"


def uncompiled(method: Method) -> Method:
    """Mark a method of a module; `exclude_uncompiled` excludes it."""
    setattr(method, _MARK, True)
    return method


def exclude_uncompiled(network: nn.Module) -> None:
    """Exclude the marked methods of a network's classes from `torch.compile`; called before it."""
    for kind in {base for module in network.modules() for base in type(module).__mro__}:
        marked = [name for name, method in vars(kind).items() if getattr(method, _MARK, False)]
        for name in marked:
            method = getattr(kind, name)
            setattr(method, _MARK, False)
            setattr(kind, name, torch.compiler.disable(method))  # type: ignore[no-untyped-call]
