"""Retrieval models from the command line and in Python: fit, test, predict, TREC runs, mixtures."""

from pathlib import Path

import ir_measures
import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.judgements import judged_pairs
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.clicks import Collection, write_collection
from tests.zoo.conftest import Fit, Zoo, best, done, last, read_json, read_jsonl, refusal, written_scores
from tests.zoo.processes import scores_of_one_and_two
from tests.zoo.retrieval_runs import options_of
from zoo.tasks.retrieval.task import MIXTURES
from zoo.training.nesterov import ScheduledNesterov

#: A model that adds the scores of two searches.
MIXED = [
    "--model.mix_retriever=true", "--data.num_hits=50", "--data.retriever=FusedRetriever",
    "--data.retriever.retrievers=[{class_path: EmbeddedRetriever}, {class_path: EmbeddedRetriever, "
    "init_args: {similarity: LMDirichlet}}]",
]  # fmt: skip


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return write_collection(tmp_path_factory.mktemp("clicks"), documents=50, queries=40, seed=2)


@pytest.fixture(scope="module")
def fit(trained: Fit, collection: Collection) -> Fit:
    """Train a small retrieval model, once for equal options, and return its run."""
    small = ("--model.optimizer.lr=0.03", "--data.eval_batch_size=7", "--data.validation_split=0.3")
    given = options_of(collection.corpus.parent, *small, "--trainer.max_epochs=8", hidden_size=8)
    return lambda *options: trained("fit", *map(str, given), *options)


def test_documents_are_ranked_for_queries(fit: Fit, collection: Collection) -> None:
    loaded = zoo.load(fit())
    (plum,) = loaded.predict("where is plum", k=5)
    assert len(plum) == 5
    scores = [document.score for document in plum]
    assert scores == sorted(scores, reverse=True)
    titles = {record["_id"]: record["title"] for record in read_jsonl(collection.corpus)}
    assert all(titles[document.id] == document.text for document in plum)
    # The other queries of a call and the batch size change nothing.
    _, again = loaded.predict(["some rain", "where is plum"], k=5, batch_size=3)
    assert [document.row for document in again] == [document.row for document in plum]
    np.testing.assert_allclose([document.score for document in again], scores, atol=1e-6)
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
    np.testing.assert_allclose(loaded.encode(texts) @ queries[0], scores, atol=1e-6)


def test_another_collection_replaces_the_corpus(fit: Fit, tmp_path: Path) -> None:
    rows = Rows.from_lists(["a new plum", "old copper"], ids=["x", "y"])
    FolderMemory.build(rows, EmbeddedRetriever(), tmp_path / "memory")
    (found,) = zoo.load(fit(), memory=tmp_path / "memory").predict("plum")
    assert {one.id for one in found} == {"x", "y"}


def test_predict_writes_records_and_trec_runs(fit: Fit, zoo_command: Zoo, collection: Collection) -> None:
    options = ["predict", "--ckpt_path", fit(), "--input", collection.queries, "--k=50"]
    done(zoo_command(*options, "--output=out.jsonl"))
    records = read_jsonl("out.jsonl")
    assert [record["id"] for record in records] == [f"q{number}" for number in range(40)]
    assert all(len(record["documents"]) == 50 for record in records)
    done(zoo_command(*options, "--output=lstm.run", "--run_name=lstm"))
    line = Path("lstm.run").read_text().splitlines()[0].split()
    best = records[0]["documents"][0]
    assert line == ["q0", "Q0", best["id"], "1", repr(best["score"]), "lstm"]


def test_a_mixed_model_is_measured_next_to_its_parts_by_one_and_two_processes(
    fit: Fit, zoo_command: Zoo, collection: Collection, tmp_path: Path
) -> None:
    """17 queries in batches of 7, 50 documents in blocks of 7: neither divides by two processes."""
    run, test = fit(*MIXED), write_collection(tmp_path / "other", documents=50, queries=40, seed=2)
    test.queries.write_text("\n".join(test.queries.read_text().splitlines()[:17]) + "\n")
    assert read_json(run / "summary.json")["best_score"] > 0.6
    files = ["--data.test_queries", test.queries, "--data.test_judgements", test.judgements]
    found, two = scores_of_one_and_two(run, *files)
    assert found == two  # although the process that prints is not one of those that measure
    assert found["by_query"].keys() == {f"q{number}" for number in range(17)}
    assert found["ndcg@10"] == pytest.approx(np.mean(list(found["by_query"].values())))
    mixture = float(torch.load(best(run), weights_only=True)["state_dict"]["mixture"])
    assert any(mixture == pytest.approx(weight) for weight in MIXTURES)
    assert found["mixture"] == pytest.approx(mixture)
    # Prediction ranks as the test does.
    queries = read_jsonl(test.queries)
    ranked = zoo.load(run).predict([query["text"] for query in queries], k=50)
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
    measured = ir_measures.calc_aggregate([ndcg], judged, scores)[ndcg]
    assert measured == pytest.approx(found["ndcg@10"], abs=5e-4)
    # Next to it, each part of the search alone.
    parts = [name.partition("/")[2] for name in found if name.startswith("ndcg@10/")]
    assert parts == ["network alone", "fused alone", "BM25 alone", "LMDirichlet alone"]
    done(zoo_command("fit", *options_of(collection.corpus.parent, "--run_dir=bm25", model="RetrievalBM25")))
    alone = written_scores(zoo_command, "test", "--ckpt_path=bm25", *files, "--trainer.accelerator=cpu")
    for name in ("ndcg@10", "map"):
        assert found[f"{name}/BM25 alone"] == pytest.approx(alone[name])
    gains = [alone["by_query"][query] - value for query, value in found["by_query"].items()]
    better, worse = sum(gain > 1e-9 for gain in gains), sum(gain < -1e-9 for gain in gains)
    assert [found[f"{name}/BM25 alone"] for name in ("better", "worse")] == [better, worse]
    assert found["p/BM25 alone"] == pytest.approx(binomtest(better, better + worse).pvalue)


def test_mixing_needs_hits(zoo_command: Zoo, collection: Collection) -> None:
    options = options_of(collection.corpus.parent, "--model.mix_retriever=true")
    refusal(zoo_command("fit", *options), "set the number of hits to mix in with data.num_hits")


def test_only_judged_documents_are_ranked(fit: Fit) -> None:
    scores = read_json(fit("--data.evaluate=judged") / "summary.json")["metrics"]
    assert scores["val/recall@100"] == 1.0  # no query has more judged documents
    assert scores["val/queries"] == 12


def test_nesterov_has_the_papers_schedule(fit: Fit) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = ScheduledNesterov([weight], lr=0.01, total_steps=100)
    momenta = [optimizer.momentum_at(update) for update in (0, 1, 2, 50, 97, 98, 99)]
    assert momenta == [0.9, 0.9, 0.995, 0.995, 0.995, 0.9, 0.9]
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
