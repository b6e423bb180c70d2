"""`--preview` of edits and `zoo memory blame`: what changes of a memory do to the answers."""

import math
import re
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import zoo
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from datamodules.retrieval.elasticsearch.connection import ServerConnection
from tests.datamodules.checks import files_of, kill
from tests.datamodules.corpus import in_processes
from tests.zoo.conftest import (
    LABELS,
    QUIET_TRAINER,
    Edit,
    Fit,
    Zoo,
    done,
    fit_options,
    pair_rows,
    refusal,
    sentences,
    write_pairs,
    write_table,
)
from zoo import loading
from zoo.memory import answers
from zoo.memory.opened import OpenedMemory
from zoo.model_folder.folder import ModelFolder

ROWS = [*sentences(20, seed=3), ("xyzzy", "metal"), ("a quite new zebra", "fruit")]
TEXTS = [text for text, _ in ROWS]


def memory_of(folder: Path) -> FolderMemory:
    return ModelFolder.open(folder).open_memory()


def a_random_edit(random: np.random.Generator, folder: Path) -> list[object]:
    """The arguments of an edit: some with fits, corrections, or labels that training lacks."""
    rows = memory_of(folder).rows
    ids = [rows.ids[row] for row in random.choice(len(rows), size=random.integers(1, 4), replace=False)]
    names = [str(name) for name in random.choice(LABELS, size=3)]
    texts = [str(text) for text in random.choice([*TEXTS, *rows.texts], size=3)]
    kind = str(random.choice(["add", "add", "remove", "relabel", "replace"]))
    if kind == "add":
        new = (["--relabel=true"], ["--new_labels=true"], ["--tune=true"], [])[random.integers(4)]
        names[0] = "music" if new == ["--new_labels=true"] else names[0]
        pairs = dict(zip(texts, names, strict=True))  # --relabel refuses a text with two labels
        return ["add", folder, write_table(Path("edit.csv"), [*pairs.items()]), *new]
    columns = ["id", "text", "label"]
    table = write_table(Path("edit.csv"), [*zip(ids, texts, names, strict=False)], columns)
    named = {"remove": [f"--ids=[{','.join(ids)}]"], "relabel": ["--file", table], "replace": [table]}[kind]
    refit = ["--refit=true"] if random.integers(4) == 0 else []
    return [kind, folder, *named, *refit]


@pytest.fixture
def on_elasticsearch(
    run: Fit, elasticsearch_url: str, index_prefix: str
) -> tuple[Path, Callable[[], list[str]]]:
    """The run folder of a small ensemble whose memory is on a server, and what lists the server's own indexes."""
    server = ServerConnection(elasticsearch_url, 60, 1, "Elasticsearch")
    options = ["--data.retriever=ElasticsearchRetriever", f"--data.retriever.index_prefix={index_prefix}"]
    folder = run("run", *options)
    return folder, lambda: server.read(lambda client: client.indices.get(index=f"{index_prefix}*"), sorted)


@pytest.mark.parametrize(
    ("edits", "place"),
    [
        (7, "folder"),
        pytest.param(30, "folder", marks=pytest.mark.slow),
        pytest.param(7, "on_elasticsearch", marks=pytest.mark.server),
    ],
)
def test_a_preview_equals_the_edit(
    edits: int, place: str, request: pytest.FixtureRequest, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = request.getfixturevalue(place)
    folder, indexes = (given, list) if place == "folder" else given
    monkeypatch.setattr(answers, "describe_accuracy", describe := Mock(wraps=answers.describe_accuracy))
    random, table = np.random.default_rng(edits), write_table(Path("texts.csv"), ROWS)
    changed = 0
    for _ in range(edits):
        edit, files, on_server = a_random_edit(random, folder), files_of(folder), indexes()
        before, version = zoo.load(folder), memory_of(folder).version
        kept = answers.read_held_out(OpenedMemory.open(str(folder)), version)
        lines = done(zoo_command("memory", *edit, "--preview", table)).out.splitlines()
        assert (files_of(folder), indexes()) == (files, on_server)
        assert not [path for path in folder.rglob("*") if "preview" in path.name]
        made = done(zoo_command("memory", *edit)).out.splitlines()
        assert re.sub(r"re\w+$", "changed", made[0]) == lines[0].removeprefix("preview: ")
        after = zoo.load(folder)
        tables = [(TEXTS, [label for _, label in ROWS]), (kept.texts[:], kept.labels)]
        previews = {call.args[0]: call.args[1] for call in describe.call_args_list}
        describe.reset_mock()
        found = [previews[name] for name in (str(table), "held-out rows")]
        lines, previewed = lines[1:], []
        for (texts, labels), pairs in zip(tables, found, strict=True):
            expected = [model.predict(texts, memories=0) for model in (before, after)]
            assert [[*side] for side in zip(*pairs, strict=True)] == expected
            right = [[one.label == y for one, y in zip(side, labels, strict=True)] for side in expected]
            previewed.append(" -> ".join(f"{np.mean(side):.4f}" for side in right))
        assert [line.split("): ")[1].split(";")[0] for line in lines if "accuracy" in line] == previewed
        differing = [(one, other) for one, other in found[0] if one.label != other.label]
        assert lines[0] == f"{len(differing)} of {len(TEXTS)} answers change"
        for line, (one, other) in zip(lines[1:], differing, strict=False):
            states = f"{one.label} {one.probability:.2f} -> {other.label} {other.probability:.2f}"
            assert line == f"~ [{states}] {one.text}"
        changed += len(differing)
    assert changed > edits / 4


def test_texts_without_labels_and_what_is_refused(
    folder: Path,
    zoo_command: Zoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    more = write_table(tmp_path / "more.csv", [("a quite new zebra", "metal")])
    texts = write_table(tmp_path / "texts.csv", [["a quite new zebra"], [" "]], ["text"])
    result = done(zoo_command("memory", "add", folder, more, "--preview", texts))
    assert "1 of 2 texts are empty; they are kept" in caplog.text
    assert "no accuracy: " in result.out
    assert "no column 'label'" in result.out
    assert "1 of 2 answers change" in result.out
    assert " metal 0.98] a quite new zebra" in result.out
    empty, other = tmp_path / "empty.csv", write_table(tmp_path / "other.csv", [("a", "b")], ["x", "y"])
    empty.write_text("")
    plain = memory_of(folder).copy_to(tmp_path / "plain").folder
    add, by_id = ("add", folder, more), ("remove", folder, "--ids=nobody")
    place, files = folder / "model" / "memory", files_of(folder)
    for arguments, file, message in (
        (add, empty, f"{empty}: empty file"),
        (add, other, "no column 'text'"),
        (add, "absent.csv", "absent.csv"),
        (by_id, texts, f"{place}: has no row with the id 'nobody'"),
        (("relabel", folder, "--ids=nobody", "--label=fruit"), texts, f"{place}: has no row with the id"),
        (("replace", folder, more, "--id_column=text"), texts, f"{place}: has no row with the id"),
        ((*add, f"--note={'x' * 501}"), texts, "--note: has 501 characters"),
        (("add", plain, more), texts, "has no weights; name the model"),
    ):
        refusal(zoo_command("memory", *arguments, "--preview", file), message)
        assert files_of(folder) == files
    refusal(zoo_command("memory", "blame", plain, "zebra"), "has no weights; name the model")
    refusal(zoo_command("memory", "blame", folder, " "), "the text is empty")


def test_a_model_without_memory_and_one_of_another_kind(
    trained: Callable[..., Path], trained_run: Path, kept_table: Fit, zoo_command: Zoo
) -> None:
    table = kept_table(*ROWS)
    plain = trained(*map(str, fit_options(kept_table(*sentences(90, seed=1)), "--model.features=M1")))
    for more in ((), ("--preview", table)):
        refusal(zoo_command("memory", "add", plain, table, *more), "this model reads no memory")
    refusal(zoo_command("memory", "blame", plain, "zebra"), "this model reads no memory")
    pairs = write_pairs(Path("pairs.tsv").absolute(), pair_rows(20, seed=1))
    options = ["--data=MatchingDataModule", f"--data.train_file={pairs}", "--data.validation_split=0.2"]
    matcher = trained("fit", "--model=WordOverlap", *options, *QUIET_TRAINER)
    refusal(zoo_command("memory", "blame", matcher, "zebra"), "a WordOverlap is no classifier")
    remove = ("memory", "remove", matcher, "--ids=0", "--preview", table)
    refusal(zoo_command(*remove), "a WordOverlap is no classifier")
    lines = done(zoo_command("memory", "add", trained_run, table, "--preview", table)).out.splitlines()
    assert lines[0].endswith("version 2, 94 memories, 22 new")
    assert lines[-2].startswith(f"accuracy on {table} (22): ")  # only a MemoryEnsemble keeps held-out rows


def test_an_interrupted_preview_blocks_nothing(
    folder: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = write_table(Path("more.csv"), [("a quite new zebra", "metal")])
    preview, files = ["memory", "add", folder, more, "--preview", more], files_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(FolderMemory, "add", Mock(side_effect=KeyboardInterrupt))
        zoo_command(*preview)
        assert files_of(folder) == files
        # It leaves links, which the next preview or a compaction deletes.
        patch.setattr(FolderMemory, "add", kill)
        assert in_processes(1, zoo_command, *preview) == [-signal.SIGKILL]
    assert len([*folder.glob("model/.preview-*.partial/memory")]) == 1
    assert "1 new" in done(zoo_command("memory", "add", folder, more)).out
    done(zoo_command("memory", "compact", folder))
    assert not [*folder.rglob(".preview-*.partial")]
    assert memory_of(folder).version == 2


@pytest.mark.server
def test_an_interrupted_preview_leaves_nothing_on_a_server(
    on_elasticsearch: tuple[Path, Callable[[], list[str]]], zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, indexes = on_elasticsearch
    more = write_table(Path("more.csv"), [("a quite new zebra", "metal")])
    preview, before = ["memory", "add", folder, more, "--preview", more], indexes()
    for stopped in (ServerConnection, "write"), (FolderMemory, "_switch"):
        with monkeypatch.context() as patch:
            patch.setattr(*stopped, kill)
            assert in_processes(1, zoo_command, *preview) == [-signal.SIGKILL]
        (left,) = {*indexes()} - {*before}
        assert left.startswith(f"{before[0].rpartition('-')[0]}-preview-")
        other = folder / "model" / ".preview-*.partial"  # of a stranger, who names indexes of others
        other.mkdir()
        done(zoo_command(*preview) if stopped[1] == "write" else zoo_command("memory", "compact", folder))
        assert indexes() == before


def test_blame_finds_the_versions_that_changed_answers(
    folder: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, predictor = memory_of(folder), zoo.load(folder)
    planted = {version: f"zebra{name}" for version, name in zip((3, 13, 14, 20, 26), "abcde", strict=True)}
    for version in range(2, 27):
        text = planted.get(version, f"some unrelated row {version}")
        label = next(each for each in LABELS if each != predictor.predict(text)[0].label)
        memory.add(Rows.from_lists([text], [label]), note=f"plan {version}\x1b")
    texts, retriever = [*planted.values(), *TEXTS[:2]], EmbeddedRetriever()
    kept = [FolderMemory(memory.folder, retriever.without_index(), n) for n in range(1, 27)]
    labels = [[each.label for each in predictor.with_memory(version).predict(texts)] for version in kept]
    monkeypatch.setattr(loading, "load", load := Mock(wraps=loading.load))
    for text, column in zip(texts, np.array(labels).T, strict=True):
        (changes,) = np.nonzero(column[1:] != column[:-1])
        lines = done(zoo_command("memory", "blame", folder, text)).out.splitlines()
        loaded = [call.kwargs["memory_version"] for call in load.call_args_list]
        assert len(loaded) == len({*loaded}) <= math.ceil(math.log2(26)) + 1
        load.reset_mock()
        if text in planted.values():
            (version,) = changes + 2
            assert planted[version] == text
            entry = f"{71 + version} rows  +1              plan {version}\\u001b"
            assert lines[0].startswith(f"{version:4}  ")
            assert lines[0].endswith(entry)
            assert lines[1].startswith(f"~ [{column[0]} ")
            assert lines[1].endswith(f" -> {column[-1]} 0.98] {text}")
            assert lines[2:] == [f"+ {version}:0 [{column[-1]}] {text}"]
        else:
            assert len(changes) == 0
            assert lines == [f"no change found: versions 1 and {len(column)} answer {column[-1]}"]
    # Of a removed row, the answer before was given by it.
    done(zoo_command("memory", "remove", folder, "--ids=3:0", "--note=wrong"))
    lines = done(zoo_command("memory", "blame", folder, "zebraa")).out.splitlines()
    assert lines[0].startswith("  27  ")
    assert lines[0].endswith("-1              wrong")
    assert lines[2:] == [f"- 3:0 [{labels[-1][0]}] zebraa"]
    done(zoo_command("memory", "compact", folder))
    assert "versions 27 and 27" in done(zoo_command("memory", "blame", folder, "zebraa")).out


def test_blame_names_weights_that_changed_with_a_version(folder: Path, zoo_command: Zoo, edit: Edit) -> None:
    edit("add", folder, [("zebra", "fruit"), ("xyzzy", "fruit")], "--tune=true", "--note=new")
    lines = done(zoo_command("memory", "blame", folder, "zebra")).out.splitlines()
    assert lines[0].endswith("+2              new")
    assert lines[2] == "+ 2:0 [fruit] zebra"
    assert lines[3] == "its weights or members differ from those of the version before, too"
