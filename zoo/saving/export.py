"""`zoo export`: a model as a folder that works alone on another machine, and on the Hugging Face Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datamodules.base import TextDataModule
from datamodules.core.errors import InputError, reason
from datamodules.core.secrets import redact
from datamodules.core.storage import new_folder
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.memories.encoded_memory import encodings_folder
from zoo.layers.lora import without_adapters
from zoo.saving.checkpoint import CHECKPOINT_KEY, read_checkpoint
from zoo.saving.loading import known_model, make_data, make_model
from zoo.saving.model_folder import KIND, MEMORY, local_model, write_parts
from zoo.tasks.encoders import EncodesMemory


def export(checkpoint: str | Path, folder: str | Path) -> Path:
    """Write a trained model as a folder: weights, configuration, vocabulary, memory, model card; no pickle.

    The folder stands for the checkpoint everywhere: `zoo.load`, `--ckpt_path`, `--model.init_from`. Names of the tables
    that the model was trained on are kept, without their folders.

    Args:
        checkpoint: a file that `zoo fit` wrote.
        folder: to make.

    Returns:
        The folder.

    Raises:
        InputError: the checkpoint can't be read, its memory is not there, or the folder is.
    """
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{folder}: exists; name a new folder")
    contents = read_checkpoint(checkpoint)
    state = contents[CHECKPOINT_KEY]["data"]
    data = make_data(contents, source=checkpoint)
    memory = data.open_memory() if data.has_memory and data.memory_location is not None else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder, KIND) as partial:
        options = state["options"]
        for name in (*data.files, "cache_dir"):
            options[name] = None if name == "cache_dir" else _without_folders(options.get(name))
        # What a training began with is in the weights, and so is what adapters came to.
        contents["state_dict"] = without_adapters(contents["state_dict"])
        begun_with = ("init_from", "freeze", "lora_rank")
        contents["hyper_parameters"] = redact(
            {k: None if k in begun_with else value for k, value in contents["hyper_parameters"].items()}
        )
        if isinstance(memory, FolderMemory):
            # What other models made of a memory that they share is theirs.
            kept = _encodings(contents, checkpoint, data, memory)
            others = [found.name for found in memory.folder.glob("encodings-*") if found != kept]
            shutil.copytree(memory.folder, partial / MEMORY, ignore=shutil.ignore_patterns(*others))
            state.update(memory=MEMORY, memory_rows=None, memory_version=memory.version, own_memory=True)
        write_parts(contents, partial)
        card = model_card(contents, _summary(local_model(checkpoint)), memory)
        (partial / "README.md").write_text(card, encoding="utf-8")
    return folder


def push(folder: str | Path, name: str, private: bool = False) -> str:
    """Upload an exported model to the Hugging Face Hub; the login is the one of `huggingface-cli login` or $HF_TOKEN.

    Args:
        folder: of `export`.
        name: of the repository, `user/name`; it is made where it is not there.
        private: make a repository that only its owner sees.

    Returns:
        The model's address.

    Raises:
        InputError: the Hub can't be reached, or refuses.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(folder), commit_message="Model of Memory Zoo")
    except Exception as error:  # the Hub's refusals, and whatever its client's own client fails by
        raise InputError(
            f"{name}: the Hugging Face Hub refuses or can't be reached ({reason(error)}); the model is in"
            f" {folder}, from where `huggingface-cli upload` takes it, too"
        ) from error
    return str(address)


def _without_folders(files: Any) -> Any:
    """Names of files without the folders that they lie in, which say nothing on another machine."""
    if isinstance(files, (list, tuple)):
        return [_without_folders(file) for file in files]
    return Path(files).name if isinstance(files, str) and "/" in files and ":" not in files else files


def _encodings(
    contents: dict[str, Any], source: str | Path, data: TextDataModule[Any, Any], memory: FolderMemory
) -> Path | None:
    """Where a memory has what a model's encoder made of it; None of a model that encodes no memory."""
    if not issubclass(known_model(contents, source), EncodesMemory):
        return None
    model: Any = make_model(contents, source)
    if model.network.encoder is None:
        return None
    return encodings_folder(memory.folder, model.encoder_fingerprint(data))


def _summary(checkpoint: Path) -> dict[str, Any]:
    """`summary.json` of the run that a checkpoint is of; empty where it is not beside it."""
    file = checkpoint.absolute().parents[1] / "summary.json"
    if not file.is_file():
        return {}
    summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return summary


def model_card(contents: Mapping[str, Any], summary: Mapping[str, Any], memory: Memory | None) -> str:
    """The README of an exported model: what it is, what it was trained on, its scores, how it is used.

    Args:
        contents: of the checkpoint.
        summary: of its run.
        memory: that it reads, if it reads one.
    """
    ours = contents[CHECKPOINT_KEY]
    kind = known_model(contents, "the checkpoint")
    options = ours["data"]["options"]
    trained_on = options.get("train_file") or "a table of its own"
    lines = ["---", "library_name: memory-zoo"]
    if kind.pipeline_tag:
        lines.append(f"pipeline_tag: {kind.pipeline_tag}")
    lines += ["tags:", "- memory-zoo", f"- {kind.task}", "---", "", f"# {ours['model']} for {kind.task}", ""]
    if kind.paper:
        lines += [f"Paper: {kind.paper}", ""]
    lines += [f"Trained on `{trained_on}` with Memory Zoo (`pip install memory-zoo`).", ""]
    if labels := ours["spec"].get("labels"):
        shown = ", ".join(f"`{label}`" for label in labels[:30])
        lines += [f"Labels: {shown}{' and more' if len(labels) > 30 else ''}.", ""]
    if isinstance(memory, FolderMemory):
        lines += [
            f"It reads a memory of {len(memory):,} texts (version {memory.version}), which is in `{MEMORY}`.",
            "",
        ]
    elif memory is not None:
        lines += [
            f"It reads a memory that is not part of it: {memory.location()}. Whoever uses it needs that.",
            "",
        ]
    scores = {
        name: value
        for name, value in summary.get("metrics", {}).items()
        if name.startswith("val/") and name.count("/") == 1 and value is not None
    }
    if scores:
        lines += ["## Scores on the validation rows, last epoch", "", "| metric | value |", "|---|---|"]
        lines += [f"| {name.removeprefix('val/')} | {value:.4g} |" for name, value in scores.items()]
        if summary.get("best_score") is not None:
            best = f"{summary['monitor'].removeprefix('val/')} of the best epoch"
            lines.append(f"| {best} | {summary['best_score']:.4g} |")
        lines.append("")
    lines += [
        "## Use",
        "",
        "```python",
        "import zoo",
        "",
        'model = zoo.load("this-folder-or-its-name-on-the-hub")',
    ]
    lines += [f"print({kind.predictor_type.example})", "```", ""]
    return "\n".join(lines)
