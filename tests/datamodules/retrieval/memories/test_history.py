"""The history of a memory: its entries, the differences of its versions, and the way back to one of them."""

from pathlib import Path
from typing import Any

import numpy as np

from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.memories.versions import Version, difference
from tests.datamodules.checks import files_of, refused
from tests.datamodules.corpus import rows
from tests.datamodules.retrieval.memories.test_memory_growth import build, hits_of

LABELS = ["beasts", "boats", "bread"]


def edit(memory: FolderMemory, state: list[Any], states: dict[int, list[Any]]) -> tuple[str, list[Any]]:
    """Make a random edit; return its description, and the rows (id, text, label) that plain lists give."""
    number = memory.version
    random, note = np.random.default_rng(number), f"note {number}"
    chosen = [state[i] for i in np.sort(random.choice(len(state), size=random.integers(1, 4), replace=False))]
    kind = str(random.choice(["add", "remove", "relabel", "replace", "revert"])) if number > 1 else "add"
    if kind == "add":
        new = [(f"{number + 1}:{i}", f"text {number} {i}", LABELS[i]) for i in range(len(chosen))]
        memory.add(Rows.from_lists([row[1] for row in new], [row[2] for row in new]), note=note)
        return f"+{len(new)}", state + new
    if kind == "remove":
        memory.remove([row[0] for row in chosen], note)
        return f"-{len(chosen)}", [row for row in state if row not in chosen]
    if kind == "revert":
        version = int(random.integers(1, number))
        memory.revert(version, note)
        return f"back to {version}", states[version]
    text = f"another text {number}" if kind == "replace" else ""
    changed = {row[0]: (row[0], text or row[1], LABELS[LABELS.index(row[2]) - 1]) for row in chosen}
    ids, texts, labels = zip(*changed.values(), strict=True)
    if kind == "replace":
        memory.replace(Rows.from_lists(texts, labels, ids), note)
    else:
        memory.replace(dict(zip(ids, labels, strict=True)), note)
    return f"{len(ids)} {'replaced' if text else 'relabelled'}", [changed.get(row[0], row) for row in state]


def plain(table: Rows) -> list[Any]:
    return [(row["id"], row["text"], row["label"]) for row in table.table.to_pylist()]


def test_history_of_random_edits(tmp_path: Path) -> None:
    memory = build(tmp_path / "m", rows(30))
    states, changes = {1: plain(memory.rows)}, [("built", None)]
    while memory.version <= 50:
        number = memory.version
        change, states[number + 1] = edit(memory, states[number], states)
        assert (memory.version, plain(memory.rows)) == (number + 1, states[number + 1])
        changes.append((change, f"note {number}"))
        if change.startswith("back"):
            old = FolderMemory(memory.folder, memory.retriever.without_index(), int(change.split()[-1]))
            folders = [each.opened.folder for each in (old, memory)]
            files = [
                {path.relative_to(folder): each for path, each in files_of(folder).items()}
                for folder in folders
            ]
            differing = [name for name in files[0] | files[1] if files[0].get(name) != files[1].get(name)]
            assert [str(name) for name in differing if not name.name.startswith(".")] == ["manifest.json"]
            queries = [row[1] for row in states[number]]
            assert hits_of(old.search(queries, 9)) == hits_of(memory.search(queries, 9))
    entries = memory.history()
    assert [(each["change"], each["note"]) for each in entries] == changes
    assert [(each["version"], each["rows"]) for each in entries] == [
        (version, len(state)) for version, state in states.items()
    ]
    assert [each["time"] for each in entries] == sorted(each["time"] for each in entries)
    for numbers in np.random.default_rng(0).integers(1, memory.version + 1, size=(40, 2)).tolist():
        found = map(plain, difference(*(Version.open(memory.folder, number) for number in numbers)))
        before, after = ({row[0]: row for row in states[number]} for number in numbers)
        changed = [name for name, row in after.items() if before.get(name, row) != row]
        assert list(found) == [
            [row for name, row in after.items() if name not in before],
            [row for name, row in before.items() if name not in after],
            [before[name] for name in changed],
            [after[name] for name in changed],
        ]
    memory.compact(5)
    assert memory.history() == entries[-5:]
    assert memory.revert(memory.version).changed == 0
    with refused("version 2 was deleted by `zoo memory compact`; the oldest is"):
        memory.revert(2)
    with refused("--note: has 501 characters; shorten it to 500"):
        memory.revert(memory.version - 1, "n" * 501)
    assert memory.history(3) == entries[-3:]
