"""A served model: the answers of `zoo predict`, edits that every process sees at once, keys and limits."""

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
import httpx
import numpy as np
import uvicorn
from fastapi.testclient import TestClient

import zoo
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory, Retriever
from tests.zoo.conftest import Edit, Zoo, refusal, sentences, write_table
from zoo.serve import limits, live_model
from zoo.serve.app import make_app
from zoo.serve.bodies import Predicted
from zoo.serve.command import KEY, _listen
from zoo.serve.gathering import Gathering
from zoo.serve.limits import MOST_AT_ONCE
from zoo.serve.live_model import LiveModel, Served
from zoo.tasks.classification.held_out import HeldOutRows, calibration
from zoo.tasks.records import as_record

TEXTS = [text for text, _ in sentences(7, seed=3)]
NEW = {"text": "a quite new zebra", "label": "fruit"}
SECRET = "0123456789abcdef"


def client_of(live: LiveModel, **options: Any) -> TestClient:
    return TestClient(make_app(live, **options), base_url="http://127.0.0.1:8000")


@pytest.fixture
def client(live: LiveModel) -> TestClient:
    return client_of(live)


def post(client: TestClient, route: str, **body: Any) -> Any:
    answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def found(client: TestClient, text: str) -> list[str]:
    return [hit["text"] for hit in post(client, "/search", text=text, k=50)["hits"]]


def test_answers_are_those_of_predict(folder: Path, client: TestClient, zoo_command: Zoo) -> None:
    Path("lines.txt").write_text("\n".join(TEXTS) + "\n")
    result = zoo_command("predict", f"--ckpt_path={folder}", "--input=lines.txt", "--output=out.jsonl")
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert post(client, "/predict", texts=TEXTS) == {"predictions": lines}
    single = post(client, "/predict", text=TEXTS[0])
    assert single.keys() == lines[0].keys()
    assert single["label"] == lines[0]["label"]
    assert post(client, "/predict", text=TEXTS[0], memories=False) == {
        name: value for name, value in single.items() if name != "memories"
    }
    assert post(client, "/predict", texts=[]) == {"predictions": []}


def test_an_added_row_is_used_by_the_next_request_of_every_process(folder: Path, live: LiveModel) -> None:
    """Two models stand for two processes; the first change copies the memory that other runs share."""
    here, there = client_of(live), client_of(LiveModel(str(folder)))
    assert there.get("/health").json() == {"ready": True, "model": str(folder), "memory_version": 1}
    done = post(here, "/memory/add", rows=[NEW, NEW])
    assert (done["version"], done["added"], done["duplicates"], len(done["ids"])) == (2, 1, 1, 1)
    for client in (here, there):
        assert found(client, "zebra") == [NEW["text"]]
        assert client.get("/health").json()["memory_version"] == 2
    assert live.current().memory.location() == str(folder / "model" / "memory")
    # A later change opens the memory again, and not the network.
    network = live.current().predictor.model
    (row,) = post(there, "/memory/add", rows=[{**NEW, "text": "a striped okapi", "id": "mine"}])["ids"]
    assert row == "mine"
    assert found(here, "okapi") == ["a striped okapi"]
    assert live.current().predictor.model is network
    assert here.post("/predict", json={"text": "okapi"}).headers["X-Memory-Version"] == "3"


def test_rows_are_removed_and_relabelled(client: TestClient) -> None:
    (row,) = post(client, "/memory/add", rows=[NEW])["ids"]
    done = post(client, "/memory/relabel", labels={row: "metal"})
    assert (done["version"], done["changed"]) == (3, 1)
    assert client.get(f"/memory/rows/{row}").json()["label"] == "metal"
    done = post(client, "/memory/remove", ids=[row])
    assert (done["version"], done["changed"]) == (4, 1)
    assert (found(client, "zebra"), client.get(f"/memory/rows/{row}").status_code) == ([], 404)
    refused = client.post("/memory/remove", json={"ids": [row]})
    assert (refused.status_code, row in refused.json()["detail"]) == (400, True)
    assert client.get("/health").json()["memory_version"] == 4


@pytest.mark.parametrize(
    ("route", "edit"),
    [
        ("add", {"rows": [{"text": TEXTS[0], "label": "weather"}], "relabel": True}),
        ("add", {"rows": [{"text": TEXTS[0], "label": "music"}], "new_labels": True}),
        ("relabel", {"labels": {"2": "metal"}}),
        ("remove", {"ids": ["0", "1"]}),
    ],
)
def test_a_preview_is_what_the_edit_then_does(live: LiveModel, route: str, edit: PlainDict) -> None:
    client = client_of(live)
    texts = [*TEXTS, *live.current().memory.search([TEXTS[0]], 9).memories.texts]
    before = post(client, "/predict", texts=texts)["predictions"]
    found = post(client, "/memory/preview", edit=edit, texts=texts)
    assert client.get("/health").json()["memory_version"] == 1
    assert post(client, "/predict", texts=texts)["predictions"] == before
    done = post(client, f"/memory/{route}", **edit)
    after = post(client, "/predict", texts=texts)["predictions"]
    states = ([[each["label"], each["probability"]] for each in side] for side in (before, after))
    assert found["changes"] == [
        {"text": text, "before": old, "after": new}
        for text, old, new in zip(texts, *states, strict=True)
        if old[0] != new[0]
    ]
    assert found["version"] == done["version"] == 2
    shares = r"accuracy on held-out rows \(\d+\): [01]\.\d{4} -> [01]\.\d{4}; .*"
    assert re.fullmatch(shares, found["held_out"])


def test_a_wrong_preview_is_refused_in_words(live: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(live)
    for edit, status, words in (
        ({"labels": {"1": ""}, "new_labels": True}, 422, "edit.labels.labels.1: is empty"),
        ({}, 422, "edit.rows.rows: Field required"),
        (3, 422, "edit.rows: "),
        ({"ids": ["nowhere"]}, 400, "has no row with the id 'nowhere'"),
    ):
        answer = client.post("/memory/preview", json={"edit": edit, "texts": TEXTS})
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    waiting = threading.Event()
    monkeypatch.setattr(live, "preview", lambda *given: {"waited": waiting.wait(60)})
    with ThreadPoolExecutor() as threads:
        body = {"edit": {"ids": ["1"]}}
        both = [threads.submit(client.post, "/memory/preview", json=body) for _ in range(2)]
        refused = next(as_completed(both)).result()
        waiting.set()
        assert refused.status_code == 503
        assert sorted(each.result().status_code for each in both) == [200, 503]


def test_held_out_rows_in_pictures(client: TestClient, live: LiveModel) -> None:
    scores = live.current().predictor.held_out_rows()
    found = client.get("/calibration").json()
    assert found["rows"] == len(scores.is_right)
    assert found["accuracy"] == scores.is_right.mean()
    for point in found["coverage"]:
        answered = np.sort(scores.probability)[::-1][: round(point["answered"] * found["rows"])]
        is_answered = scores.probability >= answered[-1]
        assert point["error"] == pytest.approx(1 - scores.is_right[is_answered].mean())
        assert point["error"] <= point["bound"] <= 1
    assert found["coverage"][-1]["answered"] == 1
    assert (found["is_training"], found["is_current"]) == (False, True)
    post(client, "/memory/remove", ids=["1"])
    assert not client.get("/calibration").json()["is_current"]
    with pytest.raises(InputError, match="none of the held-out rows has an answer"):
        calibration(HeldOutRows(*[np.empty(0)] * 4))
    # By hand: equal probabilities share their accuracy.
    values = np.sort(np.repeat([0.2, 0.5, 0.9], [10, 60, 30]))
    tied = HeldOutRows(values, np.arange(100) % 2 == 0, values, values)
    assert {each["right"] for each in calibration(tied)["bins"]} == {0.5}


def test_the_history_and_the_way_back(client: TestClient) -> None:
    before = post(client, "/predict", texts=TEXTS)
    post(client, "/memory/add", rows=[NEW], note="why")
    done = post(client, "/memory/add", rows=[{**NEW, "label": "metal"}], relabel=True)
    assert (done["version"], done["added"], done["relabelled"]) == (3, 0, 1)
    expected = {"count": 1, "rows": [{**NEW, "id": "2:0", "label": "metal"}]}
    assert client.get("/memory/diff?from=1&to=3").json()["added"] == expected
    (suspect,) = client.get("/memory/audit").json()["rows"]
    assert (suspect["id"], suspect["label"]) == ("2:0", "metal")
    assert post(client, "/memory/revert", version=1, note="back")["version"] == 4
    assert post(client, "/predict", texts=TEXTS) == before
    logged = client.get("/memory/log?versions=3").json()["versions"]
    expected = [("+1", "why"), ("1 relabelled", None), ("back to 1", "back")]
    assert [(each["change"], each["note"]) for each in logged] == expected
    for route, status, words in (("?from=1&to=9", 400, "has no version 9"), ("?from=x&to=1", 422, "from: ")):
        answer = client.get(f"/memory/diff{route}")
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True)


def test_requests_in_flight_keep_their_version(
    live: LiveModel, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search waits within the old version while the row that it would return is added."""
    began, may_end = threading.Event(), threading.Event()
    search = FolderMemory.search

    def waiting(memory: FolderMemory, texts: Any, *options: Any) -> Any:
        if "slowly" in texts[0]:
            began.set()
            assert may_end.wait(60)
        return search(memory, texts, *options)

    monkeypatch.setattr(FolderMemory, "search", waiting)
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(post(client, "/search", text="slowly a zebra", k=90))
    )
    thread.start()
    assert began.wait(60)
    post(client, "/memory/add", rows=[NEW])
    assert found(client, "zebra") == [NEW["text"]]
    may_end.set()
    thread.join()
    assert answers[0]["memory_version"] == 1
    assert NEW["text"] not in [hit["text"] for hit in answers[0]["hits"]]


def test_weights_that_are_fitted_meanwhile_are_used(
    folder: Path, client: TestClient, edit: Edit, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = post(client, "/predict", texts=TEXTS)
    edit("tune", folder, sentences(40, seed=9))
    after = post(client, "/predict", texts=TEXTS)["predictions"]
    assert after != before["predictions"]
    predicted = [each.probability for each in zoo.load(folder).predict(TEXTS)]
    assert [each["probability"] for each in after] == pytest.approx(predicted)
    # A version that has other values follows while the next one is opened.
    edit("add", folder, [("a zebra", "fruit")])
    open_, revert = live_model._reopened, ("memory", "revert", folder, 1)
    monkeypatch.setattr(live_model, "_reopened", lambda *given: zoo_command(*revert) and open_(*given))
    versions = [client.post("/predict", json={"text": "a"}).headers["X-Memory-Version"] for _ in range(2)]
    assert versions == ["2", "3"]


def test_a_wrong_request_is_refused_and_changes_nothing(client: TestClient, live: LiveModel) -> None:
    json_type = {"Content-Type": "application/json"}
    long, name = "a" * 100_001, "l" * 1_001
    for route, body, status, word in (
        ("/predict", {"text": "a", "texts": ["b"]}, 422, "either"),
        ("/predict", {"texts": ["a"], "memory": False}, 422, "memory"),
        ("/predict", {"texts": [1]}, 422, "string"),
        ("/predict", {"texts": ["a"] * 1_025}, 413, "at most 1,024"),
        ("/predict", {"text": "a" * 4_000_000}, 413, "4,000,000 bytes"),
        ("/predict", {"texts": ["a", long]}, 422, "texts.1: String should have at most 100000"),
        ("/predict", {"texts": [long[:100_000]] * 3 + ["a"]}, 413, "300,001 characters"),
        ("/predict", {"text": " \n"}, 422, "text: is empty"),
        ("/predict", {"text": "a", "max_error": 0.001}, 400, "max_error=0.001"),
        ("/search", {"texts": ["a"] * 3, "k": 9_000}, 413, "27,000 hits"),
        ("/search", {"text": "a", "k": 0}, 422, "k: Input should be greater"),
        ("/search", {"text": ""}, 422, "text: is empty"),
        ("/memory/add", {"rows": []}, 422, "at least 1"),
        ("/memory/add", {"rows": [{"text": "x", "label": "unheard"}]}, 400, "by its memory with new_labels"),
        ("/memory/add", {"rows": [{"text": "x", "label": name}]}, 422, "rows.0.label: String should have at"),
        ("/memory/add", {"rows": [{"text": "", "id": " "}]}, 422, "or omit it; rows.0.id: is empty"),
        ("/memory/relabel", {"labels": {"0": ""}}, 422, "labels.0: is empty"),
        ("/memory/add", {"rows": [{"text": "x"}]}, 400, "label"),
        ("/memory/add", {"rows": [{**NEW, "id": "a"}, {**NEW, "text": "y"}]}, 400, "to all or to none"),
        ("/memory/remove", {"ids": ["unheard"]}, 400, "unheard"),
        ("/memory/revert", {"version": 2}, 400, "has no version 2"),
        ("/memory/add", {"rows": [NEW], "note": "n" * 501}, 400, "note: has 501 characters"),
    ):
        answer = client.post(route, json=body)
        assert (answer.status_code, word in answer.json()["detail"]) == (status, True), answer.text
        assert ("--" in answer.text, len(answer.text) < 500) == (False, True)
    assert "k: Input" in client.post("/search", json={"text": "a", "k": 0}).json()["detail"]
    # A body without a length is counted as it arrives; a page of another site sends no JSON, and has another name.
    chunks = iter([b" " * 900_000] * 9)
    assert client.post("/predict", content=chunks, headers=json_type).status_code == 413
    assert client.post("/predict", content='{"text": "a"}').status_code == 415
    assert client.post("/predict", json={"text": "a"}, headers={"Host": "example.org"}).status_code == 400
    assert client.post("/predict", content='{"text": "\\ud800"}', headers=json_type).status_code in (200, 422)
    assert live.current().memory_version == 1
    assert post(client, "/predict", text="a")["label"]


def test_a_key_opens_every_route_but_health_and_the_page(live: LiveModel) -> None:
    client = client_of(live, key=SECRET)
    assert client.get("/health").status_code == 200
    for file in ("/", "/page.js", "/page.css", "/page.svg"):
        headers = client.get(file).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'self'; frame-ancestors 'none'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert client.post(file, json={}).status_code == 405
    for given in (None, "Bearer wrong", f"Basic {SECRET}", "Bearer é", SECRET):
        headers = {} if given is None else {"Authorization": given.encode()}
        answer = client.get("/version", headers=headers)
        assert answer.status_code == 401, given
        assert SECRET not in answer.text
        assert client.post("/memory/remove", json={"ids": ["0"]}, headers=headers).status_code == 401
        assert client.get("/openapi.json", headers=headers).status_code == 401
    client.headers["Authorization"] = f"Bearer {SECRET}"
    assert client.get("/version", headers={"Host": "example.org"}).json()["memory_version"] == 1
    assert client.get("/openapi.json").json()["paths"].keys() >= {"/predict", "/memory/rows/{row_id}"}
    assert client.get("/docs").status_code == 404  # a page with scripts of another site
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert client.get("/version", headers={"Sec-Fetch-Site": site}).status_code == status


def test_health_waits_for_nothing(folder: Path, live: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread of the server is in use by a prediction, and further requests wait for one."""
    may_end = threading.Event()
    monkeypatch.setattr(live, "predict", lambda _, body: may_end.wait(60) and [{} for _ in body.all_texts()])
    with client_of(live) as client, ThreadPoolExecutor(MOST_AT_ONCE + 1) as pool:
        clients = [pool.submit(client.post, "/predict", json={"text": "a"}) for _ in range(MOST_AT_ONCE + 1)]
        refused = next(as_completed(clients)).result()
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
        assert client.get("/health").json()["ready"]
        may_end.set()
        assert [each.result().status_code for each in clients].count(200) == MOST_AT_ONCE
        (folder / "model" / "state.json").unlink()
        broken = client.get("/health")
        assert (broken.status_code, "state.json" in broken.json()["detail"]) == (500, True)


def test_writers_that_wait_block_no_other_request(live: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(live, "write", lambda _: may_end.wait(60) and {})
    with client_of(live) as client, ThreadPoolExecutor(50) as pool:  # FastAPI has 40 threads
        writers = [pool.submit(client.post, "/memory/add", json={"rows": [NEW]}) for _ in range(50)]
        wait_for(lambda: all(each.running() for each in writers))
        assert client.get("/version").json()["memory_version"] == 1
        assert not any(each.done() for each in writers)
        may_end.set()


def test_requests_that_wait_share_a_prediction(live: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others arrive while the first one is predicted; each has the answer, or the error, of its own texts."""
    made, sizes, predict = list[Gathering](), list[int](), live.predict
    errors = {"bad": InputError("is bad"), "stop": StopIteration(), "bug": RuntimeError("a bug")}
    texts = [*(text for text, _ in sentences(68, seed=5)), *errors]
    bodies: list[dict[str, Any]] = [{"text": text} for text in texts]
    bodies += [{"texts": TEXTS}, {"text": "rain", "confidence": 0.9}, {"texts": texts[:65]}]
    bodies += [{"text": "silent", "confidence": 0.8}] * 2
    errors["silent"] = InputError("no success")
    errors["silent"].__cause__ = ConnectionError()  # of a server, which is asked once for both

    def planned(served: Served, body: Predicted) -> list[PlainDict]:
        if not sizes:
            wait_for(lambda: len(made[0]._waiting) == len(bodies) - 1)
        sizes.append(len(body.all_texts()))
        for text in errors.keys() & body.all_texts():
            raise errors[text]
        return predict(served, body)

    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_app(live), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await asyncio.gather(*(client.post("/predict", json=body) for body in bodies))

    monkeypatch.setattr("zoo.serve.app.Gathering", lambda respond: made.append(Gathering(respond)) or made[0])
    monkeypatch.setattr(live, "predict", planned)
    answers = asyncio.run(asyncio.wait_for(send(), 60))
    assert sizes == [1, 64, 6 + len(TEXTS), *[1] * 6, len(TEXTS), 1, 65, 2]
    assert [answer.status_code for answer in answers] == [200] * 68 + [400, 500, 500] + [200] * 3 + [503] * 2
    predictor = live.current().predictor
    for body, answer in zip(bodies, answers, strict=True):
        if answer.status_code == 200:
            alone = [predictor.predict(text)[0] for text in body.get("texts", [body.get("text")])]
            records = answer.json().get("predictions", [answer.json()])
            assert [each["text"] for each in records] == [each.text for each in alone]
            assert [each["memories"] for each in records] == [as_record(each)["memories"] for each in alone]
            probabilities = [each["probability"] for each in records]
            assert probabilities == pytest.approx([each.probability for each in alone])


def test_an_answer_is_of_the_version_that_it_names(live: LiveModel) -> None:
    versions = [1]

    def write() -> None:
        for _ in range(3):
            done = post(client, "/memory/add", rows=[NEW])
            versions.append(done["version"])
            versions.append(post(client, "/memory/remove", ids=done["ids"])["version"])

    def read(_: int) -> set[int]:
        seen = set[int]()
        while not writer.done():
            acknowledged = versions[-1]
            answer = client.post("/predict", json={"text": NEW["text"]})
            version = int(answer.headers["X-Memory-Version"])
            has_row = NEW["text"] in [memory["text"] for memory in answer.json()["memories"]]
            assert (version >= acknowledged, has_row) == (True, version % 2 == 0)
            seen.add(version)
        return seen

    with client_of(live) as client, ThreadPoolExecutor(17) as pool:
        writer = pool.submit(write)
        assert len(set[int]().union(*pool.map(read, range(16)))) > 2
        writer.result()


@contextmanager
def serving(
    live: LiveModel, key: str | None = None, pool: Rows | None = None, port: int = 0
) -> Iterator[str]:
    """Serve a model in this process, and yield the address."""
    app = make_app(live, key, pool)
    config = uvicorn.Config(app, http=limits._Connection, ws="none", log_config=None)
    served, listening = uvicorn.Server(config), socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=served.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        served.should_exit = True
        thread.join()


def test_slow_connections_are_closed(live: LiveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second or two; there are at most 9."""
    monkeypatch.setattr(limits, "SECONDS", 1)
    monkeypatch.setattr(limits, "_MOST_CONNECTIONS", 9)
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    begun = [b"", b"GET /hea", head, head + b"Content-Length: 9\r\n\r\n{"]
    with serving(live) as url:
        place = "127.0.0.1", int(url.rpartition(":")[2].strip("/"))
        slow = [socket.create_connection(place, 60) for _ in range(30)]
        for number, connection in enumerate(slow):
            with suppress(OSError):  # closed, since there are too many
                connection.send(begun[number % len(begun)])
        assert call(f"{url}health")["ready"]
        for connection in slow:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        # A client that sends all of its body reads only then that it is too large.
        with socket.create_connection(place, 60) as connection:
            connection.sendall(head + b"Content-Length: 30000000\r\n\r\n" + b" " * 30_000_000)
            assert connection.recv(12) == b"HTTP/1.1 413"


def test_messages_that_clients_cause_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("asyncio", "uvicorn.error", "datamodules.corpora.rows"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    limits.log_once_a_minute()
    for _ in range(3):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").error("Exception", exc_info=ValueError("of this program"))
        context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many")}
        asyncio.new_event_loop().call_exception_handler(context)
        Rows.from_lists(["a NUL \0"])
    assert [len(each.message.splitlines()) for each in caplog.records] == [1] * 6
    assert sum("ulimit" in each.message and not each.exc_info for each in caplog.records) == 1


def test_options_are_refused_in_one_line(zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal(zoo_command("serve", "gone", "--host=0.0.0.0"), KEY, "127.0.0.1")
    refusal(zoo_command("serve", "gone", "--host=example.org"), KEY)
    refusal(zoo_command("serve", "gone", "--workers=0"), "--workers 0")
    refusal(zoo_command("serve", "gone", "--workers=2", "--device=cuda"), "--workers 2")
    refusal(zoo_command("serve", "gone", "--port=0"), "gone")
    with _listen("127.0.0.1", 0) as taken, socket.create_connection(taken.getsockname()):
        assert taken.accept()[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        refusal(zoo_command("serve", "gone", f"--port={taken.getsockname()[1]}"), "--port", "choose")
    monkeypatch.setenv(KEY, "short")
    assert "short" not in refusal(zoo_command("serve", "gone"), KEY, "16")


def test_a_retriever_without_index_leaves_the_index_of_the_other(live: LiveModel) -> None:
    memory = live.current().memory
    retriever: Retriever = memory.retriever
    other = retriever.without_index()
    other.close()
    assert memory.search(TEXTS, 3).rows.shape == (len(TEXTS), 3)
    assert other.describe() == retriever.describe()


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of two processes with a pool, whose file is deleted, and its URL."""
    pool = write_table(Path("pool.csv"), [["a quagga"]], ["text"])
    command = [sys.executable, "-m", "zoo", "serve", str(folder), "--port=0", "--workers=2", f"--pool={pool}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = process.stdout.readline().split()[1]
    pool.unlink()
    yield process, url
    process.kill()
    process.wait()


def test_a_model_that_cannot_be_loaded_ends_all_processes(folder: Path) -> None:
    """Uvicorn starts a process that failed again, without end."""
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    command = [sys.executable, "-m", "zoo", "serve", str(folder), "--port=0", "--workers=2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr.count("damaged")) == (2, 1), result.stderr


def call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", "Connection": "close"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def workers_of(process: int) -> list[int]:
    """The processes of uvicorn that answer."""
    children = map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def wait_for(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_over():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="lists processes")
def test_processes_share_memory_and_restart(server: tuple[subprocess.Popen[str], str], folder: Path) -> None:
    """They are killed while clients add rows: each acknowledged row is there, and once."""
    process, url = server
    acknowledged, is_over = list[str](), threading.Event()

    def add_rows(name: str) -> None:
        for number in count():
            if is_over.is_set():
                return
            with suppress(OSError, HTTPException):  # of a killed process: the row may be there or not
                text = f"added {name} {number}"
                call(f"{url}/memory/add", {"rows": [{**NEW, "text": text}]})
                acknowledged.append(text)

    def wait_for_rows(more: int = 3) -> None:
        before = len(acknowledged)
        wait_for(lambda: len(acknowledged) >= before + more)

    for version in range(2, 5):
        row = {**NEW, "text": f"zebra number {version}"}
        assert call(f"{url}/memory/add", {"rows": [row]})["version"] == version
        assert {call(f"{url}/health")["memory_version"] for _ in range(10)} == {version}
    assert len(workers_of(process.pid)) == 2
    with ThreadPoolExecutor(2) as pool:
        adding = pool.map(add_rows, "ab")
        try:
            for worker in workers_of(process.pid):
                wait_for_rows()
                os.kill(worker, 9)
            wait_for_rows()
        finally:
            is_over.set()
    assert [*adding] == [None, None]
    rows = FolderMemory(folder / "model" / "memory", EmbeddedRetriever()).rows
    added = [text for text in rows.texts if text.startswith("added ")]
    assert {*acknowledged} <= {*added}
    assert len({*added}) == len(added)

    def is_replaced() -> bool:
        try:
            return len(call(f"{url}/search", {"text": "zebra"})["hits"]) == 3
        except OSError:  # a request of the killed process
            return False

    wait_for(is_replaced)
    assert {call(f"{url}/suggest")["prediction"]["text"] for _ in range(10)} == {"a quagga"}
    # A killed server leaves no process behind, which would keep the port.
    workers = workers_of(process.pid)
    assert workers
    process.kill()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
