"""`zoo inspect`: the paper's rules against plain loops, and its files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.zoo.conftest import Result
from tests.zoo.retrieval_runs import trained
from zoo.inspection.keywords import Rules, allocate_topics, find_keywords, words_by_cell
from zoo.tasks.retrieval.predictor import ReadText

Command = Callable[..., Result]

CLICKS = Path("clicks")
QUERY, DOCUMENT = "where is the old apple", "snow and apple near the storm of iron"


def made_up(y: list[list[float]], directions: int = 1) -> ReadText:
    words = [f"w{position}" for position in range(len(y))]
    return ReadText(" ".join(words), words, {"state": np.array(y, np.float32)}, directions)


def plain_counts(y: np.ndarray, top: int, change: float) -> list[int | None]:
    """The number of the most active cells that change strongly at each word, word by word and cell by cell."""
    cells = sorted(range(y.shape[1]), key=lambda cell: -abs(y[-1, cell]))[:top]
    counts: list[int | None] = [None]
    for t in range(1, len(y)):
        counts.append(sum(abs(y[t, c] - y[t - 1, c]) > change * abs(y[-1, c]) for c in cells))
    return counts


def test_the_rule_on_numbers_by_hand() -> None:
    # Cells 1 and 3 are the most active at the end; cell 1 changes at w1 and w2, cell 3 at w2 alone.
    y = [[0.1, 0.0, 0.5], [0.5, 0.3, 0.5], [1.0, 0.0, -0.5]]
    keywords = find_keywords(made_up(y), Rules(top=2, change=0.3, share=0.5))
    (activity,) = keywords.activities
    assert activity.cells.tolist() == [1, 3]
    assert activity.counts == [None, 1, 2]
    assert activity.credited.tolist() == [[False, False], [True, False], [True, True]]
    assert keywords.is_keyword == [False, False, True]  # one of two is not more than half
    assert find_keywords(made_up(y), Rules(top=2, change=0.3, share=0.4)).is_keyword == [False, True, True]
    assert find_keywords(made_up(y), Rules(top=9, change=0.3)).activities[0].cells.tolist() == [1, 3, 2]


def test_both_directions_must_agree_and_the_first_word_has_the_other_alone() -> None:
    rising = [[0.0], [1.0], [2.0], [2.0]]
    # Backwards the last word is read first; the change at w0 is that from w1.
    backwards = [[3.0], [1.0], [1.0], [0.9]]
    both = [left + right for left, right in zip(rising, backwards, strict=True)]
    keywords = find_keywords(made_up(both, 2), Rules())
    assert [activity.direction for activity in keywords.activities] == ["left to right", "right to left"]
    assert [activity.cells.tolist() for activity in keywords.activities] == [[1], [2]]
    assert keywords.activities[0].counts == [None, 1, 1, 0]
    assert keywords.activities[1].counts == [1, 0, 0, None]
    assert keywords.is_keyword == [True, False, False, False]
    for text in (made_up([]), made_up([[0.3]])):
        text = text._replace(parts={"state": text.parts["state"].reshape(-1, 1)})
        assert not any(find_keywords(text, Rules()).is_keyword)


@pytest.mark.parametrize(
    "options",
    [
        ["--model.bidirectional=true"],
        ["--model.cell=rnn"],
        ["--model.peepholes=true", "--model.forget_gate=true", "--model.tied=false"],
    ],
)
def test_a_trained_model_against_a_plain_loop(zoo_command: Command, options: list[str]) -> None:
    predictor = zoo.load(trained(zoo_command, CLICKS, "run", *options, hidden_size=12))
    texts = [QUERY, "", DOCUMENT, "rain", "Rain " * 50]
    for queries in (True, False):
        traces = predictor.trace(texts, queries=queries, batch_size=2)
        vectors = (predictor.encode_queries if queries else predictor.encode)(texts)
        assert traces[0].words == QUERY.split()
        assert len(traces[4].words) == (16 if queries else 32)
        assert set(traces[4].words) == {"rain"}
        for trace, vector in zip(traces, vectors, strict=True):
            state, directions = trace.parts["state"], trace.directions
            assert all(len(part) == len(trace.words) for part in trace.parts.values())
            if not len(state):
                continue
            halves = np.split(state, directions, axis=1)
            # The embedding is the state at the last word; backwards, that is the first.
            ends = np.concatenate([half[-1 if number == 0 else 0] for number, half in enumerate(halves)])
            np.testing.assert_allclose(ends / np.linalg.norm(ends), vector, atol=1e-5)
            keywords = find_keywords(trace, Rules())
            expected = [plain_counts(halves[0], 10, 0.2)]
            if directions == 2:
                expected.append(plain_counts(halves[1][::-1], 10, 0.2)[::-1])
            assert [activity.counts for activity in keywords.activities] == expected
            for word, is_keyword in enumerate(keywords.is_keyword):
                counts = [count for direction in expected if (count := direction[word]) is not None]
                assert is_keyword == (len(counts) > 0 and min(counts) > 4)
            for gate in ("input_gate", "output_gate", "forget_gate"):
                if gate in trace.parts:
                    assert (trace.parts[gate] > 0).all()
                    assert (trace.parts[gate] < 1).all()
            if "cell" in trace.parts and directions == 1:
                y = trace.parts["output_gate"] * np.tanh(trace.parts["cell"])
                np.testing.assert_allclose(state, y, atol=1e-6)


def test_topics_against_a_plain_loop(zoo_command: Command) -> None:
    predictor = zoo.load(trained(zoo_command, CLICKS, "run", "--model.bidirectional=true", hidden_size=12))
    texts = [json.loads(line)["text"] for line in (CLICKS / "queries.jsonl").read_text().splitlines()]
    rules = Rules(change=0.1, topic_cells=3)
    read = [find_keywords(trace, rules) for trace in predictor.trace(texts, queries=True)]
    topics = list(allocate_topics(read, rules))
    expected = []
    for keywords in read:
        for activity in keywords.activities:
            for number in range(3):
                words = [
                    word
                    for position, word in enumerate(keywords.text.words)
                    if keywords.is_keyword[position] and activity.credited[position, number]
                ]
                if words:
                    expected.append((keywords.text.text, int(activity.cells[number]), words))
    assert [tuple(topic) for topic in topics] == expected
    assert expected
    for cell, words in words_by_cell(topics).items():
        for word, number in words:
            assert number == sum(word in topic.words for topic in topics if topic.cell == cell)
        assert [number for _, number in words] == sorted((number for _, number in words), reverse=True)


def inspect(zoo_command: Command, *arguments: object) -> Result:
    result = zoo_command("inspect", "--output=seen", *arguments)
    assert result.code == 0, result.err
    return result


def read(name: str) -> list[dict[str, str]]:
    with Path("seen", name).open() as file:
        return list(csv.DictReader(file))


def test_the_files(zoo_command: Command) -> None:
    lstm = trained(zoo_command, CLICKS, "lstm", "--model.bidirectional=true", hidden_size=12)
    rnn = trained(zoo_command, CLICKS, "rnn", "--model.cell=rnn", hidden_size=12)
    result = inspect(
        zoo_command,
        f"--ckpt_path={lstm}",
        f"--compare_with=[{rnn}]",
        "--query",
        QUERY,
        "--document",
        DOCUMENT,
        "--queries=clicks/queries.jsonl",
        "--change=0.1",
    )
    contents = json.loads(Path("seen/inspection.json").read_text())
    predictor = zoo.load(lstm)
    trace = predictor.trace([QUERY], queries=True)[0]
    first = contents["texts"][0]
    assert (first["checkpoint"], first["side"], first["words"]) == (lstm, "query", QUERY.split())
    assert set(first["parts"]) == {"state", "cell", "input_gate", "output_gate"}
    np.testing.assert_allclose(first["parts"]["cell"], trace.parts["cell"], atol=1e-6)
    cosine = float(predictor.encode_queries([QUERY])[0] @ predictor.encode([DOCUMENT])[0])
    assert contents["relevance"][lstm] == pytest.approx(cosine, abs=1e-6)
    lines = read("keywords.csv")
    texts = {"query": QUERY.split(), "document": DOCUMENT.split()}
    assert [(line["checkpoint"], line["side"], line["word"]) for line in lines] == [
        (checkpoint, side, word)
        for checkpoint in (lstm, rnn)
        for side, words in texts.items()
        for word in words
    ]
    keywords = find_keywords(trace, Rules(change=0.1))
    written = [(line["left to right"], line["right to left"], line["keyword"]) for line in lines]
    for position in range(5):
        counts = [activity.counts[position] for activity in keywords.activities]
        expected = ["" if count is None else str(count) for count in counts]
        assert written[position] == (*expected, str(int(keywords.is_keyword[position])))
    assert all(line[1] == "" for line in written[-8:])  # the RNN reads in one direction
    for name in ("query_maps", "query_active", "document_maps", "document_active"):
        picture = np.asarray(Image.open(f"seen/{name}.png").convert("RGB"))
        assert min(picture.shape[:2]) > 200
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50
    topics = read("topics.csv")
    assert topics
    assert contents["topics"]
    assert {line["cell"] for line in topics} == set(contents["topics"])
    assert QUERY.split()[-1] in result.out
    assert f"relevance {cosine:.4f}" in result.out


def test_mistakes_are_named(zoo_command: Command, fit: Callable[..., Path]) -> None:
    checkpoint = trained(zoo_command, CLICKS, "run")
    dssm = trained(zoo_command, CLICKS, "dssm", model="RetrievalDSSM")
    classifier = fit("m1", "--model.features=M1", "--data.num_memories=0") / "checkpoints" / "last.ckpt"
    cases: list[tuple[Any, list[str], str]] = [
        (checkpoint, [], "give --query, --document or --queries"),
        (checkpoint, ["--query=rain", "--top=0"], "--top 0: must be 1 or more"),
        (checkpoint, ["--query=rain", "--change=-1"], "--change -1"),
        (checkpoint, ["--query=rain", "--share=1"], "--share 1.0"),
        (checkpoint, ["--queries=gone.txt"], "gone.txt"),
        (
            checkpoint,
            ["--queries=clicks/queries.jsonl", f"--compare_with=[{dssm}]"],
            "--compare_with: compares keywords",
        ),
        (dssm, ["--query=rain"], "a RetrievalDSSM has no cells to inspect; name an LSTMRNN"),
        (classifier, ["--query=rain"], "a KNNBiLSTM has no cells to inspect; name an LSTMRNN"),
        ("gone.ckpt", ["--query=rain"], "gone.ckpt: no such checkpoint"),
    ]
    for path, options, line in cases:
        result = zoo_command("inspect", f"--ckpt_path={path}", "--output=seen", *options)
        assert result.code == 2, (options, result.err)
        assert line in result.err.splitlines()[-1]
    # A text without words is no mistake.
    result = zoo_command(
        "inspect", f"--ckpt_path={checkpoint}", "--output=seen", "--query=", "--document=rain"
    )
    assert result.code == 0, result.err
