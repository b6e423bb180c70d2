"""`zoo memory log`, `diff`, `blame` and `revert`: the versions of a memory, and the way back to one of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from functools import cache

from datamodules.core.errors import InputError, excerpt, visible
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.memories.memory import Change
from datamodules.retrieval.memories.versions import difference
from zoo.memory.answers import classifier, describe_change, describe_harm, find_right_answers, read_held_out
from zoo.memory.opened import OpenedMemory
from zoo.model_folder.folder import REPORT
from zoo.model_folder.state import State
from zoo.tasks.classification.held_out import TUNE_ADVICE

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def log(model: str, held_out: bool = False) -> None:
    """Print the versions of a memory: number, time (UTC), number of rows, change and note of each.

    Args:
        model: a run folder or a model folder; or a memory folder.
        held_out: also measure each version on held-out rows, and name those that were worse than the one before.
    """
    opened, before = OpenedMemory.open(model), list[bool]()
    entries = opened.folder.history()
    if not held_out:
        print(*map(_line_of, entries), sep="\n")
        return
    folder, versions = opened.model_with_weights("--held_out"), [each["version"] for each in entries]
    rows = read_held_out(opened, *versions)
    if rows is None:
        raise InputError(f"--held_out: {model} has no held-out rows beside its memory; {TUNE_ADVICE}")
    for entry, version in zip(entries, versions, strict=True):
        after = find_right_answers(folder, version, rows)
        share = f"accuracy on {len(after):,} held-out rows: {sum(after) / len(after):.4f}"
        print(_line_of(entry), f"      {describe_harm(before or after, after) or share}", sep="\n")
        before = after


def _line_of(entry: PlainDict) -> str:
    time, change, note = (visible(entry[name] or "") for name in ("time", "change", "note"))
    return f"{entry['version']:4}  {time}  {entry['rows']:9,} rows  {change:14}  {note}".rstrip()


def diff(model: str, first: int, second: int) -> None:
    """Print the rows that the second of two versions of a memory has, lacks (-), or has with other contents (~).

    Args:
        model: a run folder or a model folder; or a memory folder.
        first: the number of a version; see `zoo memory log`.
        second: of another one.
    """
    kinds = describe_difference(OpenedMemory.open(model).folder, first, second)
    numbers = ", ".join(f"{described['count']:,} {kind}" for kind, described in kinds.items())
    print(f"version {first} to {second}: {numbers}", *_lines_of(kinds), sep="\n")


def _lines_of(kinds: PlainDict, ids: Container[str] | None = None) -> Iterator[str]:
    for kind, described in kinds.items():
        for row in described["rows"]:
            if ids is None or row["id"] in ids:
                states = [row.get("before", row), row]
                label, text = (
                    " -> ".join(dict.fromkeys(each[of] or f"no {of}" for each in states))
                    for of in ("label", "text")
                )
                yield f"{_SIGNS[kind]} {visible(row['id'])} [{visible(label)}] {text}"


def blame(model: str, text: str) -> None:
    """Print which version of the memory changed the answer to a text last, and the rows of the change that did it.

    Args:
        model: a run folder or a model folder of a classifier.
        text: the text. Versions that exist are searched by bisection: if the answer changed back and forth, the last
            change is printed that the bisection finds between the first and the present version, which may be none.
    """
    if not text.strip():
        raise InputError("zoo memory blame: the text is empty; give one with words")
    opened = OpenedMemory.open(model)
    memory, folder = opened.folder, opened.named_model("zoo memory blame")
    entries = {entry["version"]: entry for entry in memory.history()}
    answer_of = cache(lambda version: classifier(folder, version).predict([text])[0])
    earlier, label = range(min(entries), memory.version), answer_of(memory.version).label
    changed = earlier.start + bisect_left(earlier, True, key=lambda number: answer_of(number).label == label)
    if changed == earlier.start:
        print(
            f"no change found: versions {changed} and {memory.version} answer {visible(label or 'no label')}"
        )
        return
    before, after = answer_of(changed - 1), answer_of(changed)
    ids = {each.id for each in (*before.memories, *after.memories)}
    lines = [*_lines_of(describe_difference(memory, changed - 1, changed), ids)]
    lines = lines or ["none of the rows that this version changed is among the memories of the answer"]
    print(_line_of(entries[changed]), describe_change(before, after), *lines, sep="\n")
    if folder.state.fitted_to(changed) != folder.state.fitted_to(changed - 1):
        print("its weights or members differ from those of the version before, too")


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
    print(f"{opened.memory.location()}: {done.describe()}")


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


def describe_difference(memory: FolderMemory, first: int, second: int, most: int | None = None) -> PlainDict:
    """Return `count` and `rows`, at most so many, of the rows that were added, removed and changed, with excerpts."""
    added, removed, before, after = difference(*map(memory.open_version, (first, second)))
    changed = zip(_records(after, most), _records(before, most), strict=True)
    return {
        "added": {"count": len(added), "rows": _records(added, most)},
        "removed": {"count": len(removed), "rows": _records(removed, most)},
        "changed": {"count": len(after), "rows": [{**row, "before": old} for row, old in changed]},
    }


def _records(rows: Rows, most: int | None) -> list[PlainDict]:
    table = rows.table.slice(0, len(rows) if most is None else most)
    return [{**row, "text": excerpt(row["text"])} for row in table.to_pylist()]
