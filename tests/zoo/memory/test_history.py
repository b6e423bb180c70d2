"""`zoo memory log`, `diff`, `revert` and notes: what was changed, why, and the way back."""

from __future__ import annotations

import re
from pathlib import Path

import zoo
from datamodules.core import storage
from datamodules.retrieval import FolderMemory
from tests.zoo.conftest import LABELS, Zoo, done, refusal, sentences, write_table
from zoo.model_folder.folder import ModelFolder

TEXTS = [text for text, _ in sentences(20, seed=3)]


def test_a_reverted_model_answers_as_before(folder: Path, zoo_command: Zoo) -> None:
    memory = ModelFolder.open(folder).open_memory()
    assert isinstance(memory, FolderMemory)
    ids, texts, old = memory.rows.ids, memory.rows.texts, memory.rows.labels or []
    new = [LABELS[LABELS.index(label) - 1] for label in old]
    more = write_table(Path("more.csv"), [("a quite new zebra", "fruit")])
    other = write_table(Path("other.csv"), [(ids[2], "no\u202eble", new[2])], ["id", "text", "label"])
    answers = {}
    for version, arguments in enumerate(
        [
            ("add", folder, more, "--note=why: a \x1b[2J ticket"),
            # Members and weights that are fitted meanwhile do not belong to the rows before.
            ("remove", folder, f"--ids=[{ids[0]}]", "--refit=true", "--note=007"),
            ("relabel", folder, f"--ids={ids[1]}", f"--label={new[1]}"),
            ("replace", folder, other),
            ("revert", folder, 2, "--note=back"),
            ("revert", folder / "model" / "memory", 4),
        ],
        2,
    ):
        out = done(zoo_command("memory", *arguments)).out
        assert f"version {version}, " in out
        answers[version] = zoo.load(folder).predict(TEXTS)
    assert answers[6] == answers[2] == zoo.load(folder, memory_version=2).predict(TEXTS)
    assert answers[7] == answers[4] != answers[2]
    logged = done(zoo_command("memory", "log", folder)).out.splitlines()
    assert [re.split("  +", line.strip())[2:] for line in logged] == [
        ["72 rows", "built"],
        ["73 rows", "+1", "why: a \\u001b[2J ticket"],
        ["72 rows", "-1", "007"],
        ["72 rows", "1 relabelled"],
        ["72 rows", "1 replaced"],
        ["73 rows", "back to 2", "back"],
        ["72 rows", "back to 4"],
    ]
    assert done(zoo_command("memory", "diff", folder, 1, 5)).out.splitlines() == [
        "version 1 to 5: 1 added, 1 removed, 2 changed",
        "+ 2:0 [fruit] a quite new zebra",
        f"- {ids[0]} [{old[0]}] {texts[0]}",
        f"~ {ids[1]} [{old[1]} -> {new[1]}] {texts[1]}",
        f"~ {ids[2]} [{old[2]} -> {new[2]}] {texts[2]} -> no\\u202eble",
    ]
    done(zoo_command("memory", "compact", folder, "--keep=2"))
    for wrong in (("revert", folder, 3), ("diff", folder, 3, 7)):
        refusal(zoo_command("memory", *wrong), "version 3 was deleted by `zoo memory compact`")
    # A memory folder has a history, too.
    assert len(done(zoo_command("memory", "log", folder / "model" / "memory")).out.splitlines()) == 2


def test_a_version_that_harms_is_named(folder: Path, zoo_command: Zoo) -> None:
    """Known texts get wrong labels: the edit says so, and the log, which measures all versions."""
    state = ModelFolder.open(folder).state_file
    contents = state.read_text()
    storage.set_key(state, "fitted", {})
    refusal(zoo_command("memory", "log", folder, "--held_out"), "no rows of", "zoo memory tune")
    state.write_text(contents)
    dev = sentences(60, seed=8)
    done(zoo_command("memory", "tune", folder, write_table(Path("dev.csv"), dev)))
    more = write_table(Path("more.csv"), [("a quite new zebra", "fruit")])
    assert "lowered" not in done(zoo_command("memory", "add", folder, more)).out
    wrong = [(text, LABELS[LABELS.index(label) - 1]) for text, label in dev]
    table = write_table(Path("wrong.csv"), wrong)
    shares = r"lowered the accuracy on (\d+) held-out rows: ([01]\.\d+) -> ([01]\.\d+) \(McNemar p = .*\)"
    edited = done(zoo_command("memory", "add", folder, table)).out
    named = re.search(
        rf"^version 3 {shares}; back to version 2: zoo memory revert {folder} 2$", edited, re.MULTILINE
    )
    assert named is not None, edited
    lines = done(zoo_command("memory", "log", folder, "--held_out")).out.splitlines()
    _, first, _, second, _, third = map(str.strip, lines)
    assert first.startswith(f"accuracy on {named[1]} held-out rows: 1.0000")
    assert second == f"accuracy on {named[1]} held-out rows: {named[2]}"
    assert re.fullmatch(shares, third)[3] == named[3]
