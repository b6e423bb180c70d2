"""`zoo reproduce`: tables of made-up rows, kills, failures, and every table that is shipped."""

import csv
import json
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from datamodules.core.errors import InputError
from tests.zoo.conftest import Zoo, done, sentences, write_table
from tests.zoo.reproduce.conftest import MAJORITY, ROWS, Calls, read_scores, reproduce, write_yaml
from zoo import __version__
from zoo.reproduce import run as runs_of_a_table
from zoo.reproduce.run import RowFailed, as_arguments
from zoo.reproduce.table import load_table, shipped_tables


def test_a_table_is_what_its_runs_were(
    data_dir: Path, test_csv: Path, stand_in: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_yaml(ROWS, seeds=3, metrics=["accuracy", "macro_f1"])
    figures = reproduce(name, str(data_dir), str(test_csv), run_dir="out")
    assert list(figures) == ["majority", "M1", "M7"]
    names = ("small", "M1", "KNNBiLSTM")
    assert figures["M1"]["val/accuracy"] == (*names, "val/accuracy", 20.0, 10.0, 3, 50.0, __version__)
    # The first epoch of the highest accuracy is the one whose checkpoint was kept.
    assert figures["M1"]["val/macro_f1"].mean == 2.0
    assert figures["M1"]["test/accuracy"] == (*names, "test/accuracy", 75.0, 0.0, 3, None, __version__)
    assert str(figures["M1"]["val/accuracy"]._replace(mean=85.85, sd=0.25, paper=None)) == "85.9 ± 0.3"
    assert figures["majority"]["val/accuracy"].runs == 1
    assert figures["majority"]["test/accuracy"].sd is None
    scores = [score for row in figures.values() for score in row.values()]
    assert read_scores(Path("out/results.csv")) == sorted(scores)

    printed = " ".join(capsys.readouterr().out.split())
    assert "| row | model | val/accuracy | val/macro_f1 | test/accuracy | test/macro_f1 | runs |" in printed
    assert "| M1 | KNNBiLSTM | 20.0 ± 10.0 (50.0) | 2.0 ± 0.0 | 75.0 ± 0.0 | 50.0 ± 0.0 | 3 |" in printed


def test_a_run_is_a_fit_and_a_test_with_its_options(data_dir: Path, test_csv: Path, stand_in: Calls) -> None:
    rows = {
        "first": {"overrides": {"model.features": "M1"}},
        "later": {
            "init_from": "first",
            "overrides": {
                "data.rows_per_class": {"fruit": 5},
                "data.memory": None,
                "data.class_names": ["fruit", "metal", "weather"],
            },
        },
    }
    reproduce(write_yaml(rows, overrides={"data.max_length": 9}), str(data_dir), str(test_csv), run_dir="out")
    calls = stand_in()
    assert [call[0] for call in calls] == ["fit", "test"] * 4
    # A row starts from the same seed's checkpoint.
    runs = [next(a for a in call if a.startswith("--run_dir")) for call in calls[::2]]
    out = Path("out").resolve()
    assert runs == [f"--run_dir={out}/{row}/seed-{seed}" for seed in (1, 2) for row in ("first", "later")]
    assert {
        "--data.max_length=9",
        '--data.rows_per_class={"fruit": 5}',
        "--data.memory=null",
        '--data.class_names=["fruit", "metal", "weather"]',  # names of classes, and no files
        f"--data.train_file={data_dir}/corpus/train.csv",
        f"--model.init_from={out}/first/seed-2",
        "--seed_everything=2",
    } <= set(calls[6])
    assert not any("init_from" in argument for argument in calls[4])
    assert calls[7][1] == f"--ckpt_path={out}/later/seed-2"
    assert f"--data.test_file={test_csv}" in calls[7]
    # The test is not an argument of training.
    assert not any(str(test_csv) in argument for call in calls[::2] for argument in call)


def test_whole_runs_are_kept_and_half_ones_repeated(data_dir: Path, test_csv: Path, stand_in: Calls) -> None:
    name = write_yaml(ROWS)
    first = reproduce(name, str(data_dir), run_dir="out")
    assert len(stand_in()) == 5
    assert "test/accuracy" not in first["M1"]
    results = {path: path.read_bytes() for path in Path("out").rglob("result.json")}
    assert len(results) == 5
    # A run without a result was interrupted, and is repeated.
    Path("out/M7/seed-2/result.json").unlink()
    assert reproduce(name, str(data_dir), run_dir="out") == first
    assert [call[0] for call in stand_in()] == ["fit"]
    # Only the test is missing.
    second = reproduce(name, str(data_dir), str(test_csv), run_dir="out")
    assert [call[0] for call in stand_in()] == ["test"] * 5
    assert second["M1"]["val/accuracy"] == first["M1"]["val/accuracy"]
    assert second["M7"]["test/accuracy"].runs == 2
    # More seeds are added; the data may be in another folder.
    data_dir.rename("moved")
    assert reproduce(name, "moved", str(test_csv), seeds=3, run_dir="out")["M7"]["test/accuracy"].runs == 3
    assert [call[0] for call in stand_in()] == ["fit", "test"] * 2
    # The table keeps its rows and seeds where fewer are run.
    whole = reproduce(name, "moved", str(test_csv), seeds=3, run_dir="out")
    assert reproduce(name, "moved", str(test_csv), rows="M7", seeds=1, run_dir="out") == whole
    assert stand_in() == []


def test_single_runs_are_listed_run_and_merged(
    data_dir: Path, stand_in: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_yaml({**ROWS, "M5": {"init_from": "M7", "overrides": {"model.features": "M5"}}})

    assert reproduce(table) == {}
    names = capsys.readouterr().out.split()
    assert names[:5] == ["majority/1", "M1/1", "M7/1", "M5/1", "M1/2"]
    assert stand_in() == []
    reproduce(table, str(data_dir), rows="M5/2", run_dir="out")
    assert [call[0] for call in stand_in()].count("fit") == 2  # with the one that it starts from
    with ThreadPoolExecutor(3) as threads:
        run = [threads.submit(reproduce, table, str(data_dir), rows=name, run_dir="out") for name in names]
        assert all(future.result() for future in run)
    assert len(stand_in()) == 5  # each of 7 once, although some wait for others that start from the same one
    finished = {score.row: score.runs for score in read_scores(Path("out/results.csv"))}
    assert finished == {"M1": 2, "M5": 2, "M7": 2, "majority": 1}


def test_a_run_with_other_options_or_data_is_refused(data_dir: Path, stand_in: Calls) -> None:
    reproduce(write_yaml(ROWS), str(data_dir), run_dir="out")
    stand_in()
    changed = write_yaml({**ROWS, "M7": {"overrides": {"model.dropout": 0.5}}})
    with pytest.raises(InputError, match=r"out/M7/seed-1: was run with other options.*--run_dir"):
        reproduce(changed, str(data_dir), run_dir="out")
    write_table(data_dir / "corpus" / "train.csv", sentences(60, seed=4))
    with pytest.raises(InputError, match=r"out/majority/seed-1: was run with other options or data"):
        reproduce(write_yaml(ROWS), str(data_dir), run_dir="out")
    assert stand_in() == []


def test_a_test_file_of_equal_size_is_another_test(data_dir: Path, test_csv: Path, stand_in: Calls) -> None:
    table = write_yaml(ROWS)
    reproduce(table, str(data_dir), str(test_csv), "M1", seeds=1)
    assert [call[0] for call in stand_in()] == ["fit", "test"]
    contents = test_csv.read_text()
    test_csv.write_text(contents.swapcase())
    assert test_csv.stat().st_size == len(contents)
    with pytest.raises(InputError):  # the header has other names now
        reproduce(table, str(data_dir), str(test_csv), "M1", seeds=1)
    test_csv.write_text(contents.replace("plum", "mulp"))
    reproduce(table, str(data_dir), str(test_csv), "M1", seeds=1)
    assert [call[0] for call in stand_in()] == ["test"]


def test_a_failed_row_is_named_and_others_finish(data_dir: Path, stand_in: Calls, zoo_command: Zoo) -> None:
    rows = {
        "broken": {"overrides": {"model.features": "M2"}, "paper": 91.5},
        "after": {"init_from": "broken"},
        "killed": {"overrides": {"model.features": "M3"}},
        "half": {"overrides": {"model.features": "M4"}},
        "M1": ROWS["M1"],
    }
    result = zoo_command("reproduce", write_yaml(rows), "--data_dir", data_dir, "--run_dir=out", "--seeds=1")
    assert result.code == 1
    assert "broken/1: FAILED: M2 is out of order" in result.out
    assert "after/1: FAILED: starts from broken/1, which failed" in result.out
    assert "killed/1: FAILED: killed by SIGKILL" in result.out
    assert "half/1: FAILED: the run ended before its end" in result.out
    assert "| M1 | KNNBiLSTM | 10.0 (50.0) | 1 |" in " ".join(result.out.split())
    failed = "broken/1, after/1, killed/1, half/1"
    assert result.err == f"zoo: error: 4 of the runs failed: {failed}\n"
    assert [score[1:5] for score in read_scores(Path("out/results.csv"))] == [
        ("M1", "KNNBiLSTM", "val/accuracy", 10.0)
    ]
    # A failed run is repeated.
    with pytest.raises(RowFailed, match="1 of the runs failed: broken/1"):
        reproduce("small.yaml", str(data_dir), rows="broken", seeds=1, run_dir="out")


def test_names_of_others_are_shown_escaped(data_dir: Path, stand_in: Calls, zoo_command: Zoo) -> None:
    table = Path(write_yaml({"M1": ROWS["M1"]})).rename("red \x1b[31m.yaml")
    result = done(zoo_command("reproduce", table, "--data_dir", data_dir, "--run_dir=out", "--seeds=1"))
    assert "# red \\u001b[31m\n" in result.out
    assert "\x1b" not in result.out


@pytest.mark.slow
def test_real_runs_survive_a_kill(data_dir: Path, test_csv: Path) -> None:
    rows = {"M1": ROWS["M1"], "warm M5": {"init_from": "M1", "overrides": {"model.features": "M5"}}}
    name = write_yaml(rows, seeds=1)
    done, begun = Path("out/M1/seed-1/result.json"), Path("out/warm M5/seed-1/config.yaml")
    arguments = [name, "--data_dir", str(data_dir), "--run_dir=out"]
    with subprocess.Popen([*runs_of_a_table.ZOO, "reproduce", *arguments]) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert not Path("out/warm M5/seed-1/result.json").exists()
    before = done.stat().st_mtime_ns

    figures = reproduce(name, str(data_dir), run_dir="out")
    assert done.stat().st_mtime_ns == before
    assert "M1/seed-1: taken" in Path("out/warm M5/seed-1.log").read_text()
    for row in rows:
        assert json.loads(Path(f"out/{row}/seed-1/result.json").read_text())["metrics"]["val/rows"] == 18
        summary = json.loads(Path(f"out/{row}/seed-1/summary.json").read_text())
        assert figures[row]["val/accuracy"].mean == pytest.approx(100 * summary["best_score"], abs=0.006)
    assert not list(Path("out").glob("*/seed-1.[0-9]*"))  # nothing of the half run is left

    figures = reproduce(name, str(data_dir), str(test_csv), rows="M1", run_dir="out")
    tested = json.loads(done.with_name("test.json").read_text())
    assert tested["rows"] == 31
    assert figures["M1"]["test/accuracy"].mean == pytest.approx(100 * tested["accuracy"], abs=0.006)


def test_a_test_without_a_header_is_read_by_number(data_dir: Path, stand_in: Calls) -> None:
    pairs = sentences(9, seed=3)
    with Path("bare.csv").open("w", newline="") as file:
        csv.writer(file).writerows((label, text) for text, label in pairs)
    rows = {"majority": MAJORITY, "M1": ROWS["M1"]}
    with pytest.raises(InputError, match=r"bare\.csv"):
        reproduce(write_yaml(rows), str(data_dir), "bare.csv", run_dir="out")
    name = write_yaml(rows, columns_without_header={"text_column": 1, "label_column": 0})
    figures = reproduce(name, str(data_dir), "bare.csv", run_dir="out", seeds=1)
    assert figures["M1"]["test/accuracy"].mean == 75
    tests = [set(call) for call in stand_in() if call[0] == "test"]
    assert all({"--data.text_column=1", "--data.label_column=0"} <= options for options in tests)
    assert len(tests) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-table", "--data_dir=data"], r"no-such-table: no such table; there are clickthrough, "),
        (["absent.yaml", "--data_dir=data"], r"absent.yaml: no such file"),
        (["--data_dir=data"], r"give a table"),
        (
            ["small.yaml", "--data_dir=data", "--rows=M1,M9"],
            r"small has no row 'M9'; there are majority, M1, M7",
        ),
        (
            ["small.yaml", "--data_dir=data", "--rows=M1/3"],
            r"--rows: M1/3: no such run; there are M1/1, M1/2",
        ),
        (["small.yaml", "--data_dir=data", "--seeds=0"], r"--seeds 0: must be 1 or more"),
        (["small.yaml", "--data_dir=data", "--seeds=x"], r"seeds"),
        (["small.yaml", "--data_dir=elsewhere"], r"elsewhere/corpus/train.csv: no such file.*--data_dir"),
        (["small.yaml", "--data_dir=data", "--test_file=absent.csv"], r"absent.csv: no such file"),
        (["knn-features", "--data_dir=data"], r"data/ag_news/train_pool.csv.gz: no such file"),
        (["knn-table3", "--data_dir=data"], r"data: holds the data of no row of knn-table3"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, data_dir: Path, stand_in: Calls, zoo_command: Zoo
) -> None:
    write_yaml(ROWS)
    result = zoo_command("reproduce", *arguments)
    assert result.code == 2
    assert re.search(message, result.err)
    assert result.err.startswith("zoo: error: ")
    assert result.err.count("\n") == 1
    assert stand_in() == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sedes": 3}, "sedes: no such key"),
        ({"base": {"model": {}}}, "base must be a configuration"),
        ({"base": "absent.yaml"}, "absent.yaml: no such file"),
        ({"rows": {"a/b": {}}}, "row a/b: name it with letters"),
        ({"rows": {"a": {"override": {}}}}, "row a: override: no such key"),
        ({"rows": {"a": {"init_from": "b"}, "b": {}}}, "row a: starts from no row before it: b"),
        ({"rows": ["a"]}, "rows: must be dict, not"),
        ({"rows": {"a": {"overrides": "b"}}}, "row a: overrides: must be dict, not 'b'"),
        ({"rows": {"a": {"paper": [1]}}}, "row a: paper: must be dict \\| int \\| float"),
        ({"rows": {"a": {"paper": {"val/accuracy": "x"}}}}, "row a: paper: val/accuracy: must be a number"),
        ({"rows": {"a": [3]}}, "row a: must be a mapping"),
        ({"base": {"data": "x"}}, "base must be a configuration"),
        ({"minutes": [1]}, "minutes: must be int"),
        ({"seeds": "three"}, "seeds: must be int"),
        ({"metrics": "accuracy"}, "metrics: must be list"),
        ({"like": ["other"]}, "like: must be str"),
    ],
)
def test_a_bad_table_is_named(keys: dict[str, Any], message: str, data_dir: Path) -> None:
    with pytest.raises(InputError, match=message):
        reproduce(write_yaml(**{"rows": ROWS, **keys}), str(data_dir))
    Path("torn.yaml").write_text("rows: [")
    with pytest.raises(InputError, match=r"^torn\.yaml: no YAML"):
        reproduce("torn.yaml", str(data_dir))


def test_rows_whose_data_is_absent_are_skipped_where_the_table_says_so(
    data_dir: Path, stand_in: Calls, zoo_command: Zoo
) -> None:
    absent = {"overrides": {"data.train_file": "absent.csv"}}
    table = write_yaml({**ROWS, "far": absent, "farther": absent}, skip_absent=True)
    result = done(zoo_command("reproduce", table, "--data_dir", data_dir, "--run_dir=out"))
    line = f"Skipped: far, farther: {data_dir}/absent.csv is missing."
    assert line in result.out.splitlines()
    assert {score.row for score in read_scores(Path("out/results.csv"))} == {*ROWS}


def test_the_list_names_every_table_with_its_time(zoo_command: Zoo) -> None:
    result = done(zoo_command("reproduce"))
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == shipped_tables()
    assert all(re.match(r"\S+ +\d+(\.\d)? (min|h)  \S", line) for line in lines)
    assert {"knn-features", "knn-recipe", "knn-table3", "quora", "wikiqa"} <= set(shipped_tables())


@pytest.mark.slow
def test_the_options_of_the_rows_are_options_of_zoo(zoo_command: Zoo) -> None:
    seen: set[tuple[str, ...]] = set()
    rows = [(table, row) for table in map(load_table, shipped_tables()) for row in table.rows.values()]
    for table, row in rows:
        # One number of an option stands for the others, and one file; all models of a kind have the same data.
        model = str(row.overrides.get("model", table.base["model"]["class_path"]))
        kinds = {
            (model if key.startswith("model") else table.data_type.__name__, key, type(value).__name__)
            for key, value in row.overrides.items()
        }
        if kinds <= seen:
            continue
        seen |= kinds
        options = as_arguments(row.overrides)
        if row.init_from is not None:
            options.append("--model.init_from=other")
        Path("base.yaml").write_text(yaml.safe_dump(table.base))
        result = zoo_command("fit", "--config=base.yaml", *options, "--print_config")
        assert result.code == 0, (row.name, result.err)
        assert yaml.safe_load(result.out)["model"]["class_path"].rpartition(".")[2] == model
    assert len(seen) > 25


def test_a_table_like_another_has_its_rows_without_the_papers_figures() -> None:
    whole, small = load_table("knn-features"), load_table("knn-features-3000")
    assert list(small.rows) == list(whole.rows)
    assert whole.rows["M7"].paper == {whole.paper_metric: pytest.approx(0.946)}
    assert whole.rows["M7"].overrides["model.features"] == "M7"
    assert not any(row.paper for row in small.rows.values())
    assert small.rows["M7"].overrides == {"model.features": "M7", "data.rows_per_class": 750}
    assert small.rows["TF-IDF SVM"].overrides == {"model": "TfidfSVM", "data.rows_per_class": 750}


def test_another_encoder_takes_the_place_of_the_tables_own() -> None:
    table = load_table("knn-fused-3000", encoder="here/encoder")
    assert "all-MiniLM" not in json.dumps([table.base, [dict(row.overrides) for row in table.rows.values()]])
    fused = table.rows["M5 fused"].overrides
    assert fused["model.transformer"] == fused["data.tokenizer"] == "here/encoder"
    dense = fused["data.retriever"]["init_args"]["retrievers"][1]
    assert dense == {"class_path": "DenseRetriever", "init_args": {"encoder": "here/encoder"}}
    with pytest.raises(InputError, match="--encoder: wikiqa has no pre-trained encoder"):
        load_table("wikiqa", encoder="here/encoder")


def test_the_folder_of_an_encoder_is_named_in_whole(data_dir: Path, stand_in: Calls) -> None:
    (data_dir / "encoder").mkdir()
    name = "a-hub/name"
    table = write_yaml({"M7": {"overrides": {"model.transformer": name}}}, encoder=name)
    reproduce(table, str(data_dir), seeds=1)
    assert f"--model.transformer={name}" in stand_in()[0]
    reproduce(table, str(data_dir), seeds=1, run_dir="other", encoder=str(data_dir / "encoder"))
    assert f"--model.transformer={(data_dir / 'encoder').resolve()}" in stand_in()[0]


def test_every_row_of_the_papers_has_its_figure() -> None:
    tables = {name: load_table(name) for name in shipped_tables()}
    papers = {
        name: [row.name for row in table.rows.values() if table.paper_metric in row.paper]
        for name, table in tables.items()
    }
    sizes = {"wikiqa": 10, "expanet-dblp-short": 14, "expanet-dblp-long": 7, "knn-recipe": 2}
    assert {name: len(papers[name]) for name in sizes} == sizes
    assert tables["hmn"].rows["air-EN HMN"].paper["test/errors_joint"] == 4.4
