"""`zoo search` of a file of queries, to JSON lines or a TREC run."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from elasticsearch import Elasticsearch

from datamodules.core import progress
from datamodules.retrieval import Retriever, open_memory
from tests.zoo.conftest import Zoo, done, read_jsonl, read_run, refusal
from tests.zoo.examples import python_blocks
from zoo.search import search

QUERIES = {"q1": "old iron", "q2": "a plum", "q3": "umbrella", "q4": "rain near the sun", "q5": "plum rain"}
TEXTS = ["the plum is old", "iron in the rain", "a plum near the sun", "some new fog", "iron iron iron"]
TEXTS += ["rain"]


@pytest.fixture(autouse=True)
def _tables(zoo_command: Zoo) -> None:
    Path("queries.csv").write_text("id,text\n" + "".join(f"{id_},{text}\n" for id_, text in QUERIES.items()))
    Path("docs.csv").write_text("id,text\n" + "".join(f"d{n},{text}\n" for n, text in enumerate(TEXTS)))
    table = ["--file=docs.csv", "--id_column=id", "--label_column=null"]
    done(zoo_command("index", *table, "--memory=memory"))


def expected(retriever: Retriever | None, k: int) -> dict[str, dict[str, float]]:
    """The hits of each query, searched alone."""
    memory = open_memory("memory", retriever)
    hits = {id_: next(search.hits_of(memory.search([query], k))) for id_, query in QUERIES.items()}
    return {id_: {hit["id"]: hit["score"] for hit in own} for id_, own in hits.items() if own}


def test_many_queries_have_the_hits_of_each(
    zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search, "MOST_MEMORIES", 7)
    monkeypatch.setattr(search, "hits_of", searched := Mock(wraps=search.hits_of))
    monkeypatch.setattr(progress, "_SECONDS", 0)
    batch = ["search", "--queries=queries.csv", "--memory=memory", "--k=3"]
    done(zoo_command(*batch, "--output=out.run"))
    progressed, written = caplog.messages[-2:]
    assert progressed.startswith("searching: 5 of 5 queries in ")
    assert written == "5 queries: out.run"
    assert [len(call.args[0].rows) for call in searched.call_args_list] == [2, 2, 1]
    assert read_run("out.run") == expected(None, 3)
    assert Path("out.run").read_text().splitlines()[0].split()[:4] == ["q1", "Q0", "d4", "1"]
    done(zoo_command(*batch, "--output=out.jsonl", "--id_column=id"))
    records = read_jsonl("out.jsonl")
    assert {record["id"]: record["query"] for record in records} == QUERIES
    assert records[2]["memories"] == []
    score = read_run("out.run")["q2"]["d2"]
    assert records[1]["memories"][0] == {"id": "d2", "text": TEXTS[2], "label": None, "score": score}
    # Lines of text, to standard output.
    Path("queries.txt").write_text("\n".join(QUERIES.values()))
    lines = done(zoo_command("search", "--queries=queries.txt", "--memory=memory", "--k=3")).out.splitlines()
    assert [json.loads(line) for line in lines] == [{**each, "id": str(n)} for n, each in enumerate(records)]


def test_a_terminal_shows_excerpts(zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("long.csv").write_text(f"text\nplum {'and ' * 99}\n")
    done(zoo_command("index", "--file=long.csv", "--label_column=null", "--memory=long"))
    whole = done(zoo_command("search", "plum", "--memory=long")).out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    short = done(zoo_command("search", "plum", "--memory=long")).out
    assert len(whole) > 400
    assert whole.startswith(short.removesuffix("…\n"))
    assert len(short) < 130


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


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (
            ["--queries=no_ids.csv", "--output=out.run"],
            ["no_ids.csv", "none of the columns _id, id", "rename one"],
        ),
        (["--queries=queries.txt", "--output=out.run"], ["queries.txt", "a TREC run needs ids"]),
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
    Path("space.csv").write_text("id,text\nq0,plum\nq 1,iron\n")
    Path("queries.txt").write_text("old iron\n")
    before = sorted(Path().iterdir())
    refusal(zoo_command("search", *options, "--memory=memory"), *names)
    assert sorted(Path().iterdir()) == before  # a file is written to its end or not at all


def test_the_code_of_the_page_measures_runs(capfd: pytest.CaptureFixture[str]) -> None:
    code, _ = python_blocks("search")
    Path("test_judgements.csv").write_text("query_id,doc_id,grade\n1,7,1\n1,8,0\n2,7,1\n")
    for name in ("words", "vectors", "search"):
        Path(f"{name}.run").write_text("1 Q0 8 1 2.0 x\n1 Q0 7 2 1.0 x\n")
    exec(code, {})
    # A query that the run lacks counts 0.
    assert capfd.readouterr().out.count("AP: 0.25") == 3
