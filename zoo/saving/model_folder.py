"""A model as a folder to share: weights as safetensors, all else as JSON, and its memory; no pickle.

| file | what |
|---|---|
| `model.safetensors` | weights, and what a model without gradient steps learned |
| `config.json` | the model's class and options, the data's, and what the network was made with |
| `vocabulary.json` | words, characters and tokenizer |
| `memory/` | the memory, if the model reads one that is a folder |
| `README.md` | the model card |
| `manifest.json` | size and checksum of each file but the memory's, which has a manifest of its own |
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from datamodules.core.errors import InputError, reason
from datamodules.core.storage import check_folder

WEIGHTS, CONFIG, VOCABULARY, MEMORY = "model.safetensors", "config.json", "vocabulary.json", "memory"
#: Of a run folder, the checkpoint that stands for it.
_BEST = "checkpoints/best.ckpt"
#: What the manifest says such a folder is.
KIND = "memory-zoo model 1"
#: In `config.json`, what stands for a tensor: its name among the weights.
_TENSOR = "tensor"
#: Parts of a checkpoint that only a training needs.
_OF_TRAINING = (
    "loops",
    "callbacks",
    "optimizer_states",
    "lr_schedulers",
    "MixedPrecision",
    "hparams_name",
    "datamodule_hparams_name",
    "datamodule_hyper_parameters",
)
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def write_parts(contents: dict[str, Any], folder: Path) -> None:
    """Write a checkpoint's contents as `config.json`, `vocabulary.json` and `model.safetensors`."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    kept = {name: part for name, part in contents.items() if name not in _OF_TRAINING}
    config = _without_tensors(kept, "", tensors)
    vocabulary = config["memory_zoo"]["data"].pop("vocabulary")
    save_file(tensors, folder / WEIGHTS)
    for name, part in ((CONFIG, config), (VOCABULARY, vocabulary)):
        text = json.dumps(part, indent=1, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    # safetensors lets the owner alone read its file.
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with a name in place of each tensor, which is added to `tensors`."""
    if isinstance(value, Tensor):
        name = name.removeprefix("state_dict.")
        # Those that share memory are copied: a file of safetensors knows no views.
        tensors[name] = value.detach().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {
            str(key): _without_tensors(item, f"{name}.{key}".lstrip("."), tensors)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
    return value


def read_parts(folder: Path) -> dict[str, Any]:
    """The contents of a checkpoint that `write_parts` wrote, each file compared with its checksum.

    Raises:
        InputError: the folder is no exported model, or a file is missing or damaged.
    """
    from safetensors.torch import load_file

    advice = "copy or download the folder again"
    if not (folder / CONFIG).exists():
        raise InputError(
            f"{folder}: a folder without {CONFIG}; give a checkpoint, or a folder of `zoo export`"
        )
    check_folder(folder, KIND, contents=True, advice=advice)
    try:
        contents: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        contents["memory_zoo"]["data"]["vocabulary"] = vocabulary
        found: dict[str, Any] = _with_tensors(contents, load_file(folder / WEIGHTS))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder}: no exported model of this version ({reason(error)}); {advice}"
        ) from error
    return found


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    return value


def is_model_folder(path: str | Path) -> bool:
    """Whether a folder is a run or an exported model."""
    return any((Path(path) / name).is_file() for name in (CONFIG, _BEST))


def local_model(source: str | Path) -> Path:
    """Where a model lies on this machine: a checkpoint, an exported folder, or what the Hugging Face Hub has.

    Args:
        source: a path, where a run folder stands for its best checkpoint; or, where there is no such path, the name of
            a repository of the Hub (`user/name`).

    Raises:
        InputError: the Hub can't be reached, or has no such model.
    """
    path = Path(source)
    if (best := path / _BEST).is_file():
        return best
    if path.exists() or isinstance(source, Path) or not _HUB_NAME.fullmatch(source) or path.suffix == ".ckpt":
        return path
    return _downloaded(source)


@cache
def _downloaded(source: str) -> Path:
    """Where the Hub's files of a repository are; it is asked once, however many readers a command has."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(source))
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{source}: no such file or folder, and no such model on the Hugging Face Hub"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InputError(
            f"{source}: no such file or folder, and the Hugging Face Hub can't be reached ({reason(error)[:80]}); check"
            " the connection or the name. HF_HUB_OFFLINE=1 asks only for what was downloaded before"
        ) from error
