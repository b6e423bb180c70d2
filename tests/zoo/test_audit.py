"""`zoo audit`: labels that are probably wrong are listed first, and corrected by a table."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.zoo.conftest import (
    COMMON_WORDS,
    LABELS,
    QUIET_TRAINER,
    SMALL_DATA,
    TOPIC_WORDS,
    Edit,
    Fit,
    Zoo,
    done,
    read_csv,
    refusal,
    write_table,
)
from tests.zoo.ensemble.conftest import run as run
from tests.zoo.ensemble.conftest import write_vectors
from zoo import audit as audit_module
from zoo.audit import audit, judge, share_of_errors
from zoo.ensemble.metric import EncoderMetric
from zoo.ensemble.model import MemoryEnsemble
from zoo.ensemble.new_labels import votes_of

#: Row -> the wrong label that it gets.
PLANTED = {4: "fruit", 20: "metal", 44: "fruit"}


def clean_rows(number: int) -> list[tuple[str, str]]:
    """Made-up (text, label) pairs without duplicates: three words of the label's topic and three others."""
    random, pairs = np.random.default_rng(0), []
    for row in range(number):
        label = LABELS[row % len(LABELS)]
        words = [*random.choice(TOPIC_WORDS[label], 3, replace=False), *random.choice(COMMON_WORDS, 2)]
        pairs.append((" ".join([*words, f"x{row}"]), label))
    return pairs


ROWS = [(text, PLANTED.get(row, label)) for row, (text, label) in enumerate(clean_rows(90))]


def memory_of(folder: Path, rows: list[tuple[str, str]] = ROWS) -> FolderMemory:
    texts, labels = zip(*rows, strict=True)
    return FolderMemory.build(Rows.from_lists(texts, labels, source="rows"), EmbeddedRetriever(), folder)


def test_planted_errors_are_found_and_corrected(run: Fit, zoo_command: Zoo, tmp_path: Path) -> None:
    train = write_table(tmp_path / "noisy.csv", ROWS)
    folder = run("run", "--data.validation_split=0", "--model.members=[lexical,lexical_vote]", table=train)
    result = done(zoo_command("audit", folder, "--output=audit.csv"))
    assert "audit.csv: 90 rows; about" in result.out
    assert result.out.endswith("probably wrong; 0 rows have the text of a row with another label\n")
    rows = read_csv("audit.csv")
    assert len(rows) == 90
    assert {int(row["id"]) for row in rows[:3]} == set(PLANTED)
    for row in rows[:3]:
        number = int(row["id"])
        assert row["text"] == ROWS[number][0]
        assert row["label"] == PLANTED[number]
        assert row["suggested"] == LABELS[number % 3]
        ids = json.loads(row["contradicting_ids"])
        assert 1 <= len(ids) <= 3
        assert [ROWS[int(each)][0] for each in ids] == json.loads(row["contradicting_texts"])
        assert set(json.loads(row["contradicting_labels"])) == {row["suggested"]}
    suspicions = [float(row["suspicion"]) for row in rows]
    assert suspicions == sorted(suspicions, reverse=True)
    assert suspicions[2] > 0.5 > suspicions[3]
    # In Python, the same rows.
    found = audit(zoo.load(folder))
    assert [row.id for row in found.rows] == [row["id"] for row in rows]

    # A table in which nobody confirmed anything changes nothing; a confirmed label makes a version.
    result = zoo_command("memory", "relabel", folder, "--file=audit.csv")
    assert result.out.splitlines()[0].endswith("version 1, 90 memories, 0 relabelled"), result.err
    Path("confirmed.csv").write_text(f"id,label\n{rows[0]['id']},{rows[0]['suggested']}\n")
    result = zoo_command("memory", "relabel", folder, "--file=confirmed.csv")
    assert result.out.splitlines()[0].endswith("version 2, 90 memories, 1 relabelled"), result.err
    after = {row.id: row for row in audit(zoo.load(folder)).rows}
    assert after[rows[0]["id"]].suspicion < 0.5
    assert after[rows[0]["id"]].label == rows[0]["suggested"]


def test_duplicates_of_a_row_do_not_vouch_for_it(tmp_path: Path) -> None:
    text, label = ROWS[7]
    wrong = next(each for each in LABELS if each != label)
    duplicates = [(text.upper() + mark, wrong) for mark in (".", "!", "?", "...")]
    rows = [*ROWS[:7], (text, wrong), *ROWS[8:], *duplicates]
    found = audit(memory_of(tmp_path / "memory", rows))
    suspects = {"7", *map(str, range(len(ROWS), len(rows)))}
    first = [row for row in found.rows if row.id in suspects]
    assert {row.suggested for row in first} == {label}
    assert not suspects & {each.id for row in first for each in row.contradictions}
    assert found.conflicts == 0


def test_conflicts_are_counted_and_shown(tmp_path: Path) -> None:
    text, label = ROWS[7]
    wrong = next(each for each in LABELS if each != label)
    found = audit(memory_of(tmp_path / "memory", [*ROWS, (text + "!", wrong)]))
    assert found.conflicts == 2
    rows = {row.id: row for row in found.rows}
    assert rows["90"].contradictions[0] == ("7", text, label)
    assert rows["7"].contradictions == [("90", text + "!", wrong)]
    assert rows["90"].suspicion > 0.5 > rows["7"].suspicion


def test_labels_keep_their_blanks(tmp_path: Path) -> None:
    memory = memory_of(tmp_path / "memory", [(text, f" {label}") for text, label in ROWS])
    assert {row.suggested for row in audit(memory).rows} <= {f" {label}" for label in LABELS}


def test_vectors_of_a_frozen_encoder_are_read(
    run: Fit, zoo_command: Zoo, edit: Edit, tiny_bert: Path, tmp_path: Path
) -> None:
    train = write_table(tmp_path / "noisy.csv", [*ROWS, (ROWS[0][0].upper(), "fruit")])
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=0", "--data.validation_split=0"]
    folder = run("bert", *options, "--model.members=[lexical_vote,dense_vote]", table=train)
    predictor = zoo.load(folder)
    held_out, _ = judge(predictor.memory, predictor.memory.labels(), predictor)
    of_members = votes_of(held_out.outputs)
    assert of_members.keys() == {"lexical_vote", "dense_vote"}
    for votes in of_members.values():
        for row in (0, 90):
            assert not {0, 90} & set(votes.rows[row].tolist())
    assert len(audit(predictor).rows) == 91
    # Right after an addition, nothing has read the memory.
    edit("add", folder, [("quince tart", "fruit")])
    assert zoo_command("audit", folder).out.startswith("audit.csv: 92 rows")


def test_a_learned_metric_does_not_know_the_row_that_it_judges(
    run: Fit, edit: Edit, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random labels of four classes, and an encoder that learns them by heart: none is more probable than another."""
    likelihoods = cycle([1.0, 0.0])  # tuned, as it is
    monkeypatch.setattr(EncoderMetric, "_likelihoods", lambda self, *_: np.array([next(likelihoods)]))
    random, names = np.random.default_rng(0), ["a", "b", "c", "d"]
    label_of = {text: str(random.choice(names)) for text, _ in clean_rows(160)}
    rows = list(label_of.items())
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=1", "--data.validation_split=0"]
    table = write_table(tmp_path / "noise.csv", rows[:120])
    folder = run("bert", *options, "--model.members=[encoder,dense_vote]", table=table)
    edit("add", folder, rows[120:])
    predictor = zoo.load(folder)
    weights = {name: value.clone() for name, value in predictor.model.network.encoder.state_dict().items()}
    known, size = set(label_of), predictor.model.vector_size

    def tune(self: EncoderMetric, plan: object, rows: np.ndarray, guides: object) -> None:
        known.clear()
        known.update(self.texts[row] for row in rows)

    def encode(self: object, data: object, texts: list[str]) -> np.ndarray:
        vectors = random.normal(size=(len(texts), size)).astype(np.float32)
        for row, text in enumerate(texts):
            if text in known:
                vectors[row] = np.eye(size)[names.index(label_of[text])]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    monkeypatch.setattr(EncoderMetric, "_tune_on", tune)
    monkeypatch.setattr(MemoryEnsemble, "encode", encode)
    found = audit(predictor)
    assert len(found.rows) == 160
    assert np.mean([1 - row.suspicion for row in found.rows]) == pytest.approx(0.25, abs=0.04)
    after = predictor.model.network.encoder.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in weights.items())
    # The encoder in use knows all rows.
    known.update(label_of)
    predictor.model.network.encoder_before = None
    assert np.mean([1 - row.suspicion for row in audit(predictor).rows]) > 0.4


def test_an_encoder_that_has_learned_the_labels_is_not_read(
    run: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pre-trained word vectors have not."""
    words = sorted({word for text, _ in ROWS for word in text.split()})
    vectors = write_vectors(tmp_path / "vectors.txt", words)
    train = write_table(tmp_path / "noisy.csv", ROWS)
    options = [f"--data.word_vectors={vectors}", "--model.members=[bag,lexical_vote]"]
    predictor = zoo.load(run("run", *options, table=train))
    given = []
    monkeypatch.setattr(audit_module, "cross_judge", given.append)
    judge(predictor.memory, predictor.memory.labels(), predictor)
    (rows,) = given
    assert rows.readings.vectors is None
    assert rows.readings.bags.shape == (len(predictor.memory), 7)


def test_a_model_without_memory_is_refused(zoo_command: Zoo, train_csv: Path) -> None:
    options = ["--model=TfidfSVM", *SMALL_DATA, *QUIET_TRAINER, f"--data.train_file={train_csv}"]
    done(zoo_command("fit", *options, "--run_dir=svm"))
    assert "make a memory of the rows with `zoo index" in refusal(zoo_command("audit", "svm"))


def test_other_classifiers_are_audited_by_their_texts(trained_run: Path, zoo_command: Zoo) -> None:
    done(zoo_command("audit", trained_run))
    memory = zoo.load(trained_run).memory
    assert audit(zoo.load(trained_run)) == audit(memory)
    assert len(read_csv("audit.csv")) == len(memory)


def test_what_is_refused(zoo_command: Zoo, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory_of(memory)
    Path("bad.csv").write_text("id,suggested\n3,metal\n")
    refusal(zoo_command("memory", "relabel", memory, "--file=bad.csv"), "label")
    assert FolderMemory(memory, EmbeddedRetriever()).version == 1
    assert "names no file" in refusal(zoo_command("audit", memory, "--output="))
    for name, rows, expected in (
        ("one", [("a", "x"), ("b", "x")], "has only the label 'x'"),
        ("single", [("same", "x"), ("Same!", "y")], "a single text"),
    ):
        with pytest.raises(InputError, match=expected):
            audit(memory_of(tmp_path / name, rows))
    unlabelled = FolderMemory.build(Rows.from_lists(["a", "b"]), EmbeddedRetriever(), tmp_path / "none")
    with pytest.raises(InputError, match="has no labels"):
        audit(unlabelled)


def test_the_share_of_errors_is_that_of_the_surest_fifth() -> None:
    sure, unsure = [[0.9, 0.1]] * 4, [[0.4, 0.6]] * 16
    probabilities = np.array([*unsure, *sure])
    target = np.array([*[0] * 16, 0, 1, 0, 0])
    assert share_of_errors(probabilities, target) == 0.25
