"""The texts of `zoo serve --pool`: which are asked, in what order, and what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from tests.zoo.conftest import TOPIC_WORDS, Zoo, refusal, sentences, write_table
from tests.zoo.serve.test_serve import client_of, post
from zoo.model_folder.folder import ModelFolder
from zoo.serve.live_model import LiveModel
from zoo.serve.pool import read_pool

TEXTS = [f"{text} {number}" for number, (text, _) in enumerate(sentences(20, seed=8))]
#: A new label, markup, and a mark that turns the direction of writing.
HOSTILE = "<b onclick=x>\u202e"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """20 texts, two duplicates, blanks, a row of another class, and a text of signs."""
    more = [TEXTS[0], f"{TEXTS[1].upper()}!", "", " ", "?!"]
    rows = [[text, "fruit" if number < 9 else ""] for number, text in enumerate([*TEXTS, *more])]
    return write_table(tmp_path / "pool.csv", [*rows, [HOSTILE, HOSTILE]])


def labelling(live: LiveModel, table: Path) -> TestClient:
    return client_of(live, pool=read_pool(str(table), live.current().folder))


def asked(client: TestClient, *skipped: int) -> Any:
    answer = client.get("/suggest", params={"skipped": skipped})
    assert answer.status_code == 200, answer.text
    return answer.json()


def label(client: TestClient, text: str, label: str, **options: Any) -> Any:
    return post(client, "/memory/add", rows=[{"text": text, "label": label}], **options)


def test_the_texts_that_differ_are_read(folder: Path, table: Path) -> None:
    model = ModelFolder.open(str(folder))
    rows = read_pool(str(table), model)
    assert list(rows.texts) == [*TEXTS, "?!", HOSTILE]
    assert rows.ids == [*map(str, range(20)), "24", "25"]
    assert rows.table.column("label").to_pylist() == ["fruit"] * 9 + [None] * 12 + [HOSTILE]
    alone = write_table(table.parent / "alone.csv", [[text] for text in TEXTS], ["text"])
    rows = read_pool(str(alone), model)
    assert (rows.ids, rows.labels) == ([str(number) for number in range(20)], None)


def test_every_text_is_asked_until_it_is_labelled(live: LiveModel, table: Path) -> None:
    client = labelling(live, table)
    table.unlink()  # it was read
    assert client.get("/version").json()["pool"] == str(table)
    label(client, TEXTS[3].title() + ".", "metal")
    seen, ways = set[str](), Counter[str]()
    for left in range(21, 0, -1):
        question = asked(client)
        record, text = question["prediction"], question["prediction"]["text"]
        assert (question["unlabelled"], question["texts"]) == (left, 22)
        assert question["memory_version"] == 23 - left
        assert record["probabilities"] == pytest.approx(post(client, "/predict", text=text)["probabilities"])
        number = int(question["id"])
        assert text == [*TEXTS, *" " * 4, "?!", HOSTILE][number]
        # A label that the model does not have is compared with nothing.
        assert question["label"] == ("fruit" if number < 9 else None)
        assert label(client, text, "fruit")["added"] == 1
        seen.add(text)
        ways[question["drawn"]] += 1
    assert seen == {*TEXTS, "?!", HOSTILE} - {TEXTS[3]}
    assert ways["by model"] > 4
    assert asked(client) == {"row": None, "texts": 22, "unlabelled": 0, "memory_version": 23}


def test_an_answer_is_used_at_once(live: LiveModel, tmp_path: Path) -> None:
    texts = ["a zebra of blue", "the zebra of blue"]
    client = labelling(live, write_table(tmp_path / "pool.csv", [[text] for text in texts], ["text"]))
    before = asked(client)["prediction"]
    other = min(TOPIC_WORDS.keys() - {before["label"]})
    label(client, before["text"], other)
    after = asked(client)["prediction"]
    assert {before["text"], after["text"]} == {*texts}
    assert post(client, "/predict", text=before["text"])["label"] == other
    # A class that somebody adds meanwhile can be chosen at once.
    label(client, "a striped okapi", HOSTILE, new_labels=True)
    assert HOSTILE in asked(client)["prediction"]["probabilities"]


def test_skipped_texts_are_not_asked(live: LiveModel, table: Path) -> None:
    client = labelling(live, table)
    rows = list[int]()
    for _ in range(22):
        rows.append(asked(client, *rows)["row"])
    assert sorted(rows) == list(range(22))
    assert asked(client, *rows, -1, 10**30)["row"] is None
    for skipped, words in (("x", "integer"), (list(range(501)), "at most 500")):
        answer = client.get("/suggest", params={"skipped": skipped})
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text


def test_two_people_are_not_asked_what_the_other_has_labelled(live: LiveModel, table: Path) -> None:
    """Two models stand for two processes."""
    here, there = labelling(live, table), labelling(LiveModel(live.source), table)
    texts = list[str]()
    for _ in range(11):
        for client in (here, there):
            texts.append(asked(client)["prediction"]["text"])
            label(client, texts[-1], "metal")
    assert len({*texts}) == 22
    assert asked(here)["row"] is None
    again = label(there, texts[0], "metal")
    assert (again["added"], again["duplicates"]) == (0, 1)
    other = label(there, texts[0], "fruit")
    assert (other["added"], other["conflicting"]) == (1, 1)


def test_pools_are_refused_in_one_line(
    zoo_command: Zoo, folder: Path, live: LiveModel, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_of(live).get("/suggest").status_code == 404  # without a pool
    assert client_of(live).get("/version").json()["pool"] is None
    for name, rows, words in (
        ("empty", [], "no rows"),
        ("blank", [["text", "x"], [" ", "1"]], "all texts are empty"),
        ("other", [["words"], ["some"]], "no column 'text'; there are 'words'; name the columns as in the"),
    ):
        file = write_table(table.parent / f"{name}.csv", rows[1:], rows[0] if rows else ["text"])
        message = refusal(zoo_command("serve", folder, "--port=0", "--pool", file), f"--pool {file}", words)
        assert "text_column" not in message
    refusal(zoo_command("serve", folder, "--port=0", "--pool=gone.csv"), "--pool gone.csv", "no such file")
    served = live.current()
    monkeypatch.setattr(live, "current", lambda: served._replace(predictor=object()))
    with pytest.raises(ValueError, match="--pool: the model gives no labels"):
        client_of(live, pool=read_pool(str(table), served.folder))
    served.predictor.memory = None
    monkeypatch.setattr(live, "current", lambda: served)
    with pytest.raises(ValueError, match="reads no memory"):
        client_of(live, pool=read_pool(str(table), served.folder))
