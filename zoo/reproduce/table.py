"""A paper's table as a YAML describes it: a base configuration, and rows that are options on top of it.

    description: what `zoo reproduce --list` says
    minutes: 60
    base: base/ag_news.yaml
    rows:
      M1: {overrides: {model.features: M1}, paper: 91.9}

`Table` and `Row` below say what else there may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import yaml

import datamodules
from datamodules.base import TextDataModule
from datamodules.core.errors import InputError, excerpt
from datamodules.core.secrets import redact
from zoo.saving.loading import model_class, option_names

#: metric -> value, such as `val/accuracy` -> 0.9.
Metrics: TypeAlias = dict[str, float]
#: How the names of metrics begin, and the split that they are of.
SPLITS = {"val": "validation", "test": "test"}
SHIPPED = Path(__file__).with_name("tables")
#: What a paper's figures are unless a table says otherwise.
PAPER_METRIC = "test/accuracy"


@dataclass(frozen=True)
class Growth:
    """What a row's memory grows from and to; its model is not trained.

    Attributes:
        row: the trained row whose checkpoint of the same seed is used as it is (`from` in the YAML).
        rows_per_class: the memory grows to what training rows with this `data.rows_per_class` would be; None
            (`all` in the YAML) = all rows but the validation rows.
    """

    row: str
    rows_per_class: int | float | dict[str, int] | None


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        name: also the name of its folder.
        overrides: options on top of the table's base, e.g. `model.features: M1`.
        paper: metric -> the paper's figure as a share of 1, or as it is for one of the table's `counts`. A number in
            the YAML is of the table's `paper_metric`.
        init_from: the row whose checkpoint of the same seed this one starts from (`--model.init_from`).
        grow: the row's model is another row's, with more rows in its memory. Its overrides are that row's.
        x: place on the x axis, where the table is a curve.
        curve: which curve it is on, where there are several.
        plot: whether the row is in the picture: one that lies far below the others would flatten them.
    """

    name: str
    overrides: Mapping[str, Any]
    paper: Mapping[str, float] = field(default_factory=dict)
    init_from: str | None = None
    grow: Growth | None = None
    x: float | None = None
    curve: str | None = None
    plot: bool = True

    @property
    def starts_from(self) -> str | None:
        """The row whose checkpoint this one needs."""
        return self.init_from if self.grow is None else self.grow.row


@dataclass(frozen=True)
class Table:
    """A table as its YAML describes it.

    Attributes:
        name: the file's name without `.yaml`.
        description: one line.
        minutes: what all seeds take on two cores, roughly.
        paper_metric: what the paper's figures are, e.g. `val/accuracy` or `test/map`.
        metrics: what is shown, e.g. `accuracy`, or `map` and `ndcg@3`. The first is the one by which an epoch is
            chosen: the data's `monitor`.
        counts: those of the metrics that count something, such as errors, and are no shares of 1.
        seeds: how many; they are 1, 2, ...
        base: a configuration for `zoo fit`.
        rows: in the order of the paper.
        profiles: metrics with a figure for each place of a list, NAME@1, NAME@2, ...: the picture shows these over the
            place, a curve for each row and name.
        x_label: name of the x axis; None = the table is no curve.
        compare_with: the row that each other one is compared with, query by query (`zoo.reproduce.significance`).
        skip_absent: leave out rows whose data is not under --data_dir, instead of refusing to start.
        columns_without_header: data options for test files that have no header line.
    """

    name: str
    description: str
    minutes: float
    paper_metric: str
    seeds: int
    base: Mapping[str, Any]
    rows: Mapping[str, Row]
    metrics: Sequence[str] = ("accuracy",)
    counts: Sequence[str] = ()
    profiles: Sequence[str] = ()
    x_label: str | None = None
    compare_with: str | None = None
    skip_absent: bool = False
    columns_without_header: Mapping[str, Any] | None = None

    def shown(self, metric: str, figure: float) -> float:
        """A figure as people read it: in percent, but a count as it is."""
        return figure if metric.partition("/")[2] in self.counts else 100 * figure

    @property
    def data_type(self) -> type[TextDataModule[Any, Any]]:
        """The data module of all rows."""
        return datamodules.find(str(self.base["data"].get("class_path")))

    def seeds_of(self, row: Row, seeds: int) -> int:
        """How many of so many seeds a row is run with: one where the seed makes no difference."""
        model = model_class(str(row.overrides.get("model", self.base["model"].get("class_path"))))
        return seeds if model is None or model.depends_on_seed else 1

    def data_options(self, row: Row) -> dict[str, Any]:
        """Arguments of the row's data module, file names as written."""
        options = dict(self.base["data"]["init_args"])
        for key, value in row.overrides.items():
            if key.startswith("data."):
                options[key.removeprefix("data.")] = value
        return options


_TABLE_KEYS: dict[str, Any] = {
    "description": str,
    "minutes": (int, float),
    "paper_metric": str,
    "metrics": list,
    "counts": list,
    "profiles": list,
    "seeds": int,
    "base": (dict, str),
    "overrides": dict,
    "rows": dict,
    "like": str,
    "x_label": str,
    "compare_with": str,
    "encoder": str,
    "skip_absent": bool,
    "columns_without_header": dict,
}
_ROW_KEYS: dict[str, Any] = {
    "overrides": dict,
    "paper": (dict, int, float),
    "init_from": str,
    "grow": object,
    "x": object,
    "curve": str,
    "plot": bool,
}


#: What messages call the types of YAML.
_NAMES: dict[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def shipped_tables() -> list[str]:
    """The names that `zoo reproduce` knows."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_table(name: str, encoder: str | None = None) -> Table:
    """Read a table.

    Args:
        name: one of `shipped_tables`, or a YAML file.
        encoder: Hub name or folder of a pre-trained transformer that takes the place of the table's own (its
            `encoder`) wherever that is named.

    Raises:
        InputError: no such table, its YAML can't be used, or it has no encoder to replace.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in shipped_tables():
            raise InputError(
                f"zoo reproduce {name}: no such table; there are {', '.join(shipped_tables())}, or give a"
                " YAML file of your own"
            )
        path = SHIPPED / f"{name}.yaml"
    contents = _read_table_yaml(path)
    if redact(contents) != contents:
        raise InputError(
            f"{path}: holds a login, client_args or headers, and all options of a run are written down; give them"
            " in the environment (ELASTICSEARCH_API_KEY, ...)"
        )
    if encoder is not None:
        if "encoder" not in contents:
            raise InputError(f"--encoder: {path.stem} has no pre-trained encoder that could be replaced")
        contents = _replaced(contents, contents["encoder"], encoder)
    missing = {"description", "minutes", "base", "rows"} - contents.keys()
    if missing:
        raise InputError(f"{path}: {', '.join(sorted(missing))} is missing; add it")
    base = contents["base"]
    if isinstance(base, str):
        base = _read_yaml(path.parent / base)
    data = base.get("data") if isinstance(base, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("init_args"), dict):
        raise InputError(f"{path}: base must be a configuration for `zoo fit` with data.init_args")
    rows = {}
    for row_name, entry in contents["rows"].items():
        if not re.fullmatch(r"\w[\w .=+%-]*", str(row_name)):
            raise InputError(f"{path}: row {row_name!r}: name it with letters, digits, spaces and .=+%-")
        rows[str(row_name)] = _make_row(path, str(row_name), entry, {**contents, "base": base})
    for row in [row for row in rows.values() if row.starts_from is not None]:
        start = rows.get(str(row.starts_from))
        if start is None or start.grow:
            key = "init_from" if row.grow is None else "grow: from"
            raise InputError(f"{path}: row {row.name}: {key} names no trained row: {row.starts_from}")
        if row.grow is not None:
            rows[row.name] = replace(row, overrides=start.overrides)
    optional = (
        *("metrics", "counts", "profiles", "x_label", "compare_with", "skip_absent"),
        "columns_without_header",
    )
    if (other := contents.get("compare_with")) is not None and other not in rows:
        raise InputError(f"{path}: compare_with names no row: {other}")
    return Table(
        name=path.stem,
        description=str(contents["description"]),
        minutes=float(contents["minutes"]),
        paper_metric=contents.get("paper_metric", PAPER_METRIC),
        seeds=int(contents.get("seeds", 3)),
        base=base,
        rows=rows,
        **{key: contents[key] for key in optional if key in contents},
    )


def _replaced(value: Any, old: str, new: str) -> Any:
    """The value with every `old` in its mappings and lists made `new`."""
    if isinstance(value, dict):
        return {key: _replaced(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, old, new) for each in value]
    return new if value == old else value


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        contents = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror}); name a table's YAML") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(contents, dict):
        raise InputError(f"{path}: must be a mapping")
    return contents


def _read_table_yaml(path: Path) -> dict[str, Any]:
    """A table's YAML; `like: OTHER` takes what it does not say from another table of the same folder."""
    contents = _read_yaml(path)
    if unknown := contents.keys() - _TABLE_KEYS:
        raise InputError(
            f"{path}: {excerpt(min(map(str, unknown)))}: no such key; use {', '.join(sorted(_TABLE_KEYS))}"
        )
    _check_kinds(str(path), contents, _TABLE_KEYS)
    if (like := contents.pop("like", None)) is None:
        return contents
    other = _read_table_yaml(path.with_name(f"{like}.yaml"))
    for name, row in other.get("rows", {}).items():
        if not isinstance(row, dict | None):
            raise InputError(f"{path.with_name(f'{like}.yaml')}: row {name}: must be a mapping")
    # The paper's figures belong to the other table's setting.
    rows = {
        name: {key: value for key, value in (row or {}).items() if key != "paper"}
        for name, row in other["rows"].items()
    }
    overrides = {**other.get("overrides", {}), **contents.get("overrides", {})}
    return {**other, "rows": rows, **contents, "overrides": overrides}


def _check_kinds(place: str, mapping: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Refuse a list or a text where a mapping belongs, and the like."""
    for name, value in mapping.items():
        if value is not None and not isinstance(value, kinds[name]):
            wanted = kinds[name] if isinstance(kinds[name], tuple) else (kinds[name],)
            words = " or ".join(_NAMES[kind] for kind in wanted)
            raise InputError(f"{place}: {name}: must be {words}, not {excerpt(repr(value))}")


def _make_row(path: Path, name: str, entry: Any, table: Mapping[str, Any]) -> Row:
    entry = entry or {}
    if not isinstance(entry, dict) or (unknown := entry.keys() - _ROW_KEYS):
        wrong = min(map(str, unknown)) if isinstance(entry, dict) else entry
        if wrong == "trivial":
            raise InputError(
                f"{path}: row {name}: trivial: such rows are models now: write `overrides: {{model: TfidfSVM}}`"
                " (or Majority, NeighborVote; of pairs RandomOrder, FileOrder, WordOverlap, PairBM25)"
            )
        raise InputError(
            f"{path}: row {name}: {excerpt(wrong)}: no such key; use {', '.join(sorted(_ROW_KEYS))}"
        )
    _check_kinds(f"{path}: row {name}", entry, _ROW_KEYS)
    growth = None
    if (wanted := entry.get("grow")) is not None:
        if not isinstance(wanted, dict) or wanted.keys() != {"from", "rows_per_class"}:
            raise InputError(f"{path}: row {name}: grow: give `from`, a row, and `rows_per_class`, or all")
        if useless := entry.keys() & {"overrides", "init_from"}:
            raise InputError(
                f"{path}: row {name}: {sorted(useless)[0]} has no effect beside grow: nothing is trained"
            )
        limit = wanted["rows_per_class"]
        growth = Growth(str(wanted["from"]), None if limit == "all" else limit)
    paper = entry.get("paper") or {}
    if not isinstance(paper, dict):
        paper = {table.get("paper_metric", PAPER_METRIC): paper}
    for metric, figure in paper.items():
        if not isinstance(figure, int | float):
            raise InputError(
                f"{path}: row {name}: paper: {metric}: must be a number, not {excerpt(repr(figure))}"
            )
    own, counts = entry.get("overrides") or {}, table.get("counts", ())
    return Row(
        name,
        overrides={**_shared_overrides(table.get("overrides", {}), own.get("model")), **own},
        paper={
            str(metric): figure if metric.partition("/")[2] in counts else round(figure / 100, 6)
            for metric, figure in paper.items()
        },
        init_from=entry.get("init_from"),
        grow=growth,
        x=entry.get("x"),
        curve=entry.get("curve"),
        plot=entry.get("plot", True),
    )


def _shared_overrides(overrides: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """The table's overrides for a row: of the model's, if the row names another one, only those that it knows."""
    kind = None if model is None else model_class(model)
    known = None if kind is None else option_names(kind)
    return {
        key: value
        for key, value in overrides.items()
        if known is None or not key.startswith("model.") or key.split(".")[1] in known
    }


def in_order(table: Table, wanted: Sequence[str]) -> list[Row]:
    """The wanted rows and those that they start from; a row comes after the one that it starts from."""
    ordered: dict[str, Row] = {}

    def add(name: str, before: tuple[str, ...]) -> None:
        row = table.rows[name]
        if name in before:
            raise InputError(f"{table.name}: row {name} starts from itself; correct its init_from")
        if row.starts_from is not None:
            add(row.starts_from, (*before, name))
        ordered.setdefault(name, row)

    for name in wanted:
        add(name, ())
    return list(ordered.values())
