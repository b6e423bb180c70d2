"""`zoo memory remove`, `relabel`, `replace`, `compact`: the memory of a trained model is corrected."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import zoo
from datamodules.core.errors import InputError
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.zoo.conftest import Fit, Zoo, done, read_jsonl, refusal, write_table
from tests.zoo.ensemble.conftest import distinct_sentences
from zoo.memory.commands import fit_again
from zoo.model_folder.export import export
from zoo.model_folder.folder import ModelFolder

ROWS, DEV = distinct_sentences(40, seed=1), distinct_sentences(40, seed=4)
TEXTS = [text for text, _ in distinct_sentences(20, seed=3)]
SECRET = "xylophone"
LEXICAL = "--model.members=[lexical,lexical_vote]"


def evidence(folder: Path, version: int | None = None) -> list[Any]:
    """Of each text, what was retrieved: the weights that it gets are the model's."""
    predictions = zoo.load(folder, memory_version=version).predict(TEXTS)
    return [[memory._replace(weight=0) for memory in prediction.memories] for prediction in predictions]


def run_lines(zoo_command: Zoo, *arguments: object) -> list[str]:
    return done(zoo_command("memory", *arguments)).out.splitlines()


def test_a_removed_row_leaves_no_trace(shared_run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    label = ROWS[0][1]
    secret = (f"the {SECRET} " + TEXTS[0], label)
    folder = shared_run([*ROWS, secret], LEXICAL, validation=DEV)
    never = shared_run(ROWS, LEXICAL, validation=DEV, run_dir="never")
    before = [each.probabilities for each in zoo.load(folder).predict(TEXTS)]
    assert "40" in [memory.id for memory in evidence(folder)[0]]
    kept = Path(shutil.copytree(folder, tmp_path / "kept"))

    lines = run_lines(zoo_command, "remove", folder, "--ids=[40]")
    assert lines[0] == f"{folder / 'model' / 'memory'}: version 2, 40 memories, 1 removed"
    assert "zoo memory tune" in lines[1]
    assert evidence(folder) == evidence(never)
    lines = run_lines(zoo_command, "relabel", folder, "--ids=[3]", f"--label={ROWS[3][1]}")
    assert lines == [f"{folder / 'model' / 'memory'}: version 2, 40 memories, 0 relabelled"]
    # Members and weights follow, bit for bit those of a model that is fitted to a memory without the row.
    shutil.rmtree(folder)
    folder = kept.rename(folder)
    lines = run_lines(zoo_command, "remove", folder, "--ids=40", "--refit=true")
    fitted = "lexical fitted to 40 rows of the memory"
    assert f"{fitted} (without 1 training texts, which the memory lacks)" in lines[1]
    assert "40 rows that they were fitted on and 40 of the memory, each classified without it" in lines[1]
    # A command that was killed between its steps can be repeated.
    again = run_lines(zoo_command, "remove", folder, "--ids=40", "--refit=true")
    assert "40 memories, 0 removed" in again[0]
    assert fitted in again[1]
    refusal(zoo_command("memory", "remove", folder, "--ids=40"), "has no row with the id '40'")
    fit_again(ModelFolder.open(never), None, True)
    mine, others = zoo.load(folder), zoo.load(never)
    assert mine.predict(TEXTS) == others.predict(TEXTS)
    assert mine.model.network.pool.describe() == others.model.network.pool.describe()
    assert [each.probabilities for each in zoo.load(folder, memory_version=1).predict(TEXTS)] == before

    # For good: in the memory, and in the members that replace those of the training.
    (folder / "wandb" / "offline-run-1").mkdir(parents=True)
    lines = run_lines(zoo_command, "compact", folder, "--keep=1")
    assert lines[0] == f"{folder / 'model' / 'memory'}: 1 versions deleted, version 2 kept"
    exported = export(folder, tmp_path / "exported")
    card = (exported / "README.md").read_text()
    for name in ("vocabulary.json", "model.safetensors", "model.json"):
        assert all(name in text for text in (lines[1], again[-1]))
    # An export has the members that it applies, and no others. Only hashes of the training texts stay.
    assert "The files `vocabulary.json` remember rows" in card
    assert SECRET in (folder / "model" / "vocabulary.json").read_text()
    assert not any(SECRET.encode() in path.read_bytes() for path in exported.rglob("*") if path.is_file())
    assert not [*exported.glob("fitted/members-*"), *exported.glob("fitted/weights-*")]
    assert zoo.load(exported).predict(TEXTS) == zoo.load(folder).predict(TEXTS)
    # What is fitted later replaces the exported values, too.
    run_lines(zoo_command, "remove", exported, "--ids=[39]", "--refit=true")
    assert zoo.load(exported).model.network.fitted_version == 3
    assert "checkpoints/last.ckpt, " in lines[1]
    assert "wandb/offline-run-1, the training table and its copies in the cache" in lines[1]
    assert ["version-1" in line for line in (again[-1], lines[1])] == [True, False]
    weight = mine.model.network.pool.weights["all"]["lexical"]
    assert "The weights were fitted to version 2 of the memory: lexical fitted to 40 rows" in card
    assert f"weights lexical {weight:.2f}" in card
    files = [path for part in ("memory", "fitted") for path in (folder / "model" / part).rglob("*")]
    assert not any(SECRET.encode() in path.read_bytes() for path in files if path.is_file())
    assert zoo.load(folder).predict(TEXTS) == others.predict(TEXTS)
    assert len(list(folder.glob("model/fitted/members-*"))) == 1
    result = zoo_command("memory", "remove", folder, "--ids=40", "--refit=true")
    refusal(result, "has no row with the id '40'")
    with pytest.raises(InputError, match="was deleted by `zoo memory compact`; the oldest is 2"):
        zoo.load(folder, memory_version=1)


def test_compaction_keeps_the_weights_in_use(
    shared_run: Fit, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, switch = shared_run(ROWS, LEXICAL, validation=DEV), ModelFolder.switch
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        delete, late = ModelFolder.delete_unused_values, 0.2  # which waits for the switch
        patch.setattr(
            ModelFolder, "switch", lambda *to: wait([pool.submit(delete, to[0])], late) and switch(*to)
        )
        for row in ("3", "4", "5"):
            run_lines(zoo_command, "remove", folder, f"--ids={row}", "--refit=true")
    (folder / "model" / "fitted" / ".members-1.safetensors.1").touch()  # of a killed fit
    assert len(list(folder.glob("model/fitted/members-*"))) == 3
    run_lines(zoo_command, "remove", folder, "--ids=6")
    predictions = zoo.load(folder).predict(TEXTS)
    lines = run_lines(zoo_command, "compact", folder, "--keep=1")
    assert "the members were fitted to version 4" in lines[1]
    assert zoo.load(folder).predict(TEXTS) == predictions
    assert len(list(folder.glob("model/fitted/*members-*"))) == 1


def test_rows_are_named_in_many_ways(shared_run: Fit, zoo_command: Zoo, tmp_path: Path, caplog: Any) -> None:
    folder = shared_run(ROWS, LEXICAL, validation=DEV)
    labels = dict(enumerate(label for _, label in ROWS))
    numbers, table = tmp_path / "ids.txt", tmp_path / "ids.csv"
    numbers.write_text("1\n2\n")
    assert "38 memories, 2 removed" in run_lines(zoo_command, "remove", folder, "--file", numbers)[0]
    table.write_text("why,id\nold,7\nold,8\n")
    assert "36 memories, 2 removed" in run_lines(zoo_command, "remove", folder, "--file", table)[0]
    other = next(label for label in sorted(set(labels.values())) if label != labels[9])
    table.write_text(f"id,label\n9,{other}\n10,{labels[10]}\n")
    assert "36 memories, 1 relabelled" in run_lines(zoo_command, "relabel", folder, "--file", table)[0]
    table.write_text(f"id,text,label\n9,a whole new text,{other}\n")
    assert "36 memories, 1 replaced" in run_lines(zoo_command, "replace", folder, table)[0]
    run_lines(zoo_command, "add", folder, write_table(tmp_path / "more.csv", [("one durian", other)]))
    assert "36 memories, 1 removed" in run_lines(zoo_command, "remove", folder, '--ids=["6:0"]')[0]
    memory = FolderMemory(folder / "model" / "memory", EmbeddedRetriever())
    row = memory.rows.ids.index("9")
    assert (memory.rows.texts[row], memory.rows.label(row)) == ("a whole new text", other)
    left = [memory.rows.ids[row] for row in range(len(memory)) if memory.rows.label(row) == other]
    first, second, *_ = run_lines(zoo_command, "remove", folder, f"--ids={','.join(left)}")
    assert f"{len(left)} removed" in first
    assert second == f"no row is left with the label '{other}'"
    assert all(prediction.label for prediction in zoo.load(folder).predict(TEXTS))


def test_what_does_not_fit_is_refused(shared_run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    folder = shared_run(ROWS, LEXICAL, validation=DEV)
    twice = write_table(tmp_path / "twice.csv", [(1, ROWS[0][1]), (1, ROWS[1][1])], ["id", "label"])
    other = write_table(tmp_path / "other.csv", [(2, "y", "cars")], ["id", "text", "label"])
    cases = {
        ("remove", folder): "give --ids, or --file",
        ("remove", folder, "--ids=1", "--file", twice): "give --ids, or --file",
        ("remove", folder, "--ids=[]"): "--ids []: names no id",
        ("relabel", folder, "--ids=1"): "give --ids and --label, or --file",
        ("relabel", folder, "--ids=4", "--label=cars"): "row 4 has the label 'cars', which the model cannot",
        ("replace", folder, other): "row 1 ('y') has the label 'cars', which the model cannot predict",
        ("relabel", folder, "--file", twice): "the id '1' is given more than once",
    }
    for arguments, message in cases.items():
        refusal(zoo_command("memory", *arguments), message)
    assert not (folder / "model" / "memory" / "version-2").exists()
    plain = tmp_path / "plain"
    memory = FolderMemory(folder / "model" / "memory", EmbeddedRetriever())
    FolderMemory.build(memory.rows, EmbeddedRetriever(), plain)
    result = zoo_command("memory", "remove", plain, "--ids=1", "--refit=true")
    refusal(result, "has no weights; name the model")
    assert "39 memories, 1 removed" in run_lines(zoo_command, "remove", plain, "--ids=1")[0]


def test_ids_are_shown_with_the_evidence(run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    table = tmp_path / "ids.csv"
    lines = [f"{text},{label},row {number}" for number, (text, label) in enumerate(ROWS)]
    table.write_text("\n".join(["text,label,name", *lines]) + "\n")
    folder = run("run", "--data.id_column=name", LEXICAL, table=table)
    done(zoo_command("predict", f"--ckpt_path={folder}", f"--input={table}", "--output=out.jsonl"))
    memories = [memory for line in read_jsonl("out.jsonl") for memory in line["memories"]]
    texts = {f"row {number}": text for number, (text, _) in enumerate(ROWS)}
    assert memories
    assert all(texts[memory["id"]] == memory["text"] for memory in memories)
    gone = memories[0]["id"]
    run_lines(zoo_command, "remove", folder, f"--ids={gone}")
    result = zoo_command("search", texts[gone], f"--memory={folder / 'model' / 'memory'}", "--k=40")
    assert result.out
    assert f"  {gone}  [" not in result.out
    assert re.search(r"  row \d+  \[", result.out)


def test_a_correction_by_add_is_a_relabel(shared_run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    folder = shared_run(ROWS, LEXICAL, validation=DEV)
    text, old = ROWS[4]
    new = next(label for _, label in ROWS if label != old)
    more = write_table(tmp_path / "more.csv", [(text.upper(), new)])
    lines = run_lines(zoo_command, "add", folder, more)
    assert "version 2, 41 memories, 1 new (1 with the text of a memory with another label)" in lines[0]
    assert "--relabel true" in lines[1]
    shown = run_lines(zoo_command, "show", folder)
    assert "conflicts 1 texts with several labels; `zoo memory relabel` corrects them" in shown
    assert shown[-1].split() == [*f"{text}: 4 {old}, 2:0 {new}".split()]
    lines = run_lines(zoo_command, "add", folder, more, "--relabel=true")
    place, done = folder / "model" / "memory", "0 new (1 duplicates skipped, 1 old ones relabelled)"
    assert lines == [f"{place}: version 3, 41 memories, {done}", f"the model now answers {text} with {new}"]
    assert not any(line.startswith("conflicts") for line in run_lines(zoo_command, "show", folder))
    lines = run_lines(zoo_command, "relabel", folder, "--ids=4", f"--label={new}", "--refit=true")
    assert "0 relabelled" in lines[0]
    assert not any("now answers" in line for line in lines)
    more = write_table(tmp_path / "more.csv", [(text, new), (text, old)])
    refusal(zoo_command("memory", "add", folder, more, "--relabel=true"), "has another label in another row")


def test_weights_follow_an_addition_in_one_command(shared_run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    folder = shared_run(ROWS, LEXICAL, validation=DEV)
    before = zoo.load(folder).model.network.pool.describe()
    more = write_table(tmp_path / "more.csv", distinct_sentences(60, seed=2))
    lines = run_lines(zoo_command, "add", folder, more, "--tune=true")
    assert lines[4] == "and 57 more texts with their labels"
    assert "on the 40 rows that they were fitted on and 60 of the memory, each classified without" in lines[5]
    assert zoo.load(folder).model.network.pool.describe() != before
    assert zoo.load(folder, memory_version=1).model.network.pool.describe() == before
    plain = FolderMemory(folder / "model" / "memory", EmbeddedRetriever()).copy_to(tmp_path / "plain").folder
    refusal(zoo_command("memory", "add", plain, more, "--tune=true"), "has no weights; name the model")
