"""`zoo search` of a file of queries, to JSON lines or a TREC run; `zoo fuse` of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch

from datamodules.corpora.trec_runs import Run, read_run
from datamodules.retrieval import EmbeddedRetriever, FusedRetriever, Retriever, open_memory
from tests.zoo.conftest import Result, Zoo, refusal
from zoo.search import search

QUERIES = {"q1": "old iron", "q2": "a plum", "q3": "umbrella", "q4": "rain near the sun", "q5": "plum rain"}
TEXTS = [
    "the plum is old",
    "iron in the rain",
    "a plum near the sun",
    "some new fog",
    "iron iron iron",
    "rain",
]
LEXICAL = EmbeddedRetriever()
DIRICHLET = EmbeddedRetriever("LMDirichlet")


def done(result: Result) -> Result:
    assert result.code == 0, result.err
    return result


@pytest.fixture(autouse=True)
def _tables(zoo_command: Zoo) -> None:
    Path("queries.csv").write_text("id,text\n" + "".join(f"{id_},{text}\n" for id_, text in QUERIES.items()))
    Path("docs.csv").write_text("id,text\n" + "".join(f"d{n},{text}\n" for n, text in enumerate(TEXTS)))
    table = ["--file=docs.csv", "--id_column=id", "--label_column=null"]
    done(zoo_command("index", *table, "--memory=memory"))


def expected(retriever: Retriever | None, k: int) -> Run:
    """The hits of each query, searched alone."""
    memory = open_memory("memory", retriever)
    run: Run = {}
    for id_, query in QUERIES.items():
        neighbors = memory.search([query], k)
        hits = zip(neighbors.rows[0], neighbors.scores[0], strict=True)
        found = {neighbors.memories.ids[row]: float(score) for row, score in hits if row >= 0}
        if found:
            run[id_] = found
    return run


def test_many_queries_have_the_hits_of_each(zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BLOCK", 2)
    batch = ["search", "--queries=queries.csv", "--memory=memory", "--k=3"]
    done(zoo_command(*batch, "--output=out.run"))
    assert read_run("out.run") == expected(None, 3)
    assert Path("out.run").read_text().splitlines()[0].split()[:4] == ["q1", "Q0", "d4", "1"]
    done(zoo_command(*batch, "--output=out.jsonl", "--id_column=id"))
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {record["id"]: record["query"] for record in records} == QUERIES
    assert records[2]["memories"] == []
    score = read_run("out.run")["q2"]["d2"]
    assert records[1]["memories"][0] == {"id": "d2", "text": TEXTS[2], "label": None, "score": score}
    # Lines of text, to standard output.
    Path("queries.txt").write_text("\n".join(QUERIES.values()))
    lines = done(zoo_command("search", "--queries=queries.txt", "--memory=memory", "--k=3")).out.splitlines()
    assert [json.loads(line) for line in lines] == [{**each, "id": str(n)} for n, each in enumerate(records)]


@pytest.mark.server
def test_many_queries_on_a_server(zoo_command: Zoo, elasticsearch_url: str, index_prefix: str) -> None:
    place = [f"--retriever.url={elasticsearch_url}", f"--retriever.index_prefix={index_prefix}"]
    server = ["--retriever=ElasticsearchRetriever", *place]
    table = ["--file=docs.csv", "--id_column=id", "--label_column=null"]
    done(zoo_command("index", *table, "--memory=remote", *server))
    done(zoo_command("search", "--queries=queries.csv", "--memory=remote", *server, "--output=out.run"))
    assert read_run("out.run") == expected(None, 10)
    # An index of the user's, which has ids of its own.
    client, name = Elasticsearch(elasticsearch_url), f"{index_prefix}-own"
    for number, text in enumerate(TEXTS):
        client.index(index=name, id=f"d{number}", document={"text": text}, refresh=True)
    own = ["--retriever=ElasticsearchRetriever", place[0], f"--retriever.index={name}"]
    done(zoo_command("search", "--queries=queries.csv", *own, "--output=own.run"))
    assert {query: {*run} for query, run in read_run("own.run").items()} == {
        query: {*run} for query, run in expected(None, 10).items()
    }


@pytest.mark.parametrize("method", ["reciprocal_rank", "score"])
def test_fused_runs_are_the_run_of_a_fused_retriever(zoo_command: Zoo, method: str) -> None:
    fused = FusedRetriever([LEXICAL, DIRICHLET], method, [1.0, 2.0])  # type: ignore[arg-type]
    for name, kind in {"one": LEXICAL, "other": DIRICHLET, "both": fused}.items():
        table = ["--file=docs.csv", "--id_column=id", "--label_column=null", f"--memory={name}"]
        done(zoo_command("index", *table, f"--retriever={json.dumps(kind.describe())}"))
        done(
            zoo_command(
                "search", "--queries=queries.csv", f"--memory={name}", "--k=100", f"--output={name}.run"
            )
        )
    words = ["fuse", "one.run", "other.run", "--output=fused.run", f"--method={method}", "--weights=[1, 2]"]
    assert done(zoo_command(*words, "--depth=100")).out == "fused.run: 4 queries\n"
    ours, theirs = read_run("fused.run"), read_run("both.run")
    assert {query: sorted(scores) for query, scores in ours.items()} == {
        query: sorted(scores) for query, scores in theirs.items()
    }
    for query, scores in ours.items():
        assert scores == pytest.approx(theirs[query], rel=1e-6)
    best = [line.split()[2] for line in Path("fused.run").read_text().splitlines() if line.startswith("q1 ")]
    assert best == sorted(best, key=lambda id_: (-ours["q1"][id_], id_))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            ["--queries=no_ids.csv", "--output=out.run"],
            ["no_ids.csv", "none of the columns _id, id", "rename one"],
        ),
        (["--queries=queries.txt", "--output=out.run"], ["queries.txt", "lines have no ids"]),
        (["--queries=twice.csv", "--output=out.run"], ["twice.csv, row 2", "'q1' belongs to another text"]),
        (["--queries=space.csv", "--output=out.run"], ["query 'q 1'", "no white space"]),
        (["--queries=queries.csv", "--output=out.csv"], ["--output out.csv", ".run"]),
        (["--queries=queries.csv", "--output=queries.csv"], ["which this command reads"]),
        (["--queries=gone.csv"], ["gone.csv: no such file"]),
        (["some", "--queries=queries.csv"], ["give some words, or a file of queries"]),
        ([], ["give some words, or a file of queries"]),
        (["some", "--output=out.run"], ["--output", "--queries"]),
    ],
)
def test_refused_searches(zoo_command: Zoo, options: list[str], names: list[str]) -> None:
    Path("no_ids.csv").write_text("text\nold iron\n")
    Path("twice.csv").write_text("id,text\nq1,old\nq1,iron\n")
    Path("space.csv").write_text("id,text\nq0,plum\nq 1,iron\n")
    Path("queries.txt").write_text("old iron\n")
    before = sorted(Path().iterdir())
    refusal(zoo_command("search", *options, "--memory=memory"), *names)
    assert sorted(Path().iterdir()) == before  # a file is written to its end or not at all


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["one.run", "--output=out.run"], ["1 runs given"]),
        (["one.run", "two.run", "--output=out.txt"], ["name it out.run"]),
        (["one.run", "two.run", "--output=two.run"], ["two.run", "which this command reads"]),
        (["one.run", "two.run", "--output=out.run", "--weights=[1]"], ["--weights: 1 for 2 runs"]),
        (["one.run", "two.run", "--output=out.run", "--weights=[1, 0]"], ["each must be above 0"]),
        (["one.run", "other.run", "--output=out.run"], ["other.run: has no query of one.run"]),
        (
            ["one.run", "broken.run", "--output=out.run"],
            ["broken.run, line 1", "'inf' is not a finite number"],
        ),
        (["one.run", "gone.run", "--output=out.run"], ["gone.run"]),
    ],
)
def test_refused_fusions(zoo_command: Zoo, options: list[str], names: list[str]) -> None:
    lines = {
        "one": "q1 Q0 d1 1 2.0 x",
        "two": "q1 Q0 d2 1 1.0 x",
        "other": "q9 Q0 d1 1 2.0 x",
        "broken": "q1 Q0 d1 1 inf x",
    }
    for name, line in lines.items():
        Path(f"{name}.run").write_text(line + "\n")
    before = sorted(Path().iterdir())
    refusal(zoo_command("fuse", *options), *names)
    assert sorted(Path().iterdir()) == before
