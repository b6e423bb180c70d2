"""The end of a training: the model, its memory and all that it names go into a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from datamodules.base import DataModule
from datamodules.core import storage
from datamodules.core.types import PlainDict, mapped
from datamodules.retrieval import FolderMemory, is_memory
from datamodules.retrieval.dense.ranking import files_of_encoder, trained_model
from datamodules.retrieval.dense.vector_store import store_folder
from datamodules.retrieval.registry import with_members
from datamodules.text.sentence_modules import model_folder
from datamodules.text.tokenization import OWN_TOKENIZERS
from zoo.layers.lora import without_adapters
from zoo.model_folder.folder import FITTED, KIND, MEMORY, MODEL, STATE, TOKENIZER, VOCABULARY, WEIGHTS
from zoo.model_folder.meta import Meta, without_place
from zoo.model_folder.state import FittedFiles, State, without_tensors, write_values

#: Files by which `transformers` loads a tokenizer, and those of published modules.
_TOKENIZER_FILES = ["*.model", "*_tokens*.json", "*config*.json", "merges.txt", "modules.json"]
_TOKENIZER_FILES += ["tokenizer*", "vocab*"]
#: Folder of an encoder of the retriever; further ones have a number.
_ENCODER = "encoder"
#: Options that describe how the training started; their effect is in the weights.
_STARTED_WITH = ("init_from", "freeze", "lora_rank")
_ADVICE = "copy or download the folder again"


def write(
    folder: Path,
    meta: Meta,
    weights: PlainDict,
    data: DataModule,
    held_out: PlainDict | None = None,
    encoder: str | None = None,
) -> None:
    """Write a trained model with the memory of its training, whole or not at all; replace an earlier folder.

    `weights` are tensors, and plain values with tensors, by name; `held_out` are the held-out rows of the training.
    `encoder` is the fingerprint of the encoder whose vectors of the memory are kept; None = none are.
    """
    with new_model_folder(folder, "--run_dir") as partial:
        meta, version, facts = _portable(meta, data, partial), 0, PlainDict()
        write_files(partial, meta, without_adapters(weights))
        is_there = data.memory is not None and is_memory(data.memory.location)
        memory = data.open_memory() if is_there else None
        if isinstance(memory, FolderMemory):
            version = memory.version
            memory.copy_to(partial / MEMORY)
            keep_encodings(partial / MEMORY, encoder)
            pointer = storage.read_checked(partial / STATE, _ADVICE)["memory"]
            facts = {"encoder": encoder, "memory": {**pointer, "retriever": meta.data.retriever}}
        fitted = {}
        if held_out is not None:
            fitted[version] = FittedFiles(held_out=write_values(partial / FITTED, "held_out", held_out))
        facts |= {"fitted": State(version, fitted).describe_fitted(), "trained": version}
        storage.update(partial / STATE, lambda values: {**values, **facts})


@contextmanager
def new_model_folder(folder: Path, option: str) -> Iterator[Path]:
    """Yield a temporary folder, which becomes that of a model when the block ends well; errors name an option."""
    named = storage.named_disk_errors
    with named(folder, option):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with storage.lock(folder), storage.new_folder(folder, KIND) as partial, named(folder, option):
        yield partial
        for lock_file in partial.glob(".*.lock"):
            lock_file.unlink()


def _portable(meta: Meta, data: DataModule, folder: Path) -> Meta:
    """Return the description of a model without names of places, whose tokenizer and encoders are copied."""
    state = data.portable_state()
    retriever = copy_encoders(state.retriever, folder)
    options = {**state.options, "tokenizer": copy_tokenizer(state.options["tokenizer"], folder)}
    return replace(
        meta,
        options={
            name: None if name in _STARTED_WITH else mapped(without_place, value)
            for name, value in meta.options.items()
        },
        transformer_config=mapped(without_place, meta.transformer_config),
        data=replace(state, options=options, retriever=retriever),
    )


def write_files(folder: Path, meta: Meta, weights: PlainDict) -> None:
    """Write a description and weights into the folder of a model."""
    tensors: dict[str, Tensor] = {}
    values: PlainDict = {}
    for name, value in weights.items():
        if isinstance(value, Tensor):
            without_tensors(value, name, tensors)
        else:
            values[name] = without_tensors(value, f"{name}/", tensors)
    save_file(tensors, folder / WEIGHTS)
    described = meta.to_dict()
    vocabulary = {"vocabulary": meta.data.vocabulary, "seen": meta.data.seen}
    described["data"] |= {"vocabulary": {}, "seen": None}  # read where it is needed
    _write(folder / MODEL, {**described, "values": values})
    _write(folder / VOCABULARY, vocabulary)
    # safetensors makes its file readable for the owner only.
    (folder / WEIGHTS).chmod((folder / MODEL).stat().st_mode)


def _write(file: Path, values: PlainDict) -> None:
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_tokenizer(name: str, folder: Path) -> str:
    """Copy the files of a transformer's tokenizer, and return the tokenizer's name in the model folder."""
    if name in OWN_TOKENIZERS:
        return name
    source = model_folder(name, _TOKENIZER_FILES)
    storage.check_inside(source)
    for file in sorted(source.rglob("*")):
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in _TOKENIZER_FILES):
            _copy(file, folder / TOKENIZER / file.relative_to(source))
    return TOKENIZER


def copy_encoders(description: PlainDict, folder: Path) -> PlainDict:
    """Copy the encoders that a retriever reads from folders, and return its description with their names here."""
    arguments = {
        name: with_members(value, lambda member: copy_encoders(member, folder))
        for name, value in description["init_args"].items()
    }
    encoder = arguments.get("encoder")
    if isinstance(encoder, str) and Path(encoder).exists():
        others = len([*folder.glob(f"{_ENCODER}*")])
        name = f"{_ENCODER}-{others + 1}" if others else _ENCODER
        for relative, file in files_of_encoder(encoder).items():
            _copy(file, folder / name / relative)
        if trained_model(encoder) is not None:
            storage.set_key(folder / name / STATE, "fitted", {})
        arguments["encoder"] = name
    return {"class_path": description["class_path"], "init_args": mapped(without_place, arguments)}


def keep_encodings(memory: Path, encoder: str | None) -> None:
    """Delete the vectors of a memory that other models have left there."""
    own = None if encoder is None else store_folder(memory, encoder)
    for vectors in memory.glob("vectors-*"):
        if vectors != own:
            shutil.rmtree(vectors)


def _copy(source: Path, target: Path) -> None:
    """Copy a file; no link to it, since its owner may write to it."""
    with storage.named_disk_errors(target, "--run_dir"):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(os.path.realpath(source), target)
        storage.sync(target)
