"""The configurations of the zoo: `--config hmn/hmn4qa` names one from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from datamodules.core.errors import InputError, excerpt, suggestion
from datamodules.core.files import parsed
from datamodules.core.types import PlainDict
from zoo.registry import MODELS, model_class

FOLDER = Path(__file__).parents[1] / "configs"
#: Task -> the configuration whose data its models read, unless the user names another.
RECIPES = {
    "classification": "your_own_data/classification",
    "matching": "amv_lstm/wikiqa",
    "dialogue": "hmn/hmn4qa",
    "retrieval": "lstm_rnn/nfcorpus",
}
_DEFAULT_MODEL = "MemoryEnsemble"


def names() -> list[str]:
    """Return the names of all configurations."""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))


def find(name: str) -> Path:
    """Return a file of the user's, or the configuration with this name; raise an `InputError` if there is none."""
    if Path(name).is_file():
        return Path(name)
    known = names()
    if (wanted := name.removesuffix(".yaml")) in known:
        return FOLDER / f"{wanted}.yaml"
    raise InputError(f"--config {excerpt(name)}: no such file or configuration; {suggestion(wanted, known)}")


def recipe(model: str | None, names_data: bool, files: Iterable[PlainDict]) -> PlainDict:
    """Return the configuration of a run where neither its options nor their files name a model or a kind of data.

    A model alone has the data of its recipe and, unless it is the recipe's model, its own defaults.
    """
    if names_data or any("model" in each for each in files):
        return {}
    name = (model or _DEFAULT_MODEL).rpartition(".")[2]
    if (task := task_of(name)) not in RECIPES:
        return {}
    values: PlainDict = yaml.safe_load(find(RECIPES[task]).read_text(encoding="utf-8"))
    if values["model"]["class_path"] != name:
        # The default cross-fits; other models choose an epoch on validation rows.
        values["data"]["init_args"].pop("validation_split", None)
        values = {"model": {"class_path": name}, "data": values["data"]}
    return values


def classes_of(layers: Sequence[Mapping[str, object]]) -> tuple[str | None, str | None, list[str]]:
    """Return the model and the kind of data that configurations name last, and the classes that they name at all."""
    found: list[list[str]] = []
    for group in ("model", "data"):
        named = [layer.get(group) for layer in layers]
        named = [each.get("class_path") if isinstance(each, dict) else each for each in named]
        found.append([each.rpartition(".")[2] for each in named if isinstance(each, str)])
    model, data = (names[-1] if names else None for names in found)
    return model, data, [*found[0], *found[1]]


def task_of(model: str) -> str:
    """Return the task of a model, which is imported only if it is not the zoo's."""
    return MODELS[model].task if model in MODELS else model_class(model).task


def contents(file: str | Path) -> PlainDict:
    """Return the contents of a file; empty if it is no configuration, which the parser reports."""
    values = parsed(read(file), file)
    return values if isinstance(values, dict) else {}


def read(file: str | Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except (ValueError, OSError):
        return ""
