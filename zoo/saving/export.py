"""`zoo export`: a model as a folder that works alone on another machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import nn

from datamodules.base import AnyDataModule
from datamodules.core.errors import InputError, visible
from datamodules.core.storage import check_inside, named_disk_errors, new_folder
from datamodules.memory_source import MemoryLocation
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.dense.vector_store import store_folder
from datamodules.text.tokenization import OWN_TOKENIZERS
from zoo.layers.lora import without_adapters
from zoo.markdown import code_span
from zoo.registry import paper_of
from zoo.saving import fitted_weights
from zoo.saving.checkpoint import explained_by
from zoo.saving.model_folder import CONFIG, KIND, TOKENIZER, write_model
from zoo.saving.run_folder import read_run
from zoo.saving.saved_model import MEMORY, OWN, SavedModel

#: Options that describe how the training started, whose effect is in the weights.
_STARTED_WITH = ("init_from", "freeze", "lora_rank")
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
_USE = """\
## Use

```python
import zoo

model = zoo.load("this-folder-or-its-name-on-the-hub")
print({example})
```
"""


@runtime_checkable
class EncodesMemories(Protocol):
    """A model whose encodings of a memory are kept next to the memory."""

    network: nn.Module

    def encoder_fingerprint(self, data: AnyDataModule) -> str:
        """Return the fingerprint of the encoder, which names the folder of the encodings."""


def export(source: str | Path, folder: str | Path) -> Path:
    """Write a trained model as a new folder: weights, configuration, vocabulary, memory, model card; no pickle."""
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{folder}: exists; name a new folder")
    saved = SavedModel.open(source)
    data = saved.make_data()
    has_memory = data.has_memory and data.memory is not None and data.memory.location is not None
    memory = data.memory.open() if has_memory and data.memory is not None else None
    checkpoint = saved.checkpoint
    card = model_card(saved, memory)
    entries = [] if memory is None else _weights_of(saved, memory, OWN)
    with named_disk_errors(folder, "folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder, KIND) as partial, named_disk_errors(folder, "folder"):
        # A memory that the model does not read is no part of the folder.
        location = None if memory is None else checkpoint.data.memory
        if isinstance(memory, FolderMemory):
            location = MemoryLocation(MEMORY, None, memory.version)
            _copy_memory(saved, memory, partial / MEMORY)
        names = {
            name: _without_folder(value)
            for name, value in checkpoint.data.options.items()
            if name in data.options.files
        }
        options = {**checkpoint.data.options, **names, "cache_dir": None}
        if Path(tokenizer := data.options.tokenizer).is_dir() and tokenizer not in OWN_TOKENIZERS:
            _copy_tokenizer(Path(tokenizer), partial / TOKENIZER)
            options["tokenizer"] = TOKENIZER
        checkpoint.data = replace(checkpoint.data, options=options, memory=location)
        checkpoint.signature = None
        # Adapters are merged into the weights.
        checkpoint.weights = without_adapters(checkpoint.weights)
        checkpoint.options = {
            name: None if name in _STARTED_WITH else value for name, value in checkpoint.options.items()
        }
        if memory is not None:
            checkpoint.extras["fitted_weights"] = [list(entry) for entry in entries]
            for kind, checksum in (file for entry in entries for file in entry.files()):
                file = fitted_weights.whole_values(kind, checksum, saved.file)
                shutil.copyfile(file, partial / fitted_weights.values_name(kind, checksum))
        write_model(checkpoint, partial)
        (partial / "README.md").write_text(card, encoding="utf-8")
    return folder


def _weights_of(saved: SavedModel, memory: Memory, name: str) -> list[fitted_weights.Entry]:
    """Return the weights that were fitted to the exported memory after the training, with its new name."""
    key, _ = saved.memory_key(memory)
    return [entry._replace(memory=name) for entry in saved.fitted_weights() if entry.memory == key]


def _copy_memory(saved: SavedModel, memory: FolderMemory, target: Path) -> None:
    """Copy a memory without the encodings of other models that share it."""
    own, model = None, saved.make_model()
    if isinstance(model, EncodesMemories) and model.network.encoder is not None:
        own = store_folder(memory.folder, model.encoder_fingerprint(saved.make_data()))
    others = [path.name for path in memory.folder.glob("vectors-*") if path != own]
    check_inside(memory.folder)  # of links, the files that they lead to would be copied, and published
    shutil.copytree(memory.folder, target, ignore=shutil.ignore_patterns(".*", *others))


def _copy_tokenizer(folder: Path, target: Path) -> None:
    """Copy the files by which a folder's tokenizer is loaded, and nothing else of it."""
    check_inside(folder)
    with new_folder(target, TOKENIZER) as partial:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and any(fnmatch(file.name, pattern) for pattern in _TOKENIZER_FILES):
                copied = partial / file.relative_to(folder)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copied)


def _without_folder(files: object) -> object:
    """Return names of files without their folders, which do not exist on another machine."""
    if isinstance(files, (list, tuple)):
        return [_without_folder(file) for file in files]
    return Path(files).name if isinstance(files, str) and "/" in files and ":" not in files else files


def model_card(saved: SavedModel, memory: Memory | None) -> str:
    """Return the README of an exported model: task, training data, memory, scores and use."""
    kind, checkpoint = saved.kind, saved.checkpoint
    trained_on = checkpoint.data.options.get("train_file") or "a table of its own"
    lines = ["---", "library_name: memory-zoo"]
    if kind.pipeline_tag:
        lines.append(f"pipeline_tag: {kind.pipeline_tag}")
    lines += ["tags:", "- memory-zoo", f"- {kind.task}", "---", ""]
    lines += [f"# {checkpoint.model} for {kind.task}", ""]
    if paper := paper_of(kind):
        lines += [f"Paper: {paper}", ""]
    lines += [f"Trained on {code_span(str(trained_on))} with Memory Zoo (`pip install memory-zoo`).", ""]
    if labels := checkpoint.spec.get("labels"):
        shown = ", ".join(map(code_span, labels[:30]))
        lines += [f"Labels: {shown}{' and more' if len(labels) > 30 else ''}.", ""]
    if isinstance(memory, FolderMemory):
        lines += [f"It reads a memory of {len(memory):,} texts (version {memory.version}) in `{MEMORY}`.", ""]
    elif memory is not None:
        lines += [f"It needs access to a memory that is not part of it: {code_span(memory.location())}.", ""]
    texts: list[str] = (checkpoint.extras.get("held_out") or {}).get("texts") or []
    if texts:
        lines += [f"`{CONFIG}` has {len(texts):,} held-out texts with labels, for `max_error`.", ""]
    return "\n".join([*lines, *_scores(saved), _USE.format(example=kind.predictor_type.example)])


def _scores(saved: SavedModel) -> list[str]:
    """Return the table of the run, or else the scores of the model's epoch, if the model is a run of this user."""
    answer, metrics = saved.file("answer.md"), saved.file("metrics.csv")
    if saved.is_own and answer.is_file():
        return ["## Scores", "", answer.read_text(encoding="utf-8")]
    if not (saved.is_own and metrics.is_file()):
        return []
    with explained_by(metrics):
        run = read_run(metrics.parent)
    is_best = saved.path.stem == "best"
    epoch, figures = run.best() if is_best else replace(run, monitor=None).best()
    scores = {
        name.removeprefix("val/"): value
        for name, value in figures.items()
        if name.startswith("val/") and name.count("/") == 1
    }
    if not scores:
        return []
    lines = [f"## Scores on the validation rows, epoch {epoch}", "", "| metric | value |", "|---|---|"]
    return [*lines, *(f"| {visible(name)} | {value:.4g} |" for name, value in scores.items()), ""]
