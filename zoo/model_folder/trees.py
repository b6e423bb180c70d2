"""Plain values with tensors among them: the tensors go to safetensors, the rest to JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

#: In the plain values, the key of a tensor's name.
_TENSOR = "tensor"


def without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Replace each tensor by its name, and add it to `tensors`."""
    from torch import Tensor

    if isinstance(value, Tensor):
        # Tensors that share memory are copied: safetensors has no views.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {
            str(key): without_tensors(item, f"{name}.{key}".lstrip("."), tensors)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
    return value


def with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace the names that `without_tensors` has put in the place of tensors by these."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [with_tensors(item, tensors) for item in value]
    return value
