"""`zoo memory log`, `diff` and `revert`: the versions of a memory, and the way back to one of them."""

from __future__ import annotations

from datamodules.core.errors import excerpt, visible
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.memories.memory import Change
from datamodules.retrieval.memories.versions import difference, open_kept, read_pointer
from zoo.memory.opened import OpenedMemory
from zoo.model_folder.folder import REPORT
from zoo.model_folder.state import State

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def log(model: str) -> None:
    """Print the versions of a memory: number, time (UTC), number of rows, change and note of each.

    Args:
        model: a run folder or a model folder; or a memory folder.
    """
    for entry in OpenedMemory.open(model).folder.history():
        time, change, note = (visible(entry[name] or "") for name in ("time", "change", "note"))
        print(f"{entry['version']:4}  {time}  {entry['rows']:9,} rows  {change:14}  {note}".rstrip())


def diff(model: str, first: int, second: int) -> None:
    """Print the rows that the second of two versions of a memory has, lacks (-), or has with other contents (~).

    Args:
        model: a run folder or a model folder; or a memory folder.
        first: the number of a version; see `zoo memory log`.
        second: of another one.
    """
    kinds = describe_difference(OpenedMemory.open(model).folder, first, second)
    numbers = ", ".join(f"{described['count']:,} {kind}" for kind, described in kinds.items())
    print(f"version {first} to {second}: {numbers}")
    for kind, described in kinds.items():
        for row in described["rows"]:
            states = [row.get("before", row), row]
            label, text = (
                " -> ".join(dict.fromkeys(each[of] or "" for each in states)) for of in ("label", "text")
            )
            print(f"{_SIGNS[kind]} {visible(row['id'])} [{visible(label)}] {text}")


def revert(model: str, version: int, note: str | None = None) -> None:
    """Make a new version of a memory with the rows of an earlier one; the model answers as it did with that one.

    The versions in between stay, and can be reverted to as well. Members and weights are those of the earlier version.

    Args:
        model: a run folder or a model folder; or a memory folder.
        version: the number of the earlier version; see `zoo memory log`.
        note: a reason, which is kept with the new version.
    """
    opened = OpenedMemory.open_to_change(model)
    done = revert_to(opened, version, note)
    print(f"{opened.memory.location()}: version {done.version}, {done.rows} memories, {done.changed} changed")


def revert_to(opened: OpenedMemory, version: int, note: str | None) -> Change:
    """Revert a memory to the rows of a version, and its model to the values that were fitted up to it, in one step."""

    def with_values(pointer: PlainDict) -> PlainDict:
        if "fitted" not in pointer:
            return pointer  # of no model
        state, number = State.parse(pointer, opened.memory.location()), int(pointer["memory"]["version"])
        # Named even where they are the same: a fit that is running may write others for a version in between.
        fitted = state.with_fitted(number, state.fitted_to(version)).describe_fitted()
        return {**pointer, "fitted": fitted, REPORT: f"those of version {version} of the memory"}

    return opened.folder.revert(version, note, with_values)


def describe_difference(
    memory: FolderMemory, first: int, second: int, most: int | None = None
) -> dict[str, PlainDict]:
    """Return `count` and `rows`, at most so many, of the rows that were added, removed and changed, with excerpts."""
    state = read_pointer(memory.folder, memory.pointer)
    found = difference(*(open_kept(memory.folder, state, number) for number in (first, second)))
    before, after = _records(found.before, most), _records(found.after, most)
    changed = [{**row, "before": old} for row, old in zip(after, before, strict=True)]
    return {
        "added": {"count": len(found.added), "rows": _records(found.added, most)},
        "removed": {"count": len(found.removed), "rows": _records(found.removed, most)},
        "changed": {"count": len(found.after), "rows": changed},
    }


def _records(rows: Rows, most: int | None) -> list[PlainDict]:
    table = rows.table.slice(0, len(rows) if most is None else most)
    return [{**row, "text": excerpt(row["text"])} for row in table.to_pylist()]
