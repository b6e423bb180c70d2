"""The configurations of the zoo: `--config hmn/hmn4qa` names one from anywhere, and `zoo config` prints it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import yaml

from datamodules.core.errors import InputError, excerpt
from datamodules.core.types import PlainDict
from zoo.cli.options import named_values
from zoo.registry import MODELS, model_class

log = logging.getLogger("zoo")

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
    if "\0" not in name and Path(name).is_file():
        return Path(name)
    known = names()
    if (wanted := name.removesuffix(".yaml")) in known:
        return FOLDER / f"{wanted}.yaml"
    near = get_close_matches(wanted, known, n=3, cutoff=0.4)
    advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    raise InputError(f"--config {excerpt(name)}: no such file, and no configuration of the zoo; {advice}")


def config(name: str | None = None) -> None:
    """Print a configuration of the zoo, to read it or to make it your own; without a name, the names of all.

    Args:
        name: a name, such as hmn/hmn4qa.
    """
    if name is not None:
        print(find(name).read_text(encoding="utf-8"), end="")
        return
    for each in names():
        first = (FOLDER / f"{each}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        print(f"{each:32} {excerpt(first.lstrip('# '), 85)}")


def with_files(options: Sequence[str]) -> list[str]:
    """Return the options with files in place of the names of configurations."""
    named, is_value = list[str](), False
    for option in options:
        if is_value:
            named.append(str(find(option)))
        elif option.startswith("--config="):
            named.append(f"--config={find(option.removeprefix('--config='))}")
        else:
            named.append(option)
        is_value = option == "--config"
    return named


def recipe(options: Sequence[str]) -> PlainDict:
    """Return the configuration of a run where neither the options nor their files name a model or a kind of data.

    `--model` alone has the data of its recipe and, unless it is the recipe's model, its own defaults.
    """
    given = dict(named_values(options))
    files = [contents(value) for name, value in named_values(options) if name == "--config"]
    if {"--data", "--data.class_path"} & given.keys() or any("model" in each for each in files):
        return {}
    model = given.get("--model", given.get("--model.class_path", _DEFAULT_MODEL)).rpartition(".")[2]
    task = MODELS[model].task if model in MODELS else model_class(model).task
    if task not in RECIPES:
        return {}
    values: PlainDict = yaml.safe_load(find(RECIPES[task]).read_text(encoding="utf-8"))
    if values["model"]["class_path"] != model:
        # By their own defaults, a model and its data agree on characters.
        values["data"]["init_args"].pop("characters", None)
        values = {"model": {"class_path": model}, "data": values["data"]}
    log.info("no model in --config: %s with the options of `zoo config %s`", model, RECIPES[task])
    return values


def contents(file: str) -> PlainDict:
    """Return the contents of a file; empty if it is no configuration, which the parser reports."""
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError):
        return {}
    return values if isinstance(values, dict) else {}
