"""Keywords and topics of the LSTM-RNN's page: the rules on numbers by hand, and the files."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.zoo.conftest import Zoo, read_csv
from tests.zoo.examples import EXAMPLES, imported
from tests.zoo.retrieval_runs import trained

SCRIPT = EXAMPLES / "lstm_rnn" / "keywords.py"


@pytest.fixture(scope="module")
def script() -> Any:
    return imported(SCRIPT)


def made_up(script: Any, y: list[list[float]], directions: int = 1) -> Any:
    words = [f"w{position}" for position in range(len(y))]
    return script.ReadText(" ".join(words), words, {"state": np.array(y, np.float32)}, directions)


def test_the_rules_on_numbers_by_hand(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOP": 2, "CHANGE": 0.3, "SHARE": 0.5}.items():
        monkeypatch.setattr(script, name, value)
    # Cells 1 and 3 are the most active at the end; cell 1 changes at w1 and w2, cell 3 at w2 alone.
    text = made_up(script, [[0.1, 0.0, 0.5], [0.5, 0.3, 0.5], [1.0, 0.0, -0.5]])
    (activity,) = script.find_activities(text)
    assert activity.cells.tolist() == [1, 3]
    assert activity.counts == [None, 1, 2]
    assert activity.credited.tolist() == [[False, False], [True, False], [True, True]]
    assert script.find_keywords([activity]) == [False, False, True]  # one of two is not more than half
    assert script.find_topics(text) == [(1, ["w2"]), (3, ["w2"])]


def test_both_directions_must_agree_and_the_first_word_has_the_other_alone(script: Any) -> None:
    # Backwards the last word is read first; the change at w0 is that from w1.
    both = [[0.0, 3.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.9]]
    activities = script.find_activities(made_up(script, both, 2))
    assert [activity.cells.tolist() for activity in activities] == [[1], [2]]
    assert [activity.counts for activity in activities] == [[None, 1, 1, 0], [1, 0, 0, None]]
    assert script.find_keywords(activities) == [True, False, False, False]
    one_word = script.find_activities(made_up(script, [[0.3]]))
    assert script.find_keywords(one_word) == [False]


def test_the_files_of_a_trained_model(script: Any, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained(zoo_command, Path("clicks"), "run", "--model.bidirectional=true", hidden_size=12)
    texts = {"query": "where is the old apple", "document": "snow and apple near the storm"}
    options = [word for side, text in texts.items() for word in (f"--{side}", text)]
    options += ["--queries=clicks/queries.jsonl", "--output=seen"]
    monkeypatch.setattr(sys, "argv", ["keywords.py", model, *options])
    script.main()
    rows = read_csv("seen/keywords.csv")
    assert [row["word"] for row in rows] == [word for text in texts.values() for word in text.split()]
    assert rows[0]["left to right"] == rows[4]["right to left"] == ""
    assert len(Path("seen/topics.csv").read_text().splitlines()) > 1
    for name in ("query_maps", "query_active", "document_maps", "document_active"):
        assert Path(f"seen/{name}.png").stat().st_size > 5000
