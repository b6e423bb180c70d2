"""Matching models from the command line and in Python: fit, test, score, rank, answer."""

import shutil
from itertools import product
from pathlib import Path

import pytest

import zoo
from datamodules import MatchingDataModule
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.datamodules.kinds import prepared
from tests.dialogues import write_records
from tests.zoo.conftest import (
    QUIET_TRAINER,
    Fit,
    Zoo,
    done,
    pair_rows,
    read_csv,
    read_jsonl,
    refusal,
    write_pairs,
    written_scores,
)
from tests.zoo.processes import scores_of_one_and_two

#: A classifier's options have no place here.
SMALL = [
    "--model=AMVLSTM", "--model.word_size=12", "--model.hidden_size=6", "--model.k=8",
    "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.02",
    "--data=MatchingDataModule", "--data.batch_size=8", *QUIET_TRAINER,
]  # fmt: skip


@pytest.fixture(scope="module")
def train_tsv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "train.tsv", pair_rows(40, seed=1))


@pytest.fixture(scope="module")
def fit(trained: Fit, train_tsv: Path) -> Fit:
    """Train a small matching model, once for equal options, and return its run."""
    table = (f"--data.train_file={train_tsv}", "--data.validation_split=0.2")
    return lambda *options: trained("fit", *SMALL, *table, "--trainer.max_epochs=1", *map(str, options))


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    texts = ["the plum is old", "iron in the rain", "a plum near the sun", "some new fog"]
    FolderMemory.build(Rows.from_lists(texts), EmbeddedRetriever(), tmp_path / "memory")
    return tmp_path / "memory"


def test_scores_do_not_depend_on_their_batch(fit: Fit) -> None:
    predictor = zoo.load(fit())
    pairs = [(first, second) for first, second, _ in pair_rows(6, seed=5)][::-1]
    together = predictor.predict([*pairs, pairs[0]])
    assert [(one.first, one.second) for one in together] == [*pairs, pairs[0]]
    assert together[0] == together[-1]
    for one, other in zip(together, predictor.predict(pairs, batch_size=3), strict=False):
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert one.probability is None
    assert len({one.score for one in together}) > 5
    assert predictor.predict([]) == []


def test_the_strongest_words_are_in_the_texts(fit: Fit) -> None:
    predictor = zoo.load(fit())
    one, empty = predictor.predict([("where is plum", "an unseen plum"), ("where is plum", "")])
    assert len(one.words) == 5
    strengths = [pair.strength for pair in one.words]
    assert strengths == sorted(strengths, reverse=True)
    assert {pair.first for pair in one.words} <= {"where", "is", "plum"}
    assert {pair.second for pair in one.words} <= {"an", "unseen", "plum"}
    assert empty.words == []


def test_a_transformers_special_tokens_are_no_words(fit: Fit, tiny_bert: Path) -> None:
    predictor = zoo.load(fit(f"--model.transformer={tiny_bert}", f"--data.tokenizer={tiny_bert}"))
    one, empty = predictor.predict([("old plum", "a plum"), ("old plum", "")])
    assert {(pair.first, pair.second) for pair in one.words} == {*product(("old", "plum"), ("a", "plum"))}
    assert empty.words == []


def test_given_candidates_are_ranked(fit: Fit) -> None:
    predictor = zoo.load(fit())
    candidates = ["iron", "a plum", "the old sun", "a plum"]
    ranked = predictor.rank("where is plum", candidates)
    assert sorted(candidate.text for candidate in ranked) == sorted(candidates)
    scores = [candidate.score for candidate in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(candidate.retrieval_score is None for candidate in ranked)
    pairs = predictor.predict([("where is plum", candidate) for candidate in candidates])
    by_text = {pair.second: pair.score for pair in pairs}
    assert scores == pytest.approx([by_text[candidate.text] for candidate in ranked], abs=1e-6)
    assert predictor.rank("where is plum", []) == []


def test_candidates_of_a_question_come_from_the_memory(fit: Fit, memory: Path) -> None:
    predictor = zoo.load(fit(), memory=memory)
    plum, unknown, fog = predictor.answer(["where is plum", "xyzzy", "fog"], candidates=2)
    assert {candidate.text for candidate in plum} == {"the plum is old", "a plum near the sun"}
    assert plum[0].score >= plum[1].score
    assert all(candidate.retrieval_score for candidate in plum)
    assert unknown == []
    (only,) = fog
    (scored,) = predictor.rank("fog", ["some new fog"])
    assert only.score == pytest.approx(scored.score, abs=1e-6)
    assert only.words[0].second in ("some", "new", "fog")
    # The other questions change the candidates' scores only by rounding.
    (alone,) = predictor.answer("where is plum", candidates=2)
    assert [candidate.text for candidate in alone] == [candidate.text for candidate in plum]
    assert [candidate.score for candidate in alone] == pytest.approx([one.score for one in plum], abs=1e-6)
    assert predictor.answer([]) == []


def test_the_training_texts_are_the_memory_if_no_other_is_named(fit: Fit) -> None:
    predictor = zoo.load(fit())
    assert predictor.memory is None  # built when it is first needed
    (ranked,) = predictor.answer("fig", candidates=3)
    assert len(ranked) == 3
    known = {second for _, second, _ in pair_rows(40, seed=1)}
    assert all(candidate.text in known and "fig" in candidate.text for candidate in ranked)


def test_the_dashboard_shows_the_pairs_of_the_first_questions(fit: Fit, train_tsv: Path) -> None:
    predictor = zoo.load(fit())
    data = prepared(MatchingDataModule(train_file=str(train_tsv), validation_split=0.2))
    pairs = data.split("validation").pairs
    columns, rows = predictor.model.shown_predictions(data, 2)
    assert columns == ["first", "second", "label", "score", "words"]
    assert len(rows) == pairs.lists.counts[:2].sum()
    assert len({first for first, *_ in rows}) == 2
    assert [grade for _, _, grade, _, _ in rows] == pairs.target[pairs.lists.values[: len(rows)]].tolist()
    (scored,) = predictor.predict([(rows[0][0], rows[0][1])])
    assert rows[0][3] == pytest.approx(scored.score, abs=1e-5)
    assert rows[0][4].startswith(f"{scored.words[0].strength:+.3f} {scored.words[0].first} - ")


def test_predict_scores_pairs_and_answers_questions(fit: Fit, zoo_command: Zoo, memory: Path) -> None:
    run = fit()
    pairs = [{"first": "where is plum", "second": text} for text in ("iron", "a plum")]
    write_records(Path("pairs.jsonl"), *pairs)
    options = ["predict", "--ckpt_path", run]
    done(zoo_command(*options, "--input=pairs.jsonl", "--output=scores.jsonl"))
    expected = zoo.load(run).predict([("where is plum", "iron"), ("where is plum", "a plum")])
    for record, pair in zip(read_jsonl("scores.jsonl"), expected, strict=True):
        assert (record["first"], record["second"]) == (pair.first, pair.second)
        assert record["score"] == pytest.approx(pair.score, abs=1e-6)
        assert record["probability"] is None
    assert [record["id"] for record in read_jsonl("scores.jsonl")] == ["0", "1"]
    assert len({record["question"] for record in read_jsonl("scores.jsonl")}) == 1

    Path("questions.txt").write_text("where is plum\nfog\n")
    for wrong, words in (("memory=gone", "gone"), ("candidates=0", "--candidates 0: must be 1 to 10,000")):
        refusal(zoo_command(*options, "--input=questions.txt", f"--{wrong}"), words)
    for source in (["--input=questions.txt"], ["--input=pairs.jsonl", "--text_column=first"]):
        more = ["--memory", memory, "--candidates=2", "--output=answers.jsonl"]
        done(zoo_command(*options, *source, *more))
        plum, *_ = read_jsonl("answers.jsonl")
        assert plum["text"] == "where is plum"
        candidates = plum["candidates"]
        assert {"id", "text", "score", "retrieval_score", "words"} == candidates[0].keys()
        assert len(candidates) == 2


def test_a_table_has_a_row_for_each_candidate(fit: Fit, zoo_command: Zoo, train_tsv: Path) -> None:
    Path("questions.txt").write_text("where is plum\n")
    Path("texts.csv").write_text("text\na plum\niron\n")
    done(zoo_command("index", "--file=texts.csv", "--label_column=null", "--memory=memory"))
    command = ["predict", "--ckpt_path", fit(), "--memory=memory", "--output=out.csv"]
    done(zoo_command(*command, "--input=questions.txt"))
    (row,) = read_csv("out.csv")  # one memory has a word of the question
    assert [*row] == [
        "text", "rank", "candidate_id", "candidate_text", "candidate_score", "candidate_retrieval_score",
    ]  # fmt: skip
    assert (row["text"], row["rank"], row["candidate_text"]) == ("where is plum", "1", "a plum")
    refusal(zoo_command(*command, "--input=questions.txt", "--top=2"), "--top", "AMVLSTM", "--candidates")
    done(zoo_command(*command, "--input", train_tsv))
    assert [*read_csv("out.csv")[0]] == ["id", "question", "first", "second", "score", "probability"]


def test_pairs_to_classify(zoo_command: Zoo, fit: Fit, train_tsv: Path) -> None:
    options = ("--data.goal=classification", "--model.loss=cross_entropy", "--data.test_split=0.2")
    run = fit(*options, "--trainer.max_epochs=2")
    one = zoo.load(run).predict([("where is plum", "a plum")])[0]
    assert 0 < one.probability < 1
    # The test pairs are split off the training file again.
    split = written_scores(zoo_command, "test", "--ckpt_path", run, f"--config={run}/config.yaml")
    assert {"accuracy", "auc", "loss", "pairs", "rows_in_training"} == split.keys()
    assert 0 < split["pairs"] < 80
    other = ["--data.test_file", train_tsv, "--trainer.accelerator=cpu"]
    scores = written_scores(zoo_command, "test", "--ckpt_path", run, *other)
    assert scores["pairs"] == len(pair_rows(40, seed=1))


def test_the_memory_of_candidates_grows(fit: Fit, zoo_command: Zoo) -> None:
    run = shutil.copytree(fit(), "run")
    Path("more.csv").write_text("text\nxylophone strings\n")
    for command in (["add", run, "more.csv"], ["show", run]):
        result = done(zoo_command("memory", *command))
    assert "version   2" in result.out
    ((only,),) = zoo.load(run).answer("a xylophone", candidates=1)
    assert only.text == "xylophone strings"


def test_two_processes_print_the_digits_of_one(fit: Fit, tmp_path: Path) -> None:
    """11 questions in batches of 4: three batches, so that one is repeated, and must not be counted."""
    test_file = write_pairs(tmp_path / "test.tsv", pair_rows(11, seed=2))
    one, two = scores_of_one_and_two(fit(), "--data.test_file", test_file, "--data.eval_batch_size=4")
    assert one["pairs"] == len(pair_rows(11, seed=2))
    assert one["questions"] + one["questions_without_positive"] == 11
    # The loss alone is a sum of floating-point numbers.
    assert one.pop("loss") == pytest.approx(two.pop("loss"), rel=1e-12)
    assert one == two
