"""Names of the options of a run, read from the source files of classes.

A misspelt option is refused before PyTorch and Lightning are imported, which takes seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from datamodules import MODULES
from datamodules.core.errors import InputError
from zoo.registry import MODELS

_OWN = ("zoo", "datamodules")
#: Options of the commands themselves.
_OF_COMMANDS = [
    *["config", "seed_everything", "time_limit", "run_dir", "output", "ckpt_path", "print_config", "help"]
]
#: Names that the parser itself takes in place of an option of a class.
_OF_PARSER = {"help", "class_path", "init_args", "dict_kwargs"}


def check_names(names: Iterable[str], model: str | None = None, data: str | None = None) -> None:
    """Refuse names such as `--model.hiden_size` or `data.num_memory` that are no options, and suggest similar ones.

    Options of classes that the zoo does not have, or whose name is not known, are left to the parser.
    """
    known = {"trainer": option_names("pytorch_lightning.trainer.trainer", "Trainer")}
    if model in MODELS:
        known["model"] = option_names(MODELS[model].module, model)
    if data in MODULES:
        known["data"] = option_names(MODULES[data], data)
    groups = ["trainer", "model", "data"]
    inner = [f"{group}.{option}" for group in groups for option in known.get(group, ())]
    for name in names:
        first, *rest = name.lstrip("-").rstrip("+").split(".")
        if first and first not in [*groups, *_OF_COMMANDS]:
            _refuse(name, "the command", [*_OF_COMMANDS, *groups, *inner])
        if first not in known or not rest:
            continue
        option = rest[1] if rest[0] == "init_args" and rest[1:] else rest[0]
        if option not in known[first] | _OF_PARSER:
            kind = {"trainer": "Lightning's Trainer", "model": model, "data": data}[first]
            _refuse(name, str(kind), inner)


def _refuse(name: str, kind: str, names: list[str]) -> None:
    dashes = "--" if name.startswith("--") else ""
    wrong = name.lstrip("-")
    # `--optimizer.lr` and `--data.transformer` belong to a model.
    near = [each for each in names if each.partition(".")[2] in wrong.split(".")]
    near = near or get_close_matches(wrong, names, n=1, cutoff=0.4)
    hint = f"; did you mean {dashes}{near[0]}?" if near else ""
    raise InputError(f"{name}: no option of {kind}{hint}")


def option_names(module: str, name: str) -> set[str]:
    """Return the names of the parameters of a class's constructors, those of its bases and of its options included."""
    kind = _definitions(module).get(name)
    if isinstance(kind, ast.ImportFrom):
        original = next(each.name for each in kind.names if (each.asname or each.name) == name)
        return option_names(str(kind.module), original)
    if not isinstance(kind, ast.ClassDef):
        return set()
    names = set[str]()
    for base in kind.bases if module.startswith(_OWN) else ():
        expression = base.value if isinstance(base, ast.Subscript) else base
        names |= option_names(module, ast.unparse(expression))
    is_dataclass = any("dataclass" in ast.unparse(each) for each in kind.decorator_list)
    for part in kind.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            given = part.args.posonlyargs + part.args.args + part.args.kwonlyargs
            names |= {each.arg for each in given[1:]}
        elif isinstance(part, ast.AnnAssign) and is_dataclass:
            if "ClassVar" not in ast.unparse(part.annotation):
                names.add(ast.unparse(part.target))
        elif isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "options_type":
            names |= option_names(module, ast.unparse(part.value))
    return names


@cache
def _definitions(module: str) -> Mapping[str, ast.stmt]:
    """Return classes and imports of a module by the names that they define; the module is not imported."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    paths = [Path(folder, *rest) for folder in (spec and spec.submodule_search_locations) or ()]
    files = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths]
    source = next((file.read_bytes() for file in files if file.is_file()), b"")
    defined = dict[str, ast.stmt]()
    for part in ast.parse(source).body:
        if isinstance(part, ast.ClassDef):
            defined[part.name] = part
        elif isinstance(part, ast.ImportFrom) and part.level == 0:
            defined |= {each.asname or each.name: part for each in part.names}
    return defined
