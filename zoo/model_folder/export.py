"""A model for others: a copy of its folder with a card, without all that its current version does not apply.

`zoo export` writes it, and uploads it to the Hugging Face Hub or as an artifact of Weights & Biases.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datamodules.core import storage
from datamodules.core.errors import InputError, reason, visible
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory
from datamodules.text.tokenization import OWN_TOKENIZERS
from zoo.markdown import code_span
from zoo.model_folder import artifacts
from zoo.model_folder.folder import FITTED, IN_RUN, LEARNED, MEMORY, REPORT, STATE, ModelFolder, ignoring
from zoo.model_folder.state import FittedFiles, State, read_values, whole_file
from zoo.model_folder.writing import keep_encodings, new_model_folder, write_files
from zoo.registry import MODELS, model_class

if TYPE_CHECKING:
    from wandb import Run

_USE = """\
## Use

```python
import zoo

model = zoo.load("this-folder-or-its-name-on-the-hub")
print({example})
```
"""


def export(source: str | Path, folder: str | Path) -> Path:
    """Copy a model folder with the current version of its memory, and a model card; return the new folder."""
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{folder}: exists; name a new folder")
    model = ModelFolder.open(source)
    weights = model.weights()  # of damaged ones, no copy is made
    storage.check_inside(model.path)
    memory = model.open_memory() if model.has_memory else None
    fitted = model.state.fitted_to(model.state.version or 0)
    facts = storage.read_checked(model.state_file, "copy the folder again")
    pool, members = (None if name is None else read_values(model.path / FITTED, name) for name in fitted[:2])
    remembering: Sequence[str] = LEARNED
    if members is not None and members["version"] == model.state.version:
        # A tuned encoder has learned from the rows of the training. Their hashes stay in any case.
        is_tuned = weights["network._extra_state"]["encoder_before"] is not None
        remembering = LEARNED[1 if is_tuned else 2 :]
    card = model_card(model, memory if isinstance(memory, FolderMemory) else None, fitted, remembering)
    with new_model_folder(folder, "folder") as partial:
        others = ignoring(model.path, MEMORY, STATE, FITTED, storage.MANIFEST, "README.md")
        shutil.copytree(model.path, partial, ignore=others, dirs_exist_ok=True)
        version = 0
        if isinstance(memory, FolderMemory):
            version = memory.version
            # Vectors of removed texts are deleted, too.
            memory.copy_to(partial / MEMORY, only_current=True).compact()
            keep_encodings(partial / MEMORY, facts.get("encoder"))
        if pool is not None or members is not None:
            _write_fitted(partial, model, weights, pool, members)
            facts["trained"] = None
        if fitted.held_out is not None:
            (partial / FITTED).mkdir()
            file = whole_file(model.path / FITTED, fitted.held_out)
            shutil.copyfile(file, partial / FITTED / fitted.held_out)
        state = State(version, {version: FittedFiles(held_out=fitted.held_out)} if fitted.held_out else {})
        facts = {key: facts.get(key) for key in ("encoder", "trained", REPORT)}
        facts["fitted"] = state.describe_fitted()
        storage.update(partial / STATE, lambda values: {**values, **facts})
        (partial / "README.md").write_text(card, encoding="utf-8")
    return folder


def _write_fitted(folder: Path, model: ModelFolder, weights: PlainDict, *fitted: PlainDict | None) -> None:
    """Write the weights and members that were fitted after the training in the place of those of the training."""
    ensemble: Any = model_class(model.meta.model)
    ensemble.replace_fitted(weights, *fitted)
    meta = model.whole_meta
    vocabulary, has_words = meta.data.vocabulary, any(name.endswith(".words.table") for name in weights)
    if fitted[1] is not None and not has_words and meta.data.options["tokenizer"] in OWN_TOKENIZERS:
        # Nothing reads the numbers of words, of which the first two are padding and the unknown word.
        words = [*vocabulary["words"][:2], *[""] * len(vocabulary["words"][2:])]
        meta = replace(meta, data=replace(meta.data, vocabulary={**vocabulary, "words": words}))
    write_files(folder, meta, weights)


def model_card(
    model: ModelFolder, memory: FolderMemory | None, fitted: FittedFiles, files: Sequence[str]
) -> str:
    """Return the README of a model: task, labels, memory, files that remember removed rows, scores and use."""
    kind, meta = model_class(model.meta.model), model.meta
    lines = ["---", "library_name: memory-zoo"]
    if kind.pipeline_tag:
        lines.append(f"pipeline_tag: {kind.pipeline_tag}")
    lines += ["tags:", "- memory-zoo", f"- {kind.task}", "---", ""]
    lines += [f"# {meta.model} for {kind.task}", ""]
    if meta.model in MODELS:
        lines += [f"Paper: {MODELS[meta.model].paper}", ""]
    lines += ["Trained with Memory Zoo, which is installed from a checkout: `pip install --editable .`", ""]
    if labels := meta.spec.get("labels"):
        shown = ", ".join(map(code_span, labels[:30]))
        lines += [f"Labels: {shown}{' and more' if len(labels) > 30 else ''}.", ""]
    if memory is not None:
        lines += [f"It reads a memory of {len(memory):,} texts (version {memory.version}) in `{MEMORY}`.", ""]
    elif (index := meta.data.retriever["init_args"].get("index")) is not None:
        lines += [f"It needs access to an index that is not part of it: {code_span(str(index))}.", ""]
    held_out = {} if fitted.held_out is None else read_values(model.path / FITTED, fitted.held_out)
    if texts := held_out.get("texts"):
        lines += [f"`{FITTED}` has {len(texts):,} held-out texts with labels, for `max_error`.", ""]
    if model.is_edited:
        report = storage.read_checked(model.state_file, "copy the folder again").get(REPORT)
        lines += ["Its memory or weights have changed since the training, to which all scores below belong."]
        lines += [] if report is None else [f"The weights were {visible(str(report))}."]
        lines += [f"The files `{'`, `'.join(files)}` remember rows that the memory has lost.", ""]
    return "\n".join([*lines, *_scores(model), _USE.format(example=kind.predictor_type.example)])


def _scores(model: ModelFolder) -> list[str]:
    """Return the table of the run that the folder is in, or else the scores of its best epoch."""
    run_dir = model.path.parent
    answer, summary = run_dir / "answer.md", run_dir / "summary.json"
    # A card is published: it quotes no files next to a folder that is in no run, and none that links lead to.
    is_in_run = model.path.name == IN_RUN and (run_dir / "config.yaml").is_file()
    if not is_in_run or answer.is_symlink() or summary.is_symlink():
        return []
    if answer.is_file():
        return ["## Scores", "", answer.read_text(encoding="utf-8")]
    try:
        best = storage.load_json(summary).get("best") if summary.is_file() else None
        if not best:
            return []
        epoch, metrics = int(best["epoch"]), best["metrics"].items()
        scores = {name: float(value) for name, value in metrics if value is not None and name.count("/") == 1}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{summary}: is damaged ({reason(error)}); restore or delete it") from error
    lines = [f"## Scores on the validation rows, epoch {epoch}", "", "| metric | value |", "|---|---|"]
    rows = (f"| {visible(name.removeprefix('val/'))} | {value:.4g} |" for name, value in scores.items())
    return [*lines, *rows, ""]


def check_target(name: str) -> None:
    """Raise an `InputError` unless a model can be uploaded under this name."""
    if artifacts.is_artifact_name(name):
        artifacts.check_artifact_name(name, with_version=False)
    elif not artifacts.is_hub_name(name):
        raise InputError(f"--push {name}: write user/name for the Hub, or wandb:entity/project/name for W&B")


def upload(folder: Path, name: str) -> str:
    """Upload an exported model, and return its new address."""
    if artifacts.is_artifact_name(name):
        return artifacts.push(folder, name, ModelFolder.open(folder).meta.data.files)
    return artifacts.push_to_hub(folder, name)


def log_run(run: Run, run_dir: Path, name: str) -> None:
    """Log the best model of a training as an artifact of its W&B run."""
    with tempfile.TemporaryDirectory() as parent:
        folder = export(run_dir, Path(parent) / "model")
        files = ModelFolder.open(folder).meta.data.files
        with artifacts.named_errors("--trainer.logger.log_model"):
            artifacts.log_artifact(run, folder, name, files, ["latest", "best"])
