"""The answer of an ensemble counts no row whose duplicate its members have learned or can retrieve."""

from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from tests.zoo.conftest import Fit, Measure, Zoo, done, read_json, write_table
from tests.zoo.ensemble.conftest import distinct_sentences
from zoo.ensemble.answer import lines_of
from zoo.ensemble.member import Readings
from zoo.ensemble.outputs import Scores
from zoo.ensemble.pool import HeldOut, fit_pool

Pairs = list[tuple[str, str]]
#: Members that need no encoder.
FAST = "--model.members=[lexical,lexical_vote]"


def exact(rows: Pairs) -> Pairs:
    return [(f"{text.upper()}!", label) for text, label in rows]


def near(rows: Pairs, end: str = "s") -> Pairs:
    return [(f"{text}{end}", label) for text, label in rows]


@pytest.mark.parametrize(("copy", "name"), [(exact, "a duplicate"), (near, "a near-duplicate")])
def test_copies_of_training_rows_change_neither_weights_nor_table(
    run: Fit, measure: Measure, tmp_path: Path, copy: Callable[[Pairs], Pairs], name: str
) -> None:
    """With random labels, they made the memory help by 34 points."""
    training, fresh = distinct_sentences(120, seed=1, noise=True), distinct_sentences(60, seed=2, noise=True)
    table = write_table(tmp_path / "train.csv", training)
    answers, tests = [], []
    for title, rows in {"fresh": fresh, "both": [*fresh, *copy(training[:50])]}.items():
        held_out = write_table(tmp_path / f"{title}.csv", rows)
        folder = run(title, FAST, f"--data.validation_file={held_out}", table=table)
        answers.append(read_json(folder / "answer.json"))
        tests.append(measure(folder, rows)["answer"])
    for alone, together in (answers, tests):
        assert together["rows"] == alone["rows"]
        assert together["rows"][0]["texts"] == 60
        assert together["weights"] == alone["weights"]
        sentence = f" Not counted: 50 with {name} among the training rows or in the memory."
        assert together["sentence"] == alone["sentence"] + sentence


def test_a_table_of_copies_counts_training_rows(shared_run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    training = distinct_sentences(60, seed=1)
    copies = write_table(tmp_path / "copies.csv", exact(training[:20]))
    folder = shared_run(training, FAST, validation=exact(training[:20]))
    answer = read_json(folder / "answer.json")
    assert answer["split"] == "training"
    assert answer["rows"][0]["texts"] == 60
    assert any(note.startswith("No validation row can be counted") for note in answer["notes"])
    command = done(zoo_command("test", f"--ckpt_path={folder}", f"--data.test_file={copies}"))
    assert "No test row can be counted: 20 with a duplicate" in command.out


def test_duplicates_are_one_row_and_stay_in_one_fold(shared_run: Fit) -> None:
    """Labels at random, each text three times: nothing can be learned, and nothing else is claimed."""
    random = np.random.default_rng(0)
    texts, labels = distinct_sentences(60, seed=1), [str(label) for label in random.integers(0, 4, 60)]
    rows = [(text, label) for (text, _), label in zip(texts, labels, strict=True)]
    rows = [*rows, *exact(rows), *near(rows, "er")]
    answer = read_json(shared_run(rows, FAST, "--data.validation_split=0") / "answer.json")
    accuracy = {row["name"]: row["accuracy"] for row in answer["rows"]}
    assert answer["rows"][0]["texts"] == 180
    assert answer["notes"][0].startswith("Weights are fitted on 60 training rows")
    assert max(accuracy["lexical"], accuracy["lexical_vote"], accuracy["all"]) < 0.45


def test_equal_row_numbers_of_another_table_exclude_no_memory(
    run: Fit, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    excluded: list[int] = []
    without_duplicates = Readings.without_duplicates

    def record(self: Readings, own_ids: Sequence[str] | None = None) -> Readings:
        readings = without_duplicates(self, own_ids)
        excluded.extend(map(len, readings.excluded or []))
        return readings

    monkeypatch.setattr(Readings, "without_duplicates", record)
    table = write_table(tmp_path / "train.csv", distinct_sentences(60, seed=1))
    other = write_table(tmp_path / "other.csv", distinct_sentences(60, seed=2))
    options = ["--model.members=[dense_vote]", f"--model.transformer={tiny_bert}", "--model.metric_steps=0"]
    options += ["--data.validation_split=0", "--data.memory_label_column=label"]
    run("other", *options, f"--data.memory={other}", table=table)
    assert excluded == [0] * 60
    excluded.clear()
    run("same", *options, f"--data.memory={table}", table=table)
    assert excluded == [1] * 60


def test_duplicates_among_the_rows_are_one_observation() -> None:
    """Errors and tests of groups of several sizes, against plain loops."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 5, size=40)
    keys = np.repeat(random.permutation(40), sizes)
    target = torch.from_numpy(random.integers(0, 3, len(keys)))
    table = {name: torch.from_numpy(random.normal(size=(len(keys), 3))) for name in ("other", "all")}
    counted = np.flatnonzero(keys != 7)
    right = {name: (values.argmax(dim=1) == target).numpy() for name, values in table.items()}
    line = lines_of({name: each[counted] for name, each in right.items()}, keys[counted], {})[0]
    n = len(counted)
    accuracy = right["other"][counted].mean()
    gain = right["all"].astype(int) - right["other"].astype(int)
    squares = differences = 0.0
    signs = []
    for key in set(keys[counted]):
        own = np.flatnonzero(keys == key)
        squares += (right["other"][own] - accuracy).sum() ** 2
        differences += (gain[own] - gain[counted].mean()).sum() ** 2
        signs.append(np.sign(gain[own].sum()))
    assert (line.texts, line.accuracy) == (n, pytest.approx(accuracy))
    assert line.standard_error == pytest.approx(sqrt(squares) / n)
    assert line.difference == pytest.approx(gain[counted].mean())
    assert line.difference_error == pytest.approx(sqrt(differences) / n)
    gained, lost = signs.count(1), signs.count(-1)
    assert line.p_value == pytest.approx(binomtest(gained, gained + lost).pvalue)


def test_duplicates_do_not_make_weights_more_certain() -> None:
    random = np.random.default_rng(0)
    target = torch.from_numpy(random.integers(0, 3, 60))
    outputs = {name: torch.from_numpy(random.normal(size=(60, 3))) for name in "abc"}
    once = HeldOut({name: Scores(each) for name, each in outputs.items()}, target, np.arange(60))
    many = HeldOut.join([once] * 20)
    assert fit_pool(many) == fit_pool(once)
