"""Retrieval models from the command line and in Python: fit, test, predict, TREC runs, mixtures, tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
import torch
import yaml
from scipy.stats import binomtest

import zoo
import zoo.reproduce.run as runs_of_a_table
from datamodules.core.errors import InputError
from datamodules.corpora.judgements import judged_pairs
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.clicks import Collection, write_collection
from tests.zoo.conftest import Result, best, done, last
from tests.zoo.processes import DDP, zoo_process
from zoo.cli import main
from zoo.reproduce.command import reproduce
from zoo.tasks.retrieval.predictor import RetrievalPredictor
from zoo.tasks.retrieval.task import MIXTURES
from zoo.training.nesterov import ScheduledNesterov

Command = Callable[..., Result]
SMALL = [
    "--model=LSTMRNN", "--model.hidden_size=8", "--model.num_trigrams=200",
    "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.03",
    "--data=ClickthroughDataModule", "--data.document_column=title", "--data.batch_size=16",
    "--data.eval_batch_size=7", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false", "--trainer.log_every_n_steps=1",
]  # fmt: skip
#: A model that adds the scores of two searches.
MIXED = [
    "--model.mix_retriever=true", "--data.num_hits=50", "--data.retriever=FusedRetriever",
    "--data.retriever.retrievers=[{class_path: EmbeddedRetriever}, {class_path: EmbeddedRetriever, "
    "init_args: {similarity: LMDirichlet}}]",
]  # fmt: skip


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return write_collection(tmp_path_factory.mktemp("clicks"), documents=50, queries=40, seed=2)


def fit_options(collection: Collection) -> list[str]:
    files = [f"--data.{option}={value}" for option, value in collection.options().items()]
    return [
        "fit",
        *SMALL,
        *files,
        "--data.validation_split=0.3",
        "--trainer.max_epochs=8",
        "--seed_everything=1",
    ]


@pytest.fixture(scope="module")
def fit(trained: Callable[..., Path], collection: Collection) -> Callable[..., Path]:
    """Train a small retrieval model, once for equal options, and return its run."""
    return lambda *options: trained(*fit_options(collection), *options)


def other_queries(folder: Path, number: int = 17) -> Collection:
    """Queries with judgements of the same collection."""
    made = write_collection(folder / "other", documents=50, queries=40, seed=2)
    lines = made.queries.read_text().splitlines()[:number]
    made.queries.write_text("\n".join(lines) + "\n")
    return made


def test_a_model_learns_and_two_processes_print_the_digits_of_one(
    fit: Callable[..., Path], zoo_command: Command, collection: Collection, tmp_path: Path
) -> None:
    """17 queries in batches of 7, 50 documents in blocks of 7: neither divides by two processes."""
    run = fit(*MIXED)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best_score"] > 0.6
    test = other_queries(tmp_path)
    options = [
        "test", "--ckpt_path", run, "--data.test_queries", test.queries,
        "--data.test_judgements", test.judgements,
    ]  # fmt: skip
    assert zoo_command(*options, "--output=one.json", "--trainer.accelerator=cpu").code == 0
    zoo_process(*options, "--output=two.json", *DDP)
    one, two = (json.loads(Path(name).read_text()) for name in ("one.json", "two.json"))
    by_query = one["by_query"]
    assert by_query.keys() == {f"q{number}" for number in range(17)}
    assert one["ndcg@10"] == pytest.approx(np.mean(list(by_query.values())))
    assert one == two  # although the process that prints is not one of those that measure


def predictor(source: Path, **options: Any) -> RetrievalPredictor:
    loaded = zoo.load(source, **options)
    assert isinstance(loaded, RetrievalPredictor)
    return loaded


def test_documents_are_ranked_for_queries(fit: Callable[..., Path], collection: Collection) -> None:
    run = fit()
    loaded = predictor(run)
    (plum,) = loaded.predict("where is plum", k=5)
    assert len(plum) == 5
    assert [document.score for document in plum] == sorted(
        (document.score for document in plum), reverse=True
    )
    titles = {
        record["_id"]: record["title"]
        for record in map(json.loads, collection.corpus.read_text().splitlines())
    }
    assert all(titles[document.id] == document.text for document in plum)
    # The other queries of a call and the batch size change nothing.
    both = loaded.predict(["some rain", "where is plum"], k=5, batch_size=3)
    assert [document.row for document in both[1]] == [document.row for document in plum]
    np.testing.assert_allclose(
        [document.score for document in both[1]], [document.score for document in plum], atol=1e-6
    )
    # All documents have the same score for a query without a word.
    (nothing,) = loaded.predict("  ", k=50)
    assert {document.score for document in nothing} == {0.0}
    assert [document.row for document in nothing] == list(range(50))
    assert loaded.predict([]) == []
    with pytest.raises(InputError, match="--k 0: must be 1"):
        loaded.predict("plum", k=0)
    vectors = loaded.encode(["a plum", "", "old rain"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1], atol=1e-6)
    queries = loaded.encode_queries(["where is plum"])
    texts = [document.text for document in plum]
    np.testing.assert_allclose(
        loaded.encode(texts) @ queries[0], [document.score for document in plum], atol=1e-6
    )


def test_another_collection_replaces_the_corpus(fit: Callable[..., Path], tmp_path: Path) -> None:
    run = fit()
    rows = Rows.from_lists(["a new plum", "old copper"], ids=["x", "y"])
    FolderMemory.build(rows, EmbeddedRetriever(), tmp_path / "memory")
    (found,) = predictor(run, memory=tmp_path / "memory").predict("plum")
    assert {one.id for one in found} == {"x", "y"}


def test_predict_writes_records_and_trec_runs(
    fit: Callable[..., Path], zoo_command: Command, collection: Collection
) -> None:
    run = fit()
    options = ["predict", "--ckpt_path", run, "--input", collection.queries, "--k=50"]
    assert zoo_command(*options, "--output=out.jsonl").code == 0
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == [f"q{number}" for number in range(40)]
    assert all(len(record["documents"]) == 50 for record in records)
    assert zoo_command(*options, "--output=lstm.run", "--run_name=lstm").code == 0
    line = Path("lstm.run").read_text().splitlines()[0].split()
    best = records[0]["documents"][0]
    assert line == ["q0", "Q0", best["id"], "1", repr(best["score"]), "lstm"]


def test_the_retrievers_score_is_mixed_in(
    fit: Callable[..., Path], zoo_command: Command, collection: Collection, tmp_path: Path
) -> None:
    run = fit(*MIXED)
    weights = torch.load(best(run), weights_only=True)["state_dict"]
    mixture = float(weights["mixture"])
    assert any(mixture == pytest.approx(weight) for weight in MIXTURES)
    test = other_queries(tmp_path)
    options = [
        "test", "--ckpt_path", run, "--data.test_queries", test.queries,
        "--data.test_judgements", test.judgements, "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert zoo_command(*options, "--output=test.json").code == 0
    found = json.loads(Path("test.json").read_text())
    assert found["mixture"] == pytest.approx(mixture)
    # Prediction ranks as the test does.
    queries = [json.loads(line) for line in test.queries.read_text().splitlines()]
    ranked = predictor(run).predict([query["text"] for query in queries], k=50)
    scores = {
        query["_id"]: {one.id: one.score for one in documents}
        for query, documents in zip(queries, ranked, strict=True)
    }
    judged = [
        ir_measures.Qrel(query, document, int(grade))
        for query, document, grade, _ in judged_pairs(test.judgements)
        if query in scores
    ]
    ndcg = ir_measures.nDCG @ 10
    assert ir_measures.calc_aggregate([ndcg], judged, scores)[ndcg] == pytest.approx(
        found["ndcg@10"], abs=5e-4
    )
    # Next to it, each part of the search alone.
    parts = [name.partition("/")[2] for name in found if name.startswith("ndcg@10/")]
    assert parts == ["network alone", "fused alone", "BM25 alone", "LMDirichlet alone"]
    files = [f"--data.{option}={value}" for option, value in collection.options().items()]
    shared = [option for option in SMALL if option.startswith(("--data", "--trainer"))]
    done(zoo_command("fit", "--model=RetrievalBM25", *shared, *files, "--run_dir=bm25"))
    done(zoo_command("test", "--ckpt_path=bm25", *options[3:], "--output=bm25.json"))
    alone = json.loads(Path("bm25.json").read_text())
    for name in ("ndcg@10", "map"):
        assert found[f"{name}/BM25 alone"] == pytest.approx(alone[name])
    gains = [alone["by_query"][query] - value for query, value in found["by_query"].items()]
    better, worse = sum(gain > 1e-9 for gain in gains), sum(gain < -1e-9 for gain in gains)
    assert [found[f"{name}/BM25 alone"] for name in ("better", "worse")] == [better, worse]
    assert found["p/BM25 alone"] == pytest.approx(binomtest(better, better + worse).pvalue)


def test_mixing_needs_hits(zoo_command: Command, collection: Collection) -> None:
    files = [f"--data.{option}={value}" for option, value in collection.options().items()]
    result = zoo_command("fit", *SMALL, *files, "--model.mix_retriever=true", "--run_dir=run")
    assert result.code == 2
    assert "set the number of hits to mix in with data.num_hits" in result.err


def test_only_judged_documents_are_ranked(fit: Callable[..., Path]) -> None:
    run = fit("--data.evaluate=judged")
    scores = json.loads((run / "summary.json").read_text())["metrics"]
    assert scores["val/recall@100"] == 1.0  # no query has more judged documents
    assert scores["val/queries"] == 12


def test_nesterov_has_the_papers_schedule(fit: Callable[..., Path]) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = ScheduledNesterov([weight], lr=0.01, total_steps=100)
    assert [optimizer.momentum_at(update) for update in (0, 1, 2, 50, 97, 98, 99)] == [
        0.9, 0.9, 0.995, 0.995, 0.995, 0.9, 0.9
    ]  # fmt: skip
    # Against the equations: v = mu v + g; w = w - lr (g + mu v).
    expected, velocity = 1.0, 0.0
    for update in range(5):
        optimizer.zero_grad()
        (0.5 * weight**2).sum().backward()
        momentum = optimizer.momentum_at(update)
        velocity = momentum * velocity + expected if update else expected
        expected -= 0.01 * (expected + momentum * velocity)
        optimizer.step()
        assert float(weight) == pytest.approx(expected, rel=1e-5)
    run = fit(
        "--model.optimizer=zoo.training.nesterov.ScheduledNesterov", "--model.optimizer.lr=0.01",
        "--trainer.gradient_clip_val=1.0",
    )  # fmt: skip
    state = torch.load(last(run), weights_only=True)
    assert state["optimizer_states"][0]["param_groups"][0]["updates"] == state["global_step"]
    assert state["optimizer_states"][0]["param_groups"][0]["momentum"] == 0.9


# --- tables ---


def test_rows_have_scores_with_and_without_test_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_this_process(arguments: list[str], log: Path) -> None:
        assert main(arguments) == 0, log

    monkeypatch.setattr(runs_of_a_table, "_zoo", in_this_process)
    data = write_collection(tmp_path / "clicks", documents=50, queries=40, seed=2).corpus.parent
    other_queries(data)
    files = {"corpus_file": "corpus.jsonl", "train_queries": "queries.jsonl", "train_judgements": "qrels.tsv"}
    base = {
        "model": {"class_path": "LSTMRNN", "init_args": {"hidden_size": 4, "num_trigrams": 100}},
        "data": {
            "class_path": "ClickthroughDataModule",
            "init_args": {**files, "document_column": "title", "eval_batch_size": 16},
        },
        "trainer": {"accelerator": "cpu", "max_epochs": 1},
    }
    tested = {"data.test_queries": "other/queries.jsonl", "data.test_judgements": "other/qrels.tsv"}
    table = {
        "description": "made-up clicks", "minutes": 1, "seeds": 2, "base": base, "metrics": ["ndcg@10", "map"],
        "paper_metric": "test/ndcg@10", "skip_absent": True, "overrides": tested,
        "rows": {"BM25": {"overrides": {"model": "RetrievalBM25"}, "paper": 38.8}, "LSTM": {}},
    }  # fmt: skip
    Path("small.yaml").write_text(yaml.safe_dump(table))
    figures = reproduce("small.yaml", str(data), run_dir="out")
    assert figures["LSTM"]["test/ndcg@10"]["n"] == 2
    assert figures["BM25"]["test/ndcg@10"]["n"] == 1
    heads = "validation NDCG@10 | validation MAP | test NDCG@10 | test MAP | paper (test NDCG@10)"
    assert f"| row | {heads} | runs |" in " ".join(Path("out/table.md").read_text().split())
    # Without the test files, the rows have validation figures.
    Path(tmp_path, "clicks", "other", "qrels.tsv").unlink()
    found = reproduce("small.yaml", str(data), rows="BM25", run_dir="without")
    assert found["BM25"]["test/ndcg@10"]["mean"] is None
    assert found["BM25"]["val/ndcg@10"]["mean"] == figures["BM25"]["val/ndcg@10"]["mean"]
