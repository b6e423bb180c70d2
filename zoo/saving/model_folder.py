"""A model as a folder to share: weights as safetensors, everything else as JSON; no pickle.

`manifest.json` has size and checksum of each file; `memory/` and `tokenizer/` have manifests of their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datamodules.core.errors import InputError, reason
from datamodules.core.storage import check_folder, load_json
from zoo.saving.checkpoint import CHECKPOINT_KEY, Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"
#: Folder of a `transformers` tokenizer that was in a folder of the training's machine.
TOKENIZER = "tokenizer"
#: Fingerprint of the manifest.
KIND = "memory-zoo model 1"
#: In `config.json`, the key of a tensor's name among the weights.
_TENSOR = "tensor"
_ADVICE = "copy or download the folder again"


def write_model(checkpoint: Checkpoint, folder: Path) -> None:
    """Write `config.json`, `vocabulary.json` and `model.safetensors`."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    contents = {**checkpoint.to_contents()}
    for key in checkpoint.training:
        del contents[key]
    config = without_tensors(contents, "", tensors)
    vocabulary = config[CHECKPOINT_KEY]["data"].pop("vocabulary")
    save_file(tensors, folder / WEIGHTS)
    for name, part in ((CONFIG, config), (VOCABULARY, vocabulary)):
        text = json.dumps(part, indent=1, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    # safetensors makes its file readable for the owner only.
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)


def without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Replace each tensor by its name, and add it to `tensors`."""
    from torch import Tensor

    if isinstance(value, Tensor):
        name = name.removeprefix("state_dict.")
        # Tensors that share memory are copied: safetensors has no views.
        tensors[name] = value.detach().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {
            str(key): without_tensors(item, f"{name}.{key}".lstrip("."), tensors)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
    return value


def read_model(folder: Path) -> Checkpoint:
    """Read what `write_model` wrote; raises an `InputError` if a file is missing or its checksum has changed."""
    from safetensors.torch import load_file

    check_folder(folder, KIND, contents=True, advice=_ADVICE)
    if (folder / TOKENIZER).exists():
        check_folder(folder / TOKENIZER, TOKENIZER, contents=True, advice=_ADVICE)
    try:
        contents: dict[str, Any] = load_json(folder / CONFIG)
        vocabulary = load_json(folder / VOCABULARY)
        contents[CHECKPOINT_KEY]["data"]["vocabulary"] = vocabulary
        contents = with_tensors(contents, load_file(folder / WEIGHTS))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder}: no exported model of this version ({reason(error)}); {_ADVICE}"
        ) from error
    return Checkpoint.from_contents(contents, folder)


def with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace the names that `without_tensors` has put in the place of tensors by these."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [with_tensors(item, tensors) for item in value]
    return value
