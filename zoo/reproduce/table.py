"""A paper's table as a YAML file: a base configuration, and rows that are options on top of it.

The keys are the fields of `Table` and `Row`. `like: OTHER` takes the other keys from another table of the same folder,
and the `overrides` of a table are those of all its rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import datamodules
from datamodules.base import DataModule
from datamodules.core.classes import option_defaults
from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import load_mapping
from datamodules.core.secrets import refuse_secrets
from datamodules.core.types import PlainDict, mapped
from zoo.registry import model_class

_SHIPPED = Path(__file__).with_name("tables")
#: Data options that only training needs.
_TRAINING = ("retriever", "word_vectors", "memory")
#: Prefixes of the names of metrics.
SPLITS = ("val", "test")


@dataclass(frozen=True)
class Row:
    """A row of a table, or one run of it with a seed; its folder has the same name."""

    name: str
    #: options on top of the table's base, e.g. `model.features: M1`.
    overrides: Mapping[str, Any]
    #: metric -> the paper's figure as a share of 1, or a count; in the YAML in percent, or a number for `paper_metric`.
    paper: Mapping[str, float] = field(default_factory=dict)
    #: the row whose checkpoint of the same seed this one starts from (`--model.init_from`).
    init_from: str | None = None
    seed: int = 1

    def __str__(self) -> str:
        return f"{self.name}/{self.seed}"


@dataclass(frozen=True)
class Table:
    """A table as its YAML file describes it; its name is the file's without `.yaml`."""

    name: str
    description: str
    #: rough duration of all seeds on two cores.
    minutes: float
    #: a configuration for `zoo fit`.
    base: PlainDict
    rows: Mapping[str, Row]
    #: metric of the paper's figures.
    paper_metric: str = "test/accuracy"
    #: number of runs of each row; the seeds are 1, 2, ...
    seeds: int = 3
    #: metrics of the results; epochs are chosen by the first one, the data's `monitor`.
    metrics: Sequence[str] = ("accuracy",)
    #: those of the metrics that are numbers, such as errors, and not shares of 1.
    counts: Sequence[str] = ()
    #: True if rows without data in --data_dir are skipped.
    skip_absent: bool = False
    #: data options for test files without a header line.
    columns_without_header: PlainDict = field(default_factory=dict)

    def percent(self, metric: str, figure: float) -> float:
        """Return a figure in percent, or a count as it is."""
        return figure if metric.partition("/")[2] in self.counts else 100 * figure

    @property
    def data_type(self) -> type[DataModule]:
        """The data module of all rows."""
        return datamodules.find(str(self.base["data"].get("class_path")))

    def files_of(self, row: Row, folder: Path) -> PlainDict:
        """Return data option -> its file, or several; names are absolute, and relative ones are under a folder."""

        def absolute(file: str) -> str:
            return file if file.startswith("hub:") else str((folder / file).resolve())

        options, kind = self._data_options(row), self.data_type.options_type
        named = {name: options[name] for name in kind.files if isinstance(options.get(name), str | list)}
        return {
            name: mapped(absolute, files)
            for name, files in named.items()
            if isinstance(files, str) or name not in kind.name_lists
        }

    def data_of(self, row: Row, folder: Path, **changes: object) -> DataModule:
        """Make the data module of a row, without vectors and memories; nothing is read yet."""
        options = {**self._data_options(row), **self.files_of(row, folder)}
        options = {key: value for key, value in options.items() if key.partition(".")[0] not in _TRAINING}
        return self.data_type(**{**options, **changes})

    def _data_options(self, row: Row) -> PlainDict:
        own = {k.removeprefix("data."): v for k, v in row.overrides.items() if k.startswith("data.")}
        return {**self.base["data"]["init_args"], **own}

    def runs(self, seeds: int) -> Iterator[Row]:
        """Yield the runs of all rows, by seed: one of a row whose model does not depend on the seed."""
        for seed in range(1, seeds + 1):
            for row in self.rows.values():
                if seed == 1 or model_class(self.model_of(row)).depends_on_seed:
                    yield replace(row, seed=seed)

    def model_of(self, row: Row) -> str:
        """Return the class path of a row's model."""
        return str(row.overrides.get("model", self.base["model"].get("class_path")))


#: Keys of a table and of a row -> type of the value; the other keys are texts.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("metrics", "counts"), list),
    **dict.fromkeys(("rows", "overrides", "columns_without_header"), dict),
    **{"skip_absent": bool, "minutes": int | float, "seeds": int, "base": dict | str},
    **{"paper": dict | int | float},
}
_TABLE_KEYS = {each.name for each in fields(Table)} - {"name"} | {"like", "overrides", "encoder"}
_ROW_KEYS = {each.name for each in fields(Row)} - {"name", "seed"}


def shipped_tables() -> list[str]:
    """Return the names of the tables in the package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def load_table(name: str, encoder: str | None = None) -> Table:
    """Read a shipped table or a YAML file, with `encoder` in place of the table's own pre-trained transformer."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in shipped_tables():
            raise InputError(
                f"zoo reproduce {name}: no such table; there are {', '.join(shipped_tables())}, or your own YAML file"
            )
        path = _SHIPPED / f"{name}.yaml"
    contents = _read_table(path)
    refuse_secrets(contents, "", source=f"{path}: ")
    own_encoder = contents.pop("encoder", None)
    if encoder is not None:
        if own_encoder is None:
            raise InputError(f"--encoder: {path.stem} has no pre-trained encoder that could be replaced")
        contents = mapped(lambda value: encoder if value == own_encoder else value, contents)
    if missing := {"description", "minutes", "base", "rows"} - contents.keys():
        raise InputError(f"{path}: {', '.join(sorted(missing))} is missing; add it")
    if isinstance(contents["base"], str):
        contents["base"] = load_mapping(path.parent / contents["base"])
    data = contents["base"].get("data")
    if not isinstance(data, dict) or not isinstance(data.get("init_args"), dict):
        raise InputError(f"{path}: base must be a configuration for `zoo fit` with data.init_args")
    shared, entries = contents.pop("overrides", {}), contents.pop("rows")
    rows: dict[str, Row] = {}
    table = Table(name=path.stem, rows=rows, **contents)
    for row, entry in entries.items():
        rows[str(row)] = _make_row(f"{path}: row {row}", str(row), entry or {}, table, shared)
    return table


def _read_table(path: Path) -> PlainDict:
    contents = load_mapping(path)
    _check(str(path), contents, _TABLE_KEYS)
    contents = {key: value for key, value in contents.items() if value is not None}
    for name, row in contents.get("rows", {}).items():
        _check(f"{path}: row {name}", row or {}, _ROW_KEYS)
    if (like := contents.pop("like", None)) is None:
        return contents
    other = _read_table(path.with_name(f"{like}.yaml"))
    # The paper's figures belong to the other table's setting.
    rows = {
        name: {key: value for key, value in (row or {}).items() if key != "paper"}
        for name, row in other.get("rows", {}).items()
    }
    overrides = {**other.get("overrides", {}), **contents.get("overrides", {})}
    return {**other, "rows": rows, **contents, "overrides": overrides}


def _check(where: str, mapping: object, keys: Collection[str]) -> None:
    """Refuse unknown keys and values of other types."""
    if not isinstance(mapping, dict):
        raise InputError(f"{where}: must be a mapping, not {excerpt(repr(mapping))}")
    if unknown := sorted(map(str, mapping.keys() - keys)):
        raise InputError(f"{where}: {excerpt(unknown[0])}: no such key; use {', '.join(sorted(keys))}")
    for name, value in mapping.items():
        kind = _TYPES.get(name, str)
        if value is not None and not isinstance(value, kind):
            raise InputError(
                f"{where}: {name}: must be {getattr(kind, '__name__', kind)}, not {excerpt(repr(value))}"
            )


def _make_row(where: str, name: str, entry: PlainDict, table: Table, shared: PlainDict) -> Row:
    """Make a row, in which the table's shared overrides are overridden by its own; the table has the rows before it."""
    if not re.fullmatch(r"\w[\w .=+%-]*", name):
        raise InputError(f"{where}: name it with letters, digits, spaces and .=+%-")
    paper = entry.get("paper") or {}
    paper = paper if isinstance(paper, dict) else {table.paper_metric: paper}
    for metric, figure in paper.items():
        if not isinstance(figure, int | float):
            raise InputError(f"{where}: paper: {metric}: must be a number, not {excerpt(repr(figure))}")
    paper = {metric: round(figure / table.percent(metric, 1), 6) for metric, figure in paper.items()}
    own = entry.get("overrides") or {}
    overrides = {**_options_of(own.get("model"), shared), **own}
    row = Row(name, **{**entry, "overrides": overrides, "paper": paper})
    if row.init_from is not None and row.init_from not in table.rows:
        raise InputError(f"{where}: starts from no row before it: {row.init_from}")
    return row


def _options_of(model: str | None, overrides: PlainDict) -> PlainDict:
    """Return those of the overrides that a row's own model has."""
    if model is None:
        return overrides
    known = option_defaults(model_class(model))
    return {k: v for k, v in overrides.items() if not k.startswith("model.") or k.split(".")[1] in known}
