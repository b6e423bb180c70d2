"""`zoo memory`: the memory of a trained model grows, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from tests.zoo.conftest import Edit, Fit, Zoo, done, refusal, sentences, write_table
from zoo.tasks.classification.predictor import RetrievedMemory

NEW = [("durian jam", "fruit"), ("old durian with rain", "weather"), ("tungsten", "metal")]
TEXTS = ["some durian", "tungsten", "the iron near a plum", "xyzzy"]


def as_written(memory: RetrievedMemory) -> dict[str, Any]:
    """A memory as `zoo predict` writes it: without the fields that this model does not fill."""
    absent = ("found_by", "hop_weights")
    return {name: value for name, value in memory._asdict().items() if name not in absent}


SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("Elasticsearch", "OpenSearch")]


@pytest.mark.parametrize("back_end", ["Embedded", *SERVERS])
def test_a_memory_grows(back_end: str, fit: Fit, zoo_command: Zoo, edit: Edit, on_server: Any) -> None:
    options = [f"--data.retriever={back_end}Retriever"]
    if back_end != "Embedded":
        options += [f"--data.retriever.index_prefix={on_server(back_end)().index_prefix}"]
    checkpoint = fit("run", *options)
    before = zoo.load(checkpoint).predict(TEXTS)
    assert before[0].memories != []  # "some" is known
    assert before[1].memories == []

    location, rest = edit("add", checkpoint, NEW).strip().split(": ", 1)
    assert rest == "version 2, 75 memories, 3 new"

    after = zoo.load(checkpoint).predict(TEXTS)
    assert {m.text for m in after[0].memories} >= {"durian jam", "old durian with rain"}
    assert [(m.text, m.label) for m in after[1].memories] == [("tungsten", "metal")]
    assert after[1].probabilities != before[1].probabilities
    assert zoo.load(checkpoint, memory_version=1).predict(TEXTS) == before
    assert zoo.load(checkpoint, memory_version=2).predict(TEXTS) == after
    with pytest.raises(InputError, match="has no version 3; the current one is 2"):
        zoo.load(checkpoint, memory_version=3)

    Path("in.txt").write_text("\n".join(TEXTS))
    for version, expected in ((1, before), (2, after)):
        result = zoo_command(
            "predict", "--ckpt_path", checkpoint, "--input", "in.txt", f"--memory_version={version}"
        )
        lines = [json.loads(line) for line in result.out.splitlines()]
        assert [line["memories"] for line in lines] == [[as_written(m) for m in p.memories] for p in expected]

    # The same rows again are duplicates.
    again = edit("add", checkpoint, NEW).strip()
    assert again == f"{location}: version 2, 75 memories, 0 new (3 duplicates skipped)"

    result = zoo_command("memory", "show", checkpoint)
    shown = dict(line.split(maxsplit=1) for line in result.out.replace("back end", "back_end").splitlines())
    assert shown == {
        "memory": location,
        "version": "2",
        "versions": "1: 72 rows, 2: 75 rows",
        "labels": "fruit 25, metal 25, weather 25",
        "back_end": f"{back_end}Retriever",
        "ranking": "similarity=BM25, analyzer=standard, k1=1.2, b=0.75",
    }


def test_in_python(copied_run: Path) -> None:
    predictor = zoo.load(copied_run)
    texts, labels = zip(*NEW, strict=True)
    added = predictor.memory.add(Rows.from_lists(texts, labels))
    assert (added.version, added.added) == (2, 3)
    (prediction,) = predictor.predict("tungsten")
    assert [m.text for m in prediction.memories] == ["tungsten"]


def test_rows_that_do_not_fit(copied_run: Path, zoo_command: Zoo, edit: Edit, tmp_path: Path) -> None:
    strange = write_table(tmp_path / "strange.csv", [("durian", "fruit"), ("quartz", "stone")])
    message = refusal(zoo_command("memory", "add", copied_run, strange))
    for part in (strange, "row 2", "'quartz'", "'stone'", "--new_labels true"):
        assert str(part) in message
    unlabelled = write_table(tmp_path / "unlabelled.csv", [("durian", "")])
    assert "no label" in refusal(zoo_command("memory", "add", copied_run, unlabelled))
    assert "absent.csv" in refusal(zoo_command("memory", "add", copied_run, "absent.csv"))
    assert zoo.load(copied_run).memory.version == 1

    assert "version 2, 73 memories, 1 new" in edit("add", copied_run, [("durian", "fruit")])
    printed = edit("add", copied_run, [("DURIAN", "metal"), (" durian ", "fruit")])
    assert "1 new (1 with the text of a memory with another label, 1 duplicates skipped)" in printed


def test_columns_are_those_of_the_training_table(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    train = write_table(
        tmp_path / "numbered.csv",
        [(str(1 + ["fruit", "metal", "weather"].index(b)), a) for a, b in sentences(90, seed=1)],
        columns=("topic", "words"),
    )
    names = tmp_path / "names.txt"
    names.write_text("fruit\nmetal\nweather\n")
    checkpoint = fit(
        "run",
        *("--data.train_file", train, "--data.text_column=words", "--data.label_column=topic"),
        f"--data.class_names={names}",
    )
    names.unlink()
    first = write_table(tmp_path / "first.csv", [("2", "tungsten")], columns=("topic", "words"))
    done(zoo_command("memory", "add", checkpoint, first))
    second = write_table(tmp_path / "second.csv", [("fruit", "durian")], columns=("class", "name"))
    assert "'words'" in refusal(zoo_command("memory", "add", checkpoint, second))
    columns = ("--text_column=name", "--label_column=class")
    done(zoo_command("memory", "add", checkpoint, second, *columns))
    predictions = zoo.load(checkpoint).predict(["tungsten", "durian"])
    expected = [[("tungsten", "metal")], [("durian", "fruit")]]
    assert [[(m.text, m.label) for m in p.memories] for p in predictions] == expected


def test_a_folder_grows_without_a_model(zoo_command: Zoo, edit: Edit, tmp_path: Path) -> None:
    table = write_table(tmp_path / "first.csv", [("quartz", "stone"), ("plum stone", "fruit")])
    done(zoo_command("index", "--file", table, "--memory", "m"))
    edit("add", "m", NEW)
    assert "labels    fruit 2, metal 1, stone 1, weather 1" in zoo_command("memory", "show", "m").out
    assert "[metal] tungsten" in zoo_command("search", "tungsten", "--memory", "m").out
    assert "no memory shares a word" in zoo_command("search", "umbrella", "--memory", "m").out
    # Texts without labels stay without.
    done(zoo_command("index", "--file", table, "--memory", "u", "--label_column=null"))
    assert "2 memories, 0 new (2 duplicates skipped)" in zoo_command("memory", "add", "u", table).out
    assert "labels    none" in zoo_command("memory", "show", "u").out
    refusal(zoo_command("memory", "add", "u", table, "--label_column=label"), "the memory has none")


def test_what_is_no_command(zoo_command: Zoo) -> None:
    assert "add" in refusal(zoo_command("memory", "shrink"))
    assert "{add,tune,show," in refusal(zoo_command("memory"))
    assert "--new_labels" in zoo_command("memory", "add", "--help").out
    assert "no such run folder" in refusal(zoo_command("memory", "show", "absent.ckpt"))
