"""Measures of the code, and the limits that `make lint` holds it to: python -m tests.measures."""

import ast
import dataclasses
import inspect
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("zoo", "datamodules", "callbacks")

#: Beginnings of docstrings that say nothing: a docstring begins with a verb or a noun.
_QUESTION = re.compile(r"(What|Whether|How|Which)\b")
#: Words that make readers stop; see CONTRIBUTING.md.
_WORDS = re.compile(r"\b(said|told|heard|hears|anew|likewise)\b")
#: Folder with as many modules as there are models.
_LARGE_FOLDERS = ("zoo/baselines",)


class Limit(NamedTuple):
    """A measure and its limit."""

    name: str
    value: float
    limit: float


class Source(NamedTuple):
    """One module."""

    path: str
    text: str
    tree: ast.Module

    @property
    def docstrings(self) -> Iterator[str]:
        """All docstrings of the module."""
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(self.tree):
            if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
                yield docstring

    @property
    def name(self) -> str:
        """Dotted name of the module."""
        return self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    def public_classes(self) -> Iterator[tuple[str, int]]:
        """Name of each public class, with its lines of code: without comments, docstrings and blank lines."""
        lines = self.text.splitlines()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                code = set(range(node.lineno, (node.end_lineno or 0) + 1))
                for inner in ast.walk(node):
                    if isinstance(inner, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(inner):
                        code -= set(range(inner.body[0].lineno, (inner.body[0].end_lineno or 0) + 1))
                texts = (lines[number - 1].strip() for number in code)
                yield node.name, sum(bool(text) and not text.startswith("#") for text in texts)

    def narrowings(self) -> int:
        """Number of `assert isinstance`."""
        checks = (node.test for node in ast.walk(self.tree) if isinstance(node, ast.Assert))
        called = (check.func for check in checks if isinstance(check, ast.Call))
        return sum(getattr(function, "id", "") == "isinstance" for function in called)

    def broad_handlers(self) -> int:
        """Number of `except` clauses of more than two types."""
        handlers = (node for node in ast.walk(self.tree) if isinstance(node, ast.ExceptHandler))
        return sum(isinstance(node.type, ast.Tuple) and len(node.type.elts) > 2 for node in handlers)

    def imports(self, modules: set[str]) -> set[str]:
        """Our modules that this one imports outside of functions, also if only for type checking."""
        own = set()
        nodes = list(self.tree.body)
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.ImportFrom) and node.module:
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                own |= (named & modules) or ({node.module} & modules)
            elif isinstance(node, (ast.If, ast.Try)):
                nodes += node.body
        return own - {self.name}

    def counts(self) -> Counter[str]:
        """Number of lines of each kind."""
        counts: Counter[str] = Counter(lines=len(self.text.splitlines()))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(self.tree):
            if isinstance(node, kinds) and ast.get_docstring(node):
                expression = node.body[0]
                counts["docstring"] += (expression.end_lineno or 0) - expression.lineno + 1
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
                counts["comment"] += 1
        counts["blank"] = sum(not line.strip() for line in self.text.splitlines())
        counts["Any"] = len(re.findall(r"\bAny\b", self.text))
        return counts


def sources() -> list[Source]:
    """All modules of the packages."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return [Source(name, text, ast.parse(text)) for name, text in texts.items()]


def circle(modules: list[Source]) -> list[str]:
    """Modules of which each imports the next one, and the last is the first; empty if there are none."""
    names = {module.name for module in modules}
    try:
        TopologicalSorter({module.name: module.imports(names) for module in modules}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def options() -> set[tuple[str, str]]:
    """Owner and name of each option: of models, data modules, retrievers and commands."""
    import datamodules
    from datamodules.retrieval.registry import RETRIEVERS
    from zoo.cli.commands import COMMANDS
    from zoo.registry import MODELS, model_class

    named: set[tuple[str, str]] = set()
    kinds = [model_class(name) for name in MODELS]
    kinds += [getattr(import_module(module), name) for name, module in RETRIEVERS.items()]
    for base in {base for kind in kinds for base in kind.__mro__ if "__init__" in vars(base)}:
        if base.__module__.partition(".")[0] in PACKAGES and not dataclasses.is_dataclass(base):
            named |= {(base.__name__, name) for name in _own_parameters(vars(base)["__init__"])}
    tables = [datamodules.find(name).options_type for name in datamodules.MODULES]
    for base in {base for table in tables for base in table.__mro__ if dataclasses.is_dataclass(base)}:
        own = vars(base).get("__annotations__", {}).items()
        named |= {(base.__name__, name) for name, kind in own if "ClassVar" not in str(kind)}
    for command in COMMANDS.values():
        for target in [command.target] if isinstance(command.target, str) else command.target.values():
            module, _, name = target.partition(":")
            named |= {(target, option) for option in _own_parameters(getattr(import_module(module), name))}
    return named


def _own_parameters(function: object) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.items()  # type: ignore[arg-type]
    return [name for name, parameter in parameters if parameter.kind in kinds and name != "self"]


def lines_of_tests() -> int:
    """Number of lines of the tests, benchmarks included."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))


def limits(modules: list[Source]) -> list[Limit]:
    """The measures with a limit; a limit only goes down."""
    totals = sum((module.counts() for module in modules), Counter())
    code = totals["lines"] - totals["blank"] - totals["comment"] - totals["docstring"]
    docstrings = [docstring for module in modules for docstring in module.docstrings]
    files = (module.path for module in modules if not module.path.endswith("__init__.py"))
    folders = Counter(path.rpartition("/")[0] for path in files)
    questions = sum(_QUESTION.match(docstring) is not None for docstring in docstrings)
    classes = [each for module in modules for each in module.public_classes()]
    largest = max(count for folder, count in folders.items() if folder not in _LARGE_FOLDERS)
    return [
        Limit("lines", totals["lines"], 34_496),
        Limit("lines of tests", lines_of_tests(), 29_664),
        Limit("public classes", len(classes), 325),
        Limit("public classes with the name of another", len(classes) - len(dict(classes)), 0),
        Limit("lines of code of the largest class", max(lines for _, lines in classes), 211),
        Limit("options", len(options()), 336),
        Limit("modules in a circle of imports, those for type checking included", len(circle(modules)), 0),
        Limit("assert isinstance", sum(module.narrowings() for module in modules), 0),
        Limit("except clauses of more than two types", sum(each.broad_handlers() for each in modules), 4),
        Limit("modules in the largest folder", largest, 15),
        Limit("`Any` per 1,000 lines of code", 1000 * totals["Any"] / code, 11.70),
        Limit("docstrings that begin with What, Whether, How or Which", questions, 0),
        Limit("words to avoid", sum(len(_WORDS.findall(module.text)) for module in modules), 0),
    ]


def main() -> int:
    """Print the measures; 1 if one is above its limit."""
    modules = sources()
    print(f"{'package':32}{'lines':>8}{'code':>8}{'docstring':>11}{'comment':>9}{'Any':>6}")
    folders = sorted({"/".join(each.path.split("/")[:2]) for each in modules if each.path.count("/") > 1})
    for name in [*PACKAGES, *folders]:
        group = [module.counts() for module in modules if module.path.startswith(f"{name}/")]
        total = sum(group, Counter())
        code = total["lines"] - total["blank"] - total["comment"] - total["docstring"]
        lines, docstring, comment, anys = (total[each] for each in ("lines", "docstring", "comment", "Any"))
        print(f"{name:32}{lines:>8}{code:>8}{docstring:>11}{comment:>9}{anys:>6}")
    classes = sorted((lines, name) for module in modules for name, lines in module.public_classes())
    print("largest classes:", ", ".join(f"{name} {lines}" for lines, name in classes[:-6:-1]))
    print("circle of imports:", " -> ".join(circle(modules)) or "none")
    checked = limits(modules)
    for measure in checked:
        print(f"{measure.name:66}{measure.value:>9,.6g} (limit {measure.limit:,})")
    exceeded = [measure.name for measure in checked if measure.value > measure.limit]
    if exceeded:
        print(f"above the limit: {', '.join(exceeded)}", file=sys.stderr)
    return int(bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
