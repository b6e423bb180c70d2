"""`zoo memory`: a trained model whose memory grows, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval.memories.folder_memory import FolderMemory, read_pointer
from tests.zoo.conftest import Result, sentences, write_table

Fit = Callable[..., Path]
Zoo = Callable[..., Result]

NEW = [("durian jam", "fruit"), ("old durian with rain", "weather"), ("tungsten", "metal")]
TEXTS = ["some durian", "tungsten", "the iron near a plum", "xyzzy"]


@pytest.fixture
def more_csv(tmp_path: Path) -> Path:
    return write_table(tmp_path / "more.csv", NEW)


def as_written(memory: zoo.RetrievedMemory) -> dict[str, Any]:
    """As `zoo predict` writes it: without what this model does not say."""
    absent = ("found_by", "hop_weights")
    return {name: value for name, value in memory._asdict().items() if name not in absent}


def line(result: Result) -> str:
    """The one line that a user's mistake ends with."""
    assert result.code == 2
    (only,) = result.err.splitlines()
    return only


@pytest.mark.parametrize("back_end", ["embedded", pytest.param("elasticsearch", marks=pytest.mark.server)])
def test_a_models_memory_grows(
    back_end: str, fit: Fit, zoo_command: Zoo, more_csv: Path, request: pytest.FixtureRequest
) -> None:
    options = []
    if back_end == "elasticsearch":
        options = [
            "--data.retriever=ElasticsearchRetriever",
            f"--data.retriever.url={request.getfixturevalue('elasticsearch_url')}",
            f"--data.retriever.index_prefix={request.getfixturevalue('index_prefix')}",
        ]
    checkpoint = fit("run", *options) / "checkpoints" / "best.ckpt"
    before = zoo.load(checkpoint).predict(TEXTS)
    assert before[0].memories != []  # "some" is known
    assert before[1].memories == []

    result = zoo_command("memory", "add", checkpoint, more_csv)
    assert result.code == 0, result.err
    location, rest = result.out.strip().split(": ", 1)
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
        lines = [json.loads(one) for one in result.out.splitlines()]
        assert [one["memories"] for one in lines] == [[as_written(m) for m in p.memories] for p in expected]

    # The same rows again are copies.
    result = zoo_command("memory", "add", checkpoint, more_csv)
    assert result.out.strip() == f"{location}: version 2, 75 memories, 0 new (3 copies left out)"

    result = zoo_command("memory", "show", checkpoint)
    shown = dict(one.split(maxsplit=1) for one in result.out.replace("back end", "back_end").splitlines())
    assert shown == {
        "memory": location,
        "version": "2",
        "versions": "1: 72 rows, 2: 75 rows",
        "labels": "fruit 25, metal 25, weather 25",
        "back_end": "EmbeddedRetriever" if back_end == "embedded" else "ElasticsearchRetriever",
        "ranking": "similarity=BM25, analyzer=standard, k1=1.2, b=0.75",
    }


def test_training_again_uses_the_training_rows_and_keeps_what_was_added(
    fit: Fit, zoo_command: Zoo, more_csv: Path
) -> None:
    scores = []
    for name in ("one", "two"):
        checkpoint = fit(name) / "checkpoints" / "best.ckpt"
        scores.append((checkpoint.parents[1] / "metrics.csv").read_text())
        assert zoo_command("memory", "add", checkpoint, more_csv).code == 0
        for plan in Path(os.environ["ZOO_CACHE_DIR"]).glob("plan-*"):
            plan.unlink()
    assert _scores(scores[0]) == _scores(scores[1])
    predictor = zoo.load(checkpoint)
    assert isinstance(predictor.memory, FolderMemory)
    assert predictor.memory.version == 2


def test_other_runs_on_the_same_rows_keep_their_memory(
    fit: Fit, zoo_command: Zoo, more_csv: Path, tmp_path: Path
) -> None:
    one, two = (fit(name) / "checkpoints" / "best.ckpt" for name in ("one", "two"))
    locations = [zoo.load(run).data.memory_location for run in (one, two)]
    assert locations[0] == locations[1]  # in the cache, built once
    before = zoo.load(two).predict(TEXTS)
    assert zoo_command("memory", "add", one, more_csv).code == 0
    assert zoo.load(one).data.memory_location == str(one.parent / "memory")
    assert zoo.load(one).predict(TEXTS) != before
    assert zoo.load(two).predict(TEXTS) == before
    # It goes with the run, and the other checkpoint of the run has it, too.
    last = zoo.load(one.with_name("last.ckpt"))
    assert [m.text for m in last.predict("tungsten")[0].memories] == ["tungsten"]
    moved = (tmp_path / "one").rename(tmp_path / "moved") / "checkpoints" / "best.ckpt"
    assert [m.text for m in zoo.load(moved).predict("tungsten")[0].memories] == ["tungsten"]


def test_validation_has_the_memory_that_predictions_have(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    checkpoint = fit("run") / "checkpoints" / "best.ckpt"

    def loss() -> float:
        result = zoo_command("validate", "--ckpt_path", checkpoint, "--output", "scores.json")
        assert result.code == 0, result.err
        return float(json.loads(Path("scores.json").read_text())["loss"])

    before = loss()
    more = write_table(tmp_path / "many.csv", sentences(60, seed=9))
    assert zoo_command("memory", "add", checkpoint, more).code == 0
    assert loss() != before


def test_what_tuning_refuses(trained_run: Path, zoo_command: Zoo, tmp_path: Path, more_csv: Path) -> None:
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    stones = write_table(tmp_path / "stones.csv", [("quartz", "stone"), ("plum stone", "fruit")])
    assert zoo_command("index", "--file", stones, "--memory", "stones").code == 0
    dev = write_table(tmp_path / "dev.csv", sentences(9, seed=5))
    said = line(zoo_command("memory", "tune", checkpoint, dev, "--memory", "stones"))
    assert "stones: belongs to another model: it has the label 'stone'" in said
    (tmp_path / "folder").mkdir()
    assert "--output folder: is a folder" in line(
        zoo_command("memory", "tune", checkpoint, dev, "--output", "folder")
    )


def test_a_tuned_checkpoint_names_its_memory(
    fit: Fit, zoo_command: Zoo, tmp_path: Path, more_csv: Path
) -> None:
    checkpoint = fit("run") / "checkpoints" / "best.ckpt"
    assert zoo_command("memory", "add", checkpoint, more_csv).code == 0
    dev = write_table(tmp_path / "dev.csv", sentences(9, seed=5))
    result = zoo_command("memory", "tune", checkpoint, dev, "--output", "elsewhere/tuned.ckpt")
    assert result.code == 0, result.err
    assert zoo.load("elsewhere/tuned.ckpt").data.memory_location == str(checkpoint.parent / "memory")
    assert zoo_command("index", "--file", more_csv, "--memory", "new").code == 0
    result = zoo_command("memory", "tune", checkpoint, dev, "--output", "new.ckpt", "--memory", "new")
    assert result.code == 0, result.err
    assert zoo.load("new.ckpt").data.memory_location == "new"


def _scores(table: str) -> list[dict[str, str]]:
    """A run's metrics without its times."""
    names, *rows = [one.split(",") for one in table.splitlines()]
    kept = [dict(zip(names, row, strict=True)) for row in rows]
    return [{k: v for k, v in row.items() if k.startswith(("val/", "train/loss"))} for row in kept]


def test_in_python(fit: Fit) -> None:
    predictor = zoo.load(fit("run") / "checkpoints" / "best.ckpt")
    assert predictor.memory is not None
    texts, labels = zip(*NEW, strict=True)
    added = predictor.memory.add(Rows.from_lists(texts, labels), predictor.data.spec.memory_labels)
    assert (added.version, added.added) == (2, 3)
    (prediction,) = predictor.predict("tungsten")
    assert [m.text for m in prediction.memories] == ["tungsten"]


def test_scores_are_those_of_the_current_version(
    fit: Fit, zoo_command: Zoo, tmp_path: Path, more_csv: Path
) -> None:
    checkpoint = fit("run") / "checkpoints" / "best.ckpt"
    table = write_table(tmp_path / "test.csv", NEW)

    def loss() -> float:
        options = ("--ckpt_path", checkpoint, "--data.test_file", table, "--output", "scores.json")
        assert zoo_command("test", *options).code == 0
        return float(json.loads(Path("scores.json").read_text())["loss"])

    before = loss()
    assert zoo_command("memory", "add", checkpoint, more_csv).code == 0
    assert loss() != before


def test_rows_that_do_not_fit(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    checkpoint = fit("run") / "checkpoints" / "best.ckpt"
    location = zoo.load(checkpoint).data.memory_location
    assert location is not None

    strange = write_table(tmp_path / "strange.csv", [("durian", "fruit"), ("quartz", "stone")])
    said = line(zoo_command("memory", "add", checkpoint, strange))
    for part in (strange, "row 2", "'quartz'", "'stone'", "--unknown_labels skip"):
        assert str(part) in said
    unlabelled = write_table(tmp_path / "unlabelled.csv", [("durian", "")])
    assert "no label" in line(zoo_command("memory", "add", checkpoint, unlabelled))
    assert "absent.csv" in line(zoo_command("memory", "add", checkpoint, "absent.csv"))
    assert read_pointer(Path(location))["version"] == 1

    result = zoo_command("memory", "add", checkpoint, strange, "--unknown_labels", "skip")
    assert "version 2, 73 memories, 1 new (1 rows with unknown labels left out)" in result.out
    other = write_table(tmp_path / "other.csv", [("DURIAN", "metal"), (" durian ", "fruit")])
    result = zoo_command("memory", "add", checkpoint, other)
    assert "1 new (1 of them with a text that is there with another label, 1 copies left out)" in result.out


def test_columns_are_those_of_the_training_table(fit: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    train = write_table(
        tmp_path / "numbered.csv",
        [(str(1 + ["fruit", "metal", "weather"].index(b)), a) for a, b in sentences(90, seed=1)],
        columns=("topic", "words"),
    )
    checkpoint = (
        fit(
            "run",
            *("--data.train_file", train, "--data.text_column=words", "--data.label_column=topic"),
            "--data.class_names=[fruit,metal,weather]",
        )
        / "checkpoints"
        / "best.ckpt"
    )
    first = write_table(tmp_path / "first.csv", [("2", "tungsten")], columns=("topic", "words"))
    assert zoo_command("memory", "add", checkpoint, first).code == 0
    second = write_table(tmp_path / "second.csv", [("1", "durian")], columns=("class", "name"))
    assert "'words'" in line(zoo_command("memory", "add", checkpoint, second))
    columns = ("--text_column=name", "--label_column=class")
    assert zoo_command("memory", "add", checkpoint, second, *columns).code == 0
    found = zoo.load(checkpoint).predict(["tungsten", "durian"])
    assert [[(m.text, m.label) for m in p.memories] for p in found] == [
        [("tungsten", "metal")],
        [("durian", "fruit")],
    ]


def test_a_memory_of_another_model_is_refused(
    trained_run: Path, zoo_command: Zoo, tmp_path: Path, more_csv: Path
) -> None:
    checkpoint = trained_run / "checkpoints" / "best.ckpt"
    stones = write_table(tmp_path / "stones.csv", [("quartz", "stone"), ("plum stone", "fruit")])
    assert zoo_command("index", "--file", stones, "--memory", "stones").code == 0
    assert zoo_command("index", "--file", stones, "--memory", "texts", "--label_column=null").code == 0
    for folder, why in (("stones", "'stone'"), ("texts", "no labels")):
        said = line(zoo_command("memory", "add", checkpoint, more_csv, "--memory", folder))
        assert f"{folder}: belongs to another model" in said
        assert why in said
        assert read_pointer(Path(folder))["version"] == 1
    assert zoo_command(
        "index", "--file", more_csv, "--memory", "lm", "--retriever=EmbeddedRetriever",
        "--retriever.similarity=LMDirichlet",
    ).code == 0  # fmt: skip
    assert "LMDirichlet" in line(zoo_command("memory", "add", checkpoint, more_csv, "--memory", "lm"))


def test_a_folder_grows_without_a_model(zoo_command: Zoo, tmp_path: Path, more_csv: Path) -> None:
    table = write_table(tmp_path / "first.csv", [("quartz", "stone"), ("plum stone", "fruit")])
    assert zoo_command("index", "--file", table, "--memory", "m").code == 0
    assert zoo_command("memory", "add", "m", more_csv).code == 0
    assert "labels    fruit 2, metal 1, stone 1, weather 1" in zoo_command("memory", "show", "m").out
    assert "[metal] tungsten" in zoo_command("search", "tungsten", "--memory", "m").out
    # Texts without labels stay without.
    assert zoo_command("index", "--file", table, "--memory", "u", "--label_column=null").code == 0
    assert "2 memories, 0 new (2 copies left out)" in zoo_command("memory", "add", "u", table).out
    assert "labels    none" in zoo_command("memory", "show", "u").out
    assert "the memory has none" in line(
        zoo_command("memory", "add", "u", more_csv, "--label_column", "label")
    )


def test_a_model_without_memory(fit: Fit, zoo_command: Zoo, more_csv: Path) -> None:
    checkpoint = fit("run", "--model.features=M1") / "checkpoints" / "best.ckpt"
    assert "reads no memory" in line(zoo_command("memory", "add", checkpoint, more_csv))


def test_what_is_no_command(zoo_command: Zoo) -> None:
    assert "add" in line(zoo_command("memory", "shrink"))
    assert "{add,tune,show}" in line(zoo_command("memory"))
    assert "--unknown_labels" in zoo_command("memory", "add", "--help").out
    assert "no such checkpoint" in line(zoo_command("memory", "show", "absent.ckpt"))
