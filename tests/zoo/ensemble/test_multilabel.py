"""Sets of labels: the choice of a set, its scores, and a small ensemble from its table to edits of its memory."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn import metrics
from sklearn.preprocessing import MultiLabelBinarizer

import zoo
from tests.datamodules.checks import refused
from tests.zoo.conftest import LABELS, Zoo, done, read_csv, read_json, refusal, write_table
from tests.zoo.ensemble.conftest import distinct_sentences
from tests.zoo.tasks.test_classification_task import count
from zoo.audit import audit, share_of_errors
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.members import Regression, SelfTrained, guess_sets
from zoo.ensemble.outputs import Scores, Votes
from zoo.ensemble.pool import folds_of
from zoo.layers.tfidf import planes_by_label, support_vectors
from zoo.tasks.classification.guides import UNLABELLED, Guides
from zoo.tasks.classification.held_out import rows_to_keep
from zoo.tasks.classification.metric_learning import balanced_batches, supervised_contrastive_loss
from zoo.tasks.classification.metrics import MultilabelScores
from zoo.tasks.classification.multilabel import choose_labels, fit_rule, row_scores
from zoo.tasks.metrics import paired_test, sign_test


def test_paired_differences_are_tested_by_random_signs() -> None:
    random, p_values = np.random.default_rng(0), []
    for _ in range(60):
        p_values.append(paired_test(random.choice([-1, -0.5, 0, 0.4, 0.9], 40)))
    assert np.mean(np.array(p_values) < 0.1) < 0.2
    assert paired_test(random.normal(0.5, size=60)) < 0.01
    gains = np.array([1.0] * 9 + [-1.0] + [0.0] * 5)
    assert paired_test(gains) == sign_test(9, 1)
    assert paired_test(gains * 0.5) == pytest.approx(sign_test(9, 1), abs=0.01)
    assert paired_test(np.array([0.5])) == 1


def draw_sets(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random probabilities and sets of four labels [rows, 4]."""
    torch.manual_seed(seed)
    probabilities = torch.rand(rows, 4)
    return probabilities, (torch.rand(rows, 4) < probabilities).long()


def test_rule_has_highest_micro_f1() -> None:
    probabilities, target = draw_sets(60)
    rule = fit_rule(probabilities, target)
    reached = metrics.f1_score(target, choose_labels(probabilities, rule), average="micro")
    cuts = probabilities.flatten()
    others = [metrics.f1_score(target, probabilities >= cut, average="micro") for cut in cuts]
    assert reached == pytest.approx(max(others))
    assert not rule[1]
    target[:, 0] = 1  # no set is empty
    assert fit_rule(probabilities, target)[1]
    assert choose_labels(probabilities, (2.0, True)).sum(dim=1).tolist() == [1] * 60
    target[:, 1:] = 0  # each has one label
    assert fit_rule(probabilities / 3, target) == (0.5, True)


def test_row_scores_of_sets() -> None:
    target = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]])
    answer = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]])
    assert row_scores(answer, target).tolist() == [0.5, 1.0, 0.0, 1.0]
    unknown = torch.tensor([0, 1, 0, 1])
    assert row_scores(answer, target, unknown).tolist() == pytest.approx([0.5, 0.0, 0.0, 2 / 3])


def test_scores_are_those_of_scikit_learn() -> None:
    probabilities, target = draw_sets(50)
    answer = (probabilities > 0.6).long()
    logits = torch.stack([(1 - probabilities).log(), probabilities.log()], dim=1)
    scores, weight = MultilabelScores(["a", "b", "c", "d"]), torch.ones(50)
    weight[-1] = 0  # pads a batch
    for rows in (slice(0, 20), slice(20, 50)):
        missing = torch.zeros(len(answer[rows])).long()
        count(scores, logits[rows], target[rows], weight[rows], chosen=answer[rows], unknown_labels=missing)
    found = {name: value.tolist() for name, value in scores.compute().items()}
    y, p, s = target[:-1].numpy(), answer[:-1].numpy(), probabilities[:-1].numpy()
    expected = {
        "accuracy": metrics.accuracy_score(y, p),
        "micro_f1": metrics.f1_score(y, p, average="micro"),
        "macro_f1": metrics.f1_score(y, p, average="macro"),
        "samples_f1": metrics.f1_score(y, p, average="samples", zero_division=1),
        "empty_answers": (p.sum(axis=1) == 0).mean(),
        "right_empty_answers": ((p.sum(axis=1) == 0) & (y.sum(axis=1) == 0)).mean(),
        "mean_average_precision": metrics.average_precision_score(y, s, average="macro"),
        "label_ranking_average_precision": metrics.label_ranking_average_precision_score(y, s),
        "loss": metrics.log_loss(y.ravel(), s.ravel()),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert found["f1"] == pytest.approx(metrics.f1_score(y, p, average=None).tolist())


@pytest.mark.filterwarnings("error")
def test_unknown_labels_are_missing_in_every_answer() -> None:
    probabilities, target = draw_sets(8)
    target[:, 0] = 0
    logits = torch.stack([(1 - probabilities).log(), probabilities.log()], dim=1)
    scores = MultilabelScores(["a", "b", "c", "d"])
    count(scores, logits, target, unknown_labels=torch.ones(8).long(), chosen=target)
    found, labels = scores.compute(), int(target.sum())
    assert (found["accuracy"], found["unknown_labels"]) == (0, 8)
    assert found["micro_f1"] == pytest.approx(2 * labels / (2 * labels + 8))


def test_vote_for_a_set_is_one_for_each_label() -> None:
    classes = torch.tensor([[[0, 2, -1], [1, -1, -1]], [[-1, -1, -1], [5, 0, -1]]])
    mask = torch.tensor([[True, True], [True, False]])
    votes = Votes(torch.tensor([[2.0, 2.0], [1.0, 1.0]]), mask, classes, 3)
    present = votes.log_probabilities((0.0, 0.5)).exp()[:, 1]
    prior = 0.5 / 3
    expected = [[(0.5 + prior) / 1.5, (0.5 + prior) / 1.5, (0.5 + prior) / 1.5], [prior / 1.5] * 3]
    torch.testing.assert_close(present, torch.tensor(expected))
    wider = Votes(votes.score, mask, torch.nn.functional.pad(classes, (0, 2), value=-1), 3)
    torch.testing.assert_close(votes.joined([wider]).log_probabilities((0.0, 0.5))[2:].exp()[:, 1], present)


def test_labels_exclude_each_other_where_each_text_has_one() -> None:
    torch.manual_seed(0)
    target = torch.arange(300) % 4
    sets, noise = torch.nn.functional.one_hot(target), torch.randn(300, 4)
    scores = Scores(noise + 2 * sets, multilabel=True)
    temperature, *of_set = chosen = scores.best_calibration(sets)
    assert of_set == [0, True]
    expected = (scores.scores * temperature).softmax(dim=1)
    torch.testing.assert_close(scores.log_probabilities(chosen)[:, 1].exp(), expected)
    sets = (torch.rand(300, 4) < 0.3).long()
    assert not Scores(noise + 2 * sets - 1, multilabel=True).best_calibration(sets)[2]


def test_planes_of_labels_are_fitted_one_by_one() -> None:
    random = np.random.default_rng(0)
    vectors, target = csr_matrix(random.random((30, 5))), random.integers(0, 2, (30, 4))
    target[:, 2], target[:, 3] = 0, 1
    weight, bias = planes_by_label(lambda v, t: support_vectors(v, t, 1.0), vectors, target)
    planes, biases = support_vectors(vectors, target[:, 1], 1.0)
    np.testing.assert_allclose(weight[1], planes[1] - planes[0])
    np.testing.assert_allclose(bias[1], biases[1] - biases[0])
    assert not weight[2:].any()
    assert bias[2:].tolist() == [-1.0, 1.0]  # a label of no text, and of all


def test_metric_of_sets_of_one_label_is_that_of_classes() -> None:
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(12, 4), dim=1)
    target = torch.arange(12) % 3
    sets = torch.nn.functional.one_hot(target)
    losses = [supervised_contrastive_loss(vectors, each, 0.1) for each in (target, sets)]
    torch.testing.assert_close(*losses)
    for rows in balanced_batches(sets.numpy(), 6, 4, 0):
        assert len(set(rows.tolist())) == len(rows) <= 6


def test_folds_spread_the_rarest_label() -> None:
    sets = np.zeros((40, 3), np.int64)
    sets[:, 0], sets[:10, 1] = 1, 1
    folds = folds_of(sets, 5, np.arange(40))
    assert np.bincount(folds[:10]).tolist() == [2] * 5


def test_held_out_rows_have_the_n_grams_that_members_know() -> None:
    learned = csr_matrix(np.array([[1.0, 0, 0], [0, 1, 0]]))
    held_out = csr_matrix(np.array([[0.6, 0, 0.8], [0, 0, 1]]))
    (known,) = Readings(["a", "b"], ngrams=[held_out]).known_to(Readings([], ngrams=[learned])).ngrams or ()
    assert known.toarray().tolist() == [[1, 0, 0], [0, 0, 0]]


def write_sets(path: Path, rows: int, seed: int) -> Path:
    """A table of texts with none, one or two of three labels; each label has words of its own."""
    random, lines = np.random.default_rng(seed), list[str]()
    for text, label in distinct_sentences(rows, seed, LABELS):
        other = str(random.choice(LABELS))
        more = distinct_sentences(3, seed + len(lines) + 1000, LABELS)[LABELS.index(other)][0].split()[0]
        kind = random.integers(3)
        labels = [[], [label], sorted({label, other})][kind]
        words = text.split()
        written = " ".join([words[0] if kind else "", more if kind == 2 else "", *words[1:]])
        lines.append(json.dumps({"text": written.strip(), "labels": labels}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def run_of_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    options = {"label_column": "labels", "label_separator": ";", "num_memories": 5, "validation_split": 0.2}
    zoo.fit(write_sets(folder / "train.jsonl", 90, 1), run_dir=folder / "run", **options)
    return folder / "run"


@pytest.fixture
def run(run_of_sets: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_of_sets, tmp_path / "run"))


def test_answers_with_their_evidence(run: Path, tmp_path: Path, zoo_command: Zoo) -> None:
    model, table = zoo.load(run), write_sets(tmp_path / "test.jsonl", 40, 2)
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    predictions = model.predict([row["text"] for row in rows])
    right = [each.label == ";".join(row["labels"]) for each, row in zip(predictions, rows, strict=True)]
    assert np.mean(right) > 0.5  # one of eight sets by chance
    for each in predictions:
        assert each.label == ";".join(sorted(label.label for label in each.of_labels))
        for label in each.of_labels:
            assert each.probabilities[label.label] == label.probability
            odds = np.log(label.probability / (1 - label.probability))
            assert sum(label.contributions.values()) == pytest.approx(odds, abs=1e-3)
    shown = done(zoo_command("test", "--ckpt_path", run, "--data.test_file", table)).out
    assert all(each in shown for each in ("micro_f1", "| test rows", "F1, %"))


def test_memory_takes_sets_and_new_labels(run: Path, tmp_path: Path, zoo_command: Zoo) -> None:
    rows = [("zebra unicorn", "trains;fruit"), ("quiet meadow walk", "")]
    table = write_table(tmp_path / "more.csv", rows, ["text", "labels"])
    refusal(zoo_command("memory", "add", run, table), "has the label 'trains'", "--new_labels true")
    added = done(zoo_command("memory", "add", run, table, "--new_labels", "true"))
    assert "labels that only the memory has: trains" in added.out
    known = zoo.load(run).predict(["zebra unicorn", "quiet meadow walk"])
    assert [each.label for each in known] == ["fruit;trains", ""]
    assert {label.label for label in known[0].of_labels} == {"fruit", "trains"}
    done(zoo_command("memory", "relabel", run, "--ids", "[2:0]", "--label", "+metal"))
    done(zoo_command("memory", "relabel", run, "--ids", "[2:0]", "--label=-trains"))
    assert zoo.load(run).predict(["zebra unicorn"])[0].label == "fruit;metal"
    gone = zoo_command("memory", "relabel", run, "--ids", "[2:0]", "--label=-trains")
    refusal(gone, "row '2:0' with 'fruit;metal' lacks it")
    counts = rf"fruit \d+, metal \d+, no label {zoo.load(run).memory.rows.labels.count('')}, weather \d+\n"
    assert re.search(counts, done(zoo_command("memory", "show", run)).out)
    assert "[no label] quiet meadow walk" in done(zoo_command("memory", "diff", run, 1, 2)).out


def test_tuned_and_fitted_again(run: Path, tmp_path: Path, zoo_command: Zoo) -> None:
    table = write_sets(tmp_path / "tune.jsonl", 40, 3)
    assert "; F1 " in done(zoo_command("memory", "tune", run, table)).out
    assert "; F1 " in done(zoo_command("memory", "tune", run, table, "--refit", "true")).out
    other = write_sets(tmp_path / "test.jsonl", 30, 4)
    assert "| test rows" in done(zoo_command("test", "--ckpt_path", run, "--data.test_file", other)).out
    done(zoo_command("memory", "remove", run, "--ids", "[0]", "--refit", "true"))
    assert zoo.load(run).predict(["a text"])[0].of_labels is not None


def test_share_of_wrong_labels_is_bounded(run: Path, tmp_path: Path, zoo_command: Zoo) -> None:
    tuned, table = write_sets(tmp_path / "tune.jsonl", 300, 5), write_sets(tmp_path / "test.jsonl", 200, 6)
    done(zoo_command("memory", "tune", run, tuned))
    model, rows = zoo.load(run), [json.loads(line) for line in table.read_text().splitlines()]
    texts = [row["text"] for row in rows]
    free, bounded = model.predict(texts), model.predict(texts, max_error=0.33, label_sets=0.1, unknown=0.05)
    given = right = covered = 0
    for before, after, row in zip(free, bounded, rows, strict=True):
        kept = [] if after.of_labels is None else [each.label for each in after.of_labels]
        assert set(kept) <= {each.label for each in before.of_labels}
        if after.label is None:
            assert (kept, after.reason in ("unknown", "uncertain")) == ([], True)
        else:
            assert (after.label, after.reason) == (";".join(sorted(kept)), "")
        given, right = given + len(kept), right + len(set(kept) & set(row["labels"]))
        covered += set(row["labels"]) <= set(after.labels)
    assert given > 100
    assert right / given > 0.67
    assert sum(len(before.of_labels) for before in free) > given
    assert covered / len(rows) > 0.8
    foreign = model.predict(["whispering galaxies orbit 17 xylophones"], unknown=0.1)[0]
    assert (foreign.label, foreign.reason) == (None, "unknown")


def test_each_label_of_a_set_is_drawn_as_often() -> None:
    """Labels of one text are wrong together; the drawn ones are wrong as often as all that are given."""
    random, n = np.random.default_rng(0), 4000
    sizes = random.integers(0, 4, n)
    given = np.arange(4) < sizes[:, None]
    is_wrong = random.random(n) < 0.1 * sizes  # the larger the set, the more often
    pairs = zip(is_wrong, sizes, strict=True)
    labels = ["" if wrong else ";".join(LABELS[:3][:size]) for wrong, size in pairs]
    probabilities = torch.linspace(0.9, 0.6, 4).expand(n, 4)
    known, answers = [*LABELS[:3], "other"], torch.from_numpy(given).long()
    fold = np.arange(n), probabilities, answers, torch.zeros(n)
    spec: Any = SimpleNamespace(labels=known, label_separator=";")
    rows = rows_to_keep([fold], np.arange(n), labels, None, known, spec, None, 0)
    assert rows.most == 3
    drawn = rows.is_right[rows.probability >= 0]
    assert len(drawn) / n == pytest.approx(sizes.mean() / 3, abs=0.03)
    assert 1 - drawn.mean() == pytest.approx((is_wrong * sizes).sum() / sizes.sum(), abs=0.02)
    assert set(rows.of_label.round(2)) <= {1.0, 0.9, 0.8, 0.7}


def test_audit_names_what_is_too_many_and_what_is_missing(run: Path, zoo_command: Zoo) -> None:
    clear = [row for row in reversed(audit(zoo.load(run)).rows) if row.label]  # the least suspicious first
    one = next(row for row in clear if ";" not in row.label)
    none = next(row for row in clear if ";" in row.label)
    other = next(label for label in LABELS if label != one.label)
    done(zoo_command("memory", "relabel", run, "--ids", json.dumps([one.id]), "--label", f"+{other}"))
    gone = none.label.split(";")[0]
    done(zoo_command("memory", "relabel", run, "--ids", json.dumps([none.id]), f"--label=-{gone}"))
    assert "of them" in done(zoo_command("audit", run, "--output", "audit.csv")).out
    after = {row["id"]: row for row in read_csv("audit.csv")}
    for row in (one, none):
        assert after[row.id]["suggested"] == row.label
        assert float(after[row.id]["suspicion"]) > 0.5
    assert all(other not in each.split(";") for each in json.loads(after[one.id]["contradicting_labels"]))
    assert all(gone in each.split(";") for each in json.loads(after[none.id]["contradicting_labels"]))


def test_share_of_errors_is_that_of_sets_of_each_size() -> None:
    """Small sets are surer, and right; half of the large ones are wrong."""
    target = np.zeros((200, 4), np.int64)
    target[100:] = 1
    present = np.where(target > 0, 0.8, 0.01)
    target[100::2, 0] = 0
    logs = np.log(np.stack([1 - present, present], axis=1))
    assert share_of_errors(logs, target) == 0.25


def test_labels_that_look_like_edits_are_labels_in_files(run: Path, tmp_path: Path, zoo_command: Zoo) -> None:
    table = write_table(tmp_path / "signs.csv", [("zebra unicorn", "+1;-1")], ["text", "labels"])
    done(zoo_command("memory", "add", run, table, "--new_labels", "true"))
    table.write_text("id,label\n2:0,-1\n")
    done(zoo_command("memory", "relabel", run, "--file", table))
    assert zoo.load(run).predict(["zebra unicorn"])[0].label == "-1"


def test_unknown_labels_count_in_the_table_and_stop_no_tuning(tmp_path: Path, zoo_command: Zoo) -> None:
    train, other = write_sets(tmp_path / "train.jsonl", 90, 1), write_sets(tmp_path / "other.jsonl", 40, 8)
    columns = {"label_column": "labels", "label_separator": ";", "num_memories": 5}
    right, written = list[float](), other.read_text()
    for labels in (["weather"], ["weather", "alien"]):
        other.write_text(written + "\n" + json.dumps({"text": "hail and hail", "labels": labels}))
        model = zoo.fit(train, validation_file=str(other), run_dir=tmp_path / f"{len(labels)}", **columns)
        right.append(model.answer.lines[-1].right)
    assert right[1] < right[0]
    added = done(zoo_command("memory", "add", tmp_path / "2", train, "--tune", "true")).out
    assert "on the 40 rows" in added
    refusal(zoo_command("memory", "add", tmp_path / "2", other), "has the label 'alien', which the model")


def test_guessed_sets_keep_the_shares_of_labels() -> None:
    scores, sets = torch.rand(40, 3), np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
    guessed = guess_sets(scores, sets)
    assert guessed.sum(axis=0).tolist() == [30, 10, 0]
    assert scores[:, 1][guessed[:, 1] > 0].min() > scores[:, 1][guessed[:, 1] == 0].max()


def test_names_and_unlabelled_texts_help_sets() -> None:
    random, centers = np.random.default_rng(0), 3 * np.eye(3, 8)
    sets = random.integers(0, 2, (200, 3))
    texts = torch.from_numpy(sets @ centers + random.normal(size=(200, 8))).float()
    names = Guides(["a", "b", "c"], np.arange(3), torch.from_numpy(centers).float())
    both = Guides(
        [*names.texts, *map(str, range(100))],
        np.append(names.target, np.full(100, UNLABELLED)),
        torch.cat([torch.from_numpy(centers).float(), texts[100:]]),
    )
    scores = []
    for guides in (None, names, both):
        member = (Regression if guides is None else SelfTrained)(Sizes(3, 0, 8, 0, multilabel=True))
        member.fit(Readings([""] * 6, vectors=texts[:6], guides=guides), sets[:6])
        odds = member(Readings([""] * 100, vectors=texts[100:])).scores
        scores.append(metrics.average_precision_score(sets[100:], odds))
    assert scores[0] < scores[1] < scores[2]


def test_knn_bilstm_votes_for_sets(tmp_path: Path) -> None:
    table, test = write_sets(tmp_path / "train.jsonl", 300, 1), write_sets(tmp_path / "test.jsonl", 100, 2)
    options = {"label_column": "labels", "label_separator": ";", "num_memories": 10, "validation_split": 0.2}
    adam = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.02}}
    model = {"features": "M2", "attention": "softmax", "hidden_size": 16, "optimizer": adam}
    options |= {"trainer": {"max_epochs": 5}, "run_dir": tmp_path / "run"}
    found = zoo.fit(table, model="KNNBiLSTM", model_options=model, **options)
    best = read_json(tmp_path / "run" / "summary.json")["best"]
    assert best["score"] == best["metrics"]["val/mean_average_precision"]
    assert best["metrics"]["val/micro_f1"] > 0.6  # by the rule, which is fitted after the best epoch
    assert found.model.network.rule.tolist() != [0.5, 0.0]
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    predictions = found.predict([row["text"] for row in rows])
    binarizer = MultiLabelBinarizer(classes=LABELS).fit([])
    truth = binarizer.transform([row["labels"] for row in rows])
    answers = binarizer.transform([[one.label for one in each.of_labels] for each in predictions])
    assert metrics.f1_score(truth, answers, average="micro") > 0.65
    with refused(match="a TextCNN predicts one label a text; use a MemoryEnsemble or a KNN"):
        zoo.fit(["a", "b"], [["x"], []], model="TextCNN")


def test_memory_does_not_help_with_random_sets() -> None:
    random, pairs = np.random.default_rng(0), distinct_sentences(80, 7)
    sets = [[label for label in LABELS if random.random() < 0.3] for _ in pairs]
    assert "helps" not in zoo.fit([text for text, _ in pairs], sets).answer.sentence()


def test_matrix_of_scikit_learn() -> None:
    pairs = distinct_sentences(60, 5, LABELS)
    texts = [text for text, _ in pairs]
    sets = pd.DataFrame([[label == each for each in LABELS] for _, label in pairs], columns=LABELS)
    fitted = zoo.MemoryClassifier(data_options={"label_separator": "|"}).fit(texts[:45], sets[:45])
    assert fitted.classes_.tolist() == fitted.model_.model.labels == list(LABELS)
    assert metrics.f1_score(sets[45:], fitted.predict(texts[45:]), average="micro") > 0.9
    assert fitted.predict_proba(texts[45:]).shape == (15, 3)
    both, zebra = pd.DataFrame([[1.0, 1.0, 0.0]], columns=LABELS), ["zebra unicorn"]
    assert fitted.partial_fit(zebra, both).predict(zebra).tolist() == both.to_numpy().tolist()
    assert fitted.explain(["zebra unicorns"])[0].memories[0].label == "|".join(LABELS[:2])
    for wrong in (both[[*LABELS[:2]]], both.to_numpy()):
        with refused(match="the columns are not those of the first rows"):
            fitted.partial_fit(["zebra"], wrong)
    for wrong in (2 * sets, sets[:0]):
        with refused(match="has rows of 0 and 1"):
            fitted.partial_fit(texts, wrong)
    with refused(match="label_separator is for sets of labels; give a matrix"):
        fitted.fit(texts, [label for _, label in pairs])
