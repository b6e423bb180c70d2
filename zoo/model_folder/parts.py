"""What a model folder takes along: the tokenizer of a transformer, encoders of its retriever, vectors of its memory."""

from __future__ import annotations

import os
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from datamodules.core.storage import check_inside, named_disk_errors, set_key, sync
from datamodules.core.types import PlainDict
from datamodules.retrieval.dense.ranking import files_of_encoder, trained_model
from datamodules.retrieval.dense.vector_store import store_folder
from datamodules.text.hub import model_folder
from datamodules.text.tokenization import OWN_TOKENIZERS
from zoo.model_folder.meta import without_places
from zoo.model_folder.names import STATE, TOKENIZER

#: Files by which `transformers` loads a tokenizer, and those of published modules.
_TOKENIZER_FILES = [
    "*.model",
    "*_tokens*.json",
    "*config*.json",
    "merges.txt",
    "modules.json",
    "tokenizer*",
    "vocab*",
]
#: Folder of an encoder of the retriever; further ones have a number.
_ENCODER = "encoder"


def copy_tokenizer(name: str, folder: Path) -> str:
    """Copy the files of a transformer's tokenizer, and return the tokenizer's name in the model folder."""
    if name in OWN_TOKENIZERS:
        return name
    source = model_folder(name, _TOKENIZER_FILES)
    check_inside(source)
    for file in sorted(source.rglob("*")):
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in _TOKENIZER_FILES):
            _copy(file, folder / TOKENIZER / file.relative_to(source))
    return TOKENIZER


def copy_encoders(description: PlainDict, folder: Path) -> PlainDict:
    """Copy the encoders that a retriever reads from folders, and return its description with their names here."""
    arguments = {name: _copied(value, folder) for name, value in description["init_args"].items()}
    encoder = arguments.get("encoder")
    if isinstance(encoder, str) and Path(encoder).exists():
        name = _ENCODER
        number = 1
        while (folder / name).exists():
            number += 1
            name = f"{_ENCODER}-{number}"
        for relative, file in files_of_encoder(encoder).items():
            _copy(file, folder / name / relative)
        if trained_model(encoder) is not None:
            set_key(folder / name / STATE, "fitted", {})
        arguments["encoder"] = name
    return {"class_path": description["class_path"], "init_args": without_places(arguments)}


def _copied(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_copied(item, folder) for item in value]
    return copy_encoders(value, folder) if isinstance(value, dict) and "class_path" in value else value


def keep_encodings(memory: Path, encoder: str | None) -> None:
    """Delete the vectors of a memory that other models have left there."""
    own = None if encoder is None else store_folder(memory, encoder)
    for vectors in memory.glob("vectors-*"):
        if vectors != own:
            shutil.rmtree(vectors)


def _copy(source: Path, target: Path) -> None:
    """Copy a file; no link to it, since its owner may write to it."""
    with named_disk_errors(target, "--run_dir"):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(os.path.realpath(source), target)
        sync(target)
