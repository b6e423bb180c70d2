"""The end of a training: the model, its memory and all that it names go into a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from torch import Tensor

from datamodules.base import DataModule
from datamodules.core.storage import lock, named_disk_errors, new_folder, read_checked, set_key
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, is_memory
from zoo.layers.lora import without_adapters
from zoo.model_folder.meta import Meta, without_places
from zoo.model_folder.names import FITTED, KIND, MEMORY, MODEL, STATE, VOCABULARY, WEIGHTS
from zoo.model_folder.parts import copy_encoders, copy_tokenizer, keep_encodings
from zoo.model_folder.state import Fitted, State, write_values
from zoo.model_folder.trees import without_tensors

#: Options that describe how the training started; their effect is in the weights.
_STARTED_WITH = ("init_from", "freeze", "lora_rank")
_ADVICE = "copy or download the folder again"


class TrainedModel(Protocol):
    """A model that can be written."""

    def describe(self) -> Meta:
        """Return the model without its weights."""

    def state_dict(self) -> dict[str, Any]:
        """Return the weights by name: tensors, and plain values with tensors."""

    def describe_held_out(self) -> PlainDict | None:
        """Return the held-out rows of the training; None if there are none."""

    def encodings_to_keep(self, data: DataModule[Any, Any, Any]) -> str | None:
        """Return the fingerprint of the encoder whose vectors of the memory are kept; None = none are."""


def write(folder: Path, model: TrainedModel, data: DataModule[Any, Any, Any]) -> None:
    """See `ModelFolder.write`."""
    with named_disk_errors(folder, "--run_dir"):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(folder), new_folder(folder, KIND) as partial:
        is_there = data.memory is not None and is_memory(data.memory.location)
        memory = data.open_memory() if is_there else None
        version = 0
        if isinstance(memory, FolderMemory):
            version = memory.version
            memory.copy_to(partial / MEMORY, partial / STATE)
            encoder = model.encodings_to_keep(data)
            keep_encodings(partial / MEMORY, encoder)
            set_key(partial / STATE, "encoder", encoder)
        meta = _portable(model.describe(), data, partial)
        if isinstance(memory, FolderMemory):
            pointer = read_checked(partial / STATE, _ADVICE)["memory"]
            set_key(partial / STATE, "memory", {**pointer, "retriever": meta.data.retriever})
        held_out = model.describe_held_out()
        fitted = Fitted(
            held_out=None if held_out is None else write_values(partial / FITTED, "held_out", held_out)
        )
        state = State(version, {version: fitted} if held_out is not None else {})
        set_key(partial / STATE, "fitted", state.describe_fitted())
        _write_files(partial, meta, without_adapters(model.state_dict()))
        for lock_file in partial.glob(".*.lock"):
            lock_file.unlink()


def _portable(meta: Meta, data: DataModule[Any, Any, Any], folder: Path) -> Meta:
    """Return the description of a model without names of places, whose tokenizer and encoders are copied."""
    state = data.portable_state()
    retriever = copy_encoders(state.retriever, folder)
    options = {**state.options, "tokenizer": copy_tokenizer(state.options["tokenizer"], folder)}
    return replace(
        meta,
        options={
            name: None if name in _STARTED_WITH else without_places(value)
            for name, value in meta.options.items()
        },
        transformer_config=without_places(meta.transformer_config),
        data=replace(state, options=options, retriever=retriever),
    )


def _write_files(folder: Path, meta: Meta, weights: Mapping[str, Any]) -> None:
    tensors: dict[str, Tensor] = {}
    values: PlainDict = {}
    for name, value in weights.items():
        if isinstance(value, Tensor):
            without_tensors(value, name, tensors)
        else:
            values[name] = without_tensors(value, f"{name}/", tensors)
    save_file(tensors, folder / WEIGHTS)
    described = meta.to_dict()
    data = described["data"]
    vocabulary = {"vocabulary": data.pop("vocabulary"), "seen": data.pop("seen")}
    _write(folder / MODEL, {**described, "values": values})
    _write(folder / VOCABULARY, vocabulary)
    # safetensors makes its file readable for the owner only.
    (folder / WEIGHTS).chmod((folder / MODEL).stat().st_mode)


def _write(file: Path, values: PlainDict) -> None:
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
