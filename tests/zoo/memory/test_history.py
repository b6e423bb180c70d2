"""`zoo memory log`, `diff`, `revert` and notes: what was changed, why, and the way back."""

import re
from pathlib import Path

import zoo
from datamodules.core import storage
from datamodules.retrieval.folding import fold_hashes
from tests.zoo.conftest import LABELS, Edit, Fit, Zoo, done, refusal, sentences, write_table
from zoo.model_folder.folder import ModelFolder

TEXTS = [text for text, _ in sentences(20, seed=3)]


def test_a_reverted_model_answers_as_before(folder: Path, zoo_command: Zoo) -> None:
    memory = ModelFolder.open(folder).open_memory()
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


def test_a_version_that_harms_is_named(shared_run: Fit, zoo_command: Zoo, edit: Edit) -> None:
    """Two thirds of the rows get wrong labels, and right ones again: the edit names it, and the log of all versions."""
    run = shared_run(sentences(90, seed=1), "--model.members=[lexical,lexical_vote]")
    contents = (state := ModelFolder.open(run).state_file).read_text()
    storage.set_key(state, "fitted", {})
    refusal(zoo_command("memory", "log", run, "--held_out"), "no held-out rows", "zoo memory tune")
    state.write_text(contents)
    edit("tune", run, dev := sentences(60, seed=8))
    memory = zoo.load(run).memory
    rows = [*zip(memory.rows.ids, memory.rows.labels or [], strict=True)][:60]
    wrong = [(name, LABELS[LABELS.index(label) - 1]) for name, label in rows]
    shares = r"lowered the accuracy on (\d+) held-out rows: [01]\.\d+ -> 0\.\d+ \(McNemar p = .*\)"
    printed = []
    for pairs in (rows, wrong, rows):  # the first changes nothing
        table = write_table(Path("labels.csv"), pairs, ["id", "label"])
        printed += [done(zoo_command("memory", "relabel", run, "--file", table, "--refit=true")).out]
    pattern = rf"^version 2 {shares}; back to version 1: zoo memory revert {run} 1$"
    named = re.search(pattern, printed[1], re.M)
    assert named is not None, printed[1]
    assert "lowered" not in printed[0] + printed[2]
    # A held-out row that joins the memory is answered by it, and counts no longer.
    joined = next(text for text, _ in dev if fold_hashes([text])[0] not in fold_hashes(memory.rows.texts))
    edit("add", run, [(joined, "metal")], "--relabel=true")
    done(zoo_command("memory", "revert", run, zoo.load(run).memory.version - 1))
    states = [*map(str.strip, done(zoo_command("memory", "log", run, "--held_out")).out.splitlines()[1::2])]
    assert states[0].startswith(f"accuracy on {int(named[1]) - 1} held-out rows: ")
    assert re.fullmatch(shares, states[1])
    assert states[2].startswith("accuracy on ")
