"""Runs of matching and retrieval models, with the ids of queries and documents, and runs that are re-ranked."""

import logging
import shutil
from pathlib import Path

import pytest

import zoo
from tests.clicks import write_collection
from tests.zoo.conftest import Fit, Zoo, done, pair_rows, read_jsonl, read_run, refusal, write_table
from tests.zoo.retrieval_runs import options_of, trained
from tests.zoo.tasks.test_matching_runs import SMALL

COLLECTION = Path("clicks")
FILES = ["--input=clicks/queries.jsonl", "--rerank=given.run", "--output=out.run"]


@pytest.fixture
def matcher(trained: Fit, kept_table: Fit) -> Path:
    """A matching model that was trained on the pairs with ids in `pairs.csv`."""
    write_collection(COLLECTION, documents=40, queries=24, seed=5)
    numbers: dict[str, int] = {}
    rows = [
        (f"q{numbers.setdefault(first, len(numbers))}", f"a{row}", first, second, label)
        for row, (first, second, label) in enumerate(pair_rows(30, seed=1))
    ]
    table = kept_table(*rows, columns=("question", "candidate", "first", "second", "label"))
    shutil.copy(table, "pairs.csv")
    ids = ("--data.question_column=question", "--data.id_column=candidate")
    files = (f"--data.train_file={table}", "--data.validation_split=0.2")
    return trained("fit", *SMALL, *files, *ids, "--trainer.max_epochs=1")


def write_run(documents: list[str], query: str = "q1") -> dict[str, str]:
    """Write a run, and return the texts of the collection by their ids."""
    lines = [f"{query} Q0 {id_} {rank} {9 - rank} given" for rank, id_ in enumerate(documents, 1)]
    Path("given.run").write_text("\n".join([*lines, f"q3 Q0 {documents[0]} 1 2 given"]) + "\n")
    texts = {}
    for file in ("corpus", "queries"):
        texts |= {row["_id"]: row["text"] for row in read_jsonl(COLLECTION / f"{file}.jsonl")}
    return texts


def test_a_matching_model_ranks_a_given_run(zoo_command: Zoo, matcher: Path) -> None:
    ids = ["d7", "d30", "d2"]
    texts = write_run(ids)
    command = ["predict", "--ckpt_path", matcher, *FILES, "--documents=clicks/corpus.jsonl"]
    done(zoo_command(*command))
    scored = zoo.load(matcher).predict([(texts["q1"], texts[id_]) for id_ in ids])
    expected = {id_: pair.score for id_, pair in zip(ids, scored, strict=True)}
    run = read_run("out.run")
    assert {*run} == {"q1", "q3"}
    assert run["q1"] == pytest.approx(expected, abs=1e-5)
    lines = [line.split() for line in Path("out.run").read_text().splitlines()]
    scores = [float(fields[4]) for fields in lines[:3]]
    assert scores == sorted(scores, reverse=True)
    assert [fields[3] for fields in lines] == ["1", "2", "3", "1"]
    done(zoo_command(*command[:-2], "--output=out.jsonl", command[-1]))
    first = read_jsonl("out.jsonl")[0]
    assert (first["id"], first["text"]) == ("q1", texts["q1"])
    assert [candidate["id"] for candidate in first["candidates"]] == [fields[2] for fields in lines[:3]]


def test_a_table_of_pairs_becomes_a_run(zoo_command: Zoo, matcher: Path) -> None:
    rows = ["question,candidate,first,second", "x7,k1,where is plum,iron", "x7,k2,where is plum,a plum"]
    Path("more.csv").write_text("\n".join([*rows, "x8,k1,where is fog,the fog"]) + "\n")
    options = ["predict", "--ckpt_path", matcher, "--input=more.csv"]
    done(zoo_command(*options, "--output=out.run"))
    pairs = [("where is plum", "iron"), ("where is plum", "a plum"), ("where is fog", "the fog")]
    scores = zoo.load(matcher).predict(pairs)
    run = read_run("out.run")
    assert run["x7"] == pytest.approx({"k1": scores[0].score, "k2": scores[1].score}, abs=1e-5)
    assert run["x8"] == pytest.approx({"k1": scores[2].score}, abs=1e-5)
    # Ids in JSON lines, where their columns are named.
    done(zoo_command(*options, "--question_column=question", "--id_column=candidate", "--output=out.jsonl"))
    records = read_jsonl("out.jsonl")
    assert [(row["question"], row["id"]) for row in records] == [("x7", "k1"), ("x7", "k2"), ("x8", "k1")]
    Path("no_ids.csv").write_text("first,second\nwhere is plum,iron\n")
    result = zoo_command(*options[:-1], "--input=no_ids.csv", "--output=out.run")
    refusal(result, "no_ids.csv", "no column 'question'")


def test_a_retrieval_model_ranks_a_given_run(zoo_command: Zoo) -> None:
    checkpoint = trained(zoo_command, COLLECTION, "run", "--model.mix_retriever=true", "--data.num_hits=5")
    wanted = [f"d{number}" for number in range(30, 10, -1)]
    write_run(wanted)
    done(zoo_command("predict", "--ckpt_path", checkpoint, *FILES))
    assert {*read_run("out.run")["q1"]} == {*wanted}  # more than the 10 of a search
    texts = write_run(["d7", "d30", "d2"])
    done(zoo_command("predict", "--ckpt_path", checkpoint, *FILES))
    whole = {document.id: document.score for document in zoo.load(checkpoint).predict(texts["q1"], k=40)[0]}
    run = read_run("out.run")
    assert {*run} == {"q1", "q3"}
    assert run["q1"] == pytest.approx({id_: whole[id_] for id_ in ("d7", "d30", "d2")}, abs=1e-6)


def test_runs_of_another_collection(zoo_command: Zoo, matcher: Path) -> None:
    documents = "--documents=clicks/corpus.jsonl"
    retrieval = trained(zoo_command, COLLECTION, "retrieval")
    for checkpoint, more, name in (
        (matcher, [documents], "clicks/corpus.jsonl"),
        (retrieval, [], "the model's"),
    ):
        command = ["predict", "--ckpt_path", checkpoint, *FILES, *more]
        write_run(["d7", "x9"])
        refusal(zoo_command(*command), "given.run: the document 'x9' is not in", name)
        write_run(["d7"], query="y1")
        refusal(zoo_command(*command), "given.run: query 'y1' is not in clicks/queries.jsonl")
        assert not Path("out.run").exists()
    # The memory of the model on pairs has other texts.
    write_run(["d7"])
    result = zoo_command("predict", "--ckpt_path", matcher, *FILES)
    refusal(result, "'d7' is not in the model's memory", "--documents")
    result = zoo_command("predict", "--ckpt_path", matcher, "--input=pairs.csv", documents)
    refusal(result, "name it with --rerank")
    Path("questions.txt").write_text("where is plum\n")
    texts = ["--input=questions.txt", "--output=out.run"]
    refusal(zoo_command("predict", "--ckpt_path", matcher, *texts), "questions.txt has none")


def test_few_judged_queries_are_a_warning(zoo_command: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        done(zoo_command("fit", *options_of(COLLECTION, "--trainer.max_epochs=1", "--run_dir=alone")))
        assert "only 18 training queries have a relevant document" in caplog.text
        assert "--model.mix_retriever true --data.num_hits 1000" in caplog.text
        caplog.clear()
        mixed = ["--model.mix_retriever=true", "--data.num_hits=5", "--run_dir=mixed"]
        done(zoo_command("fit", *options_of(COLLECTION, "--trainer.max_epochs=1", *mixed)))
        done(zoo_command("fit", *options_of(COLLECTION, "--run_dir=bm25", model="RetrievalBM25")))
        assert "training queries have a relevant document" not in caplog.text


def test_a_collection_of_ones_own_in_csv_files(zoo_command: Zoo) -> None:
    """The configuration for few judgements, from tables to a run."""
    made = write_collection(COLLECTION, documents=40, queries=24, seed=5)
    for file, name in ((made.corpus, "title"), (made.queries, "text")):
        rows = [(row["_id"], row[name]) for row in read_jsonl(file)]
        write_table(Path(f"{file.stem}.csv"), rows, ("id", "text"))
    names, *judged = (line.split("\t") for line in made.judgements.read_text().splitlines())
    write_table(Path("qrels.csv"), judged, names)
    files = ["--data.corpus_file=corpus.csv", "--data.train_queries=queries.csv"]
    files += ["--data.train_judgements=qrels.csv"]
    small = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--model.hidden_sizes=[8, 4]"]
    done(zoo_command("fit", "--config=your_own_data/search", *files, *small, "--run_dir=run"))
    done(zoo_command("predict", "--ckpt_path=run", "--input=queries.csv", "--k=5", "--output=out.run"))
    run = read_run("out.run")
    assert len(run) == 24
    assert {len(ranked) for ranked in run.values()} == {5}


def test_a_classifier_writes_no_run(zoo_command: Zoo, trained_run: Path) -> None:
    Path("texts.txt").write_text("rain\n")
    result = zoo_command("predict", "--ckpt_path", trained_run, "--input=texts.txt", "--output=out.run")
    refusal(result, "--output out.run", "name it out.jsonl")
