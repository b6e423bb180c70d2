"""The page of `zoo serve` in a real Chromium: corrections, labels, the audit, hostile texts, and the key."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import zoo
from datamodules.corpora.rows import Rows
from tests.zoo.ensemble.test_multilabel import write_sets
from tests.zoo.serve.test_serve import SECRET, call, serving
from zoo.serve.bodies import Predicted
from zoo.serve.live_model import LiveModel

pytestmark = pytest.mark.browser
TEXT = "some gold in the rain"
#: Markup, the end of a script, and marks that turn the direction of writing.
HOSTILE = "<img src=x onerror='window.owned=1'></script><script>window.owned=1</script>\u202e\u2067gold"
TAB, ENTER, SPACE, END = "\ue004", "\ue007", " ", "\ue010"


class Page:
    """The page in a tab of its own."""

    def __init__(self, browser: Any) -> None:
        self.browser, self.url = browser, ""

    def open(self, url: str, shows: str = "#ask") -> None:
        self.url = url
        self.browser.get(url)
        self.wait(lambda: self.find(shows).is_displayed())

    def show(self, view: str, part: str) -> None:
        self.find(f"#tab-{view}").click()
        self.wait(lambda: self.find(part).is_displayed())

    def find(self, css: str) -> Any:
        return self.browser.find_element("css selector", css)

    def all(self, css: str) -> list[Any]:
        return self.browser.find_elements("css selector", css)

    def wait(self, is_true: Callable[[], object]) -> None:
        from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        ignored = (NoSuchElementException, StaleElementReferenceException)
        WebDriverWait(self.browser, 60, 0.05, ignored).until(
            lambda _: is_true(), self.find("body").text[:500]
        )

    def wait_for(self, words: str, css: str = "#status") -> None:
        self.wait(lambda: words in self.find(css).text and not self.all("body[aria-busy]"))

    def focus(self) -> str | None:
        """The id of the element with the focus."""
        return self.browser.switch_to.active_element.get_attribute("id")

    def press(self, *keys: str, on: str | None = None, shows: str = "") -> None:
        """Press keys where the focus is, or on an element that the tabulator reaches from there, and await a status."""
        from selenium.webdriver.common.action_chains import ActionChains

        tabulators = 0
        while on is not None and self.focus() != on:
            tabulators += 1
            assert tabulators < 20, f"{on} cannot be reached by keys"
            ActionChains(self.browser).send_keys(TAB).perform()
        ActionChains(self.browser).send_keys(*keys).perform()
        if shows:
            self.wait_for(shows)

    def ask(self, text: str) -> None:
        # Faster than keys, of which each is an event.
        self.browser.execute_script("arguments[0].value = arguments[1]", self.find("#text"), text)
        self.find("#question button").click()
        self.wait(lambda: self.focus() == "verdict")


@pytest.fixture
def page(chromium: Any) -> Iterator[Page]:
    """The page; in the end, nothing was requested elsewhere, and the console shows no error and no violation."""
    first, logs = chromium.current_window_handle, ("browser", "performance")
    chromium.switch_to.new_window("tab")
    page = Page(chromium)
    yield page
    logs = {kind: chromium.get_log(kind) for kind in logs}
    chromium.close()
    chromium.switch_to.window(first)
    events = [json.loads(entry["message"])["message"] for entry in logs["performance"]]
    sent = [each["params"]["request"] for each in events if each["method"] == "Network.requestWillBeSent"]
    assert len(sent) > 4
    assert [each["url"] for each in sent if not each["url"].startswith(page.url)] == []
    # The console shows the answers 401 and 422, and a server that is away, too.
    messages = [entry["message"] for entry in logs["browser"]]
    known = ("the server responded with a status", "net::ERR_CONNECTION_REFUSED")
    assert [each for each in messages if not any(words in each for words in known)] == []


def answer(live: LiveModel) -> dict[str, Any]:
    (record,) = live.predict(live.current(), Predicted(text=TEXT))
    return record


def last_row(live: LiveModel) -> tuple[str, str]:
    """Text and label of the newest row of the memory."""
    row = live.current().predictor.memory.rows.table.to_pylist()[-1]
    return row["text"], row["label"]


def test_a_correction_by_keys_and_the_way_back(live: LiveModel, page: Page) -> None:
    before = answer(live)
    right, wrong = before["label"], min(before["probabilities"].keys() - {before["label"]})
    with serving(live) as url:
        page.open(url)
        page.press(TEXT)
        page.press(ENTER, on="submit")
        page.wait_for(f"{right}, {100 * before['probability']:.1f} %", "#verdict")
        assert {row.text for row in page.all("#answer th")} >= before["contributions"].keys()
        memories = [memory["text"] for memory in before["memories"]]
        assert [row.text for row in page.all("#answer .list > li > .text")] == memories
        assert {each.text for each in page.all("mark")} == {*" ".join(memories).split()} & {*TEXT.split()}
        page.press(wrong[0], on="other-label")
        page.press(ENTER, on="preview", shows="Previewed: 1 of 1 answers would change.")
        assert live.current().memory_version == 1
        (previewed,) = (row.text.split(" ")[-2] for row in page.all("#effects .facts"))
        page.press("as a customer wrote", on="note")
        page.find("#wrong").send_keys(SPACE)
        page.wait_for("1 row added: version 2. Answer:")
        after = answer(live)
        assert float(previewed) == round(100 * after["probability"], 1)
        shares = " \u2192 ".join(f"{100 * each['probabilities'][wrong]:.1f} %" for each in (before, after))
        assert after["label"] == wrong
        assert f"{right} \u2192 {wrong}. Probability of {wrong}: {shares}." in page.find("#status").text
        page.press(right[0], on="other-label")
        page.press(ENTER, on="wrong", shows="1 row relabelled: version 3.")
        assert answer(live)["label"] == right
        page.all("#answer .list > li button")[-1].click()
        page.wait_for("1 row removed: version 4.")
        for version, back in ((5, 3), (6, 2), (7, 1)):
            page.press(ENTER, on="undo", shows=f"Undone: version {version} has the rows of version {back}.")
        assert answer(live) == before
        page.find("#tab-ask").send_keys(END)
        page.wait(lambda: len(page.all("#versions > li")) == 7)
        added = "#versions > li:nth-child(6)"
        assert "as a customer wrote" in page.find(added).text
        page.find(f"{added} summary").send_keys(ENTER)
        page.wait_for(TEXT, added)
        page.find(f"{added} button").send_keys(ENTER)
        page.wait_for("Version 8 has the rows of version 2.")
        assert answer(live)["label"] == wrong
        live.write(lambda memory: memory.folder.add(Rows.from_lists(["a zebra"], [wrong])))
        page.find("#undo").click()
        page.wait_for("The memory has changed elsewhere and is now version 9", "#error")
        page.find("#versions > li:last-child button").send_keys(ENTER)
        page.wait_for("Version 10 has the rows of version 1.")
        page.find("#undo").click()
        page.wait_for("Undone: version 11 has the rows of version 9.")
        page.wait(lambda: not page.find("#undo").is_displayed())  # own edits before that of others stay


def test_texts_of_others_are_inert(live: LiveModel, page: Page) -> None:
    long = (HOSTILE + " gold" * 20_000)[:100_000]
    rows = Rows.from_lists([HOSTILE, long], [HOSTILE, "metal"], [HOSTILE, "long"])
    live.write(lambda memory: memory.folder.add(rows, keep_ids=True, note=HOSTILE))
    with serving(live) as url:
        page.open(url)
        assert not page.find("#tab-label").is_displayed()  # without a pool
        for text in (HOSTILE, long):
            page.ask(text)
            assert {HOSTILE, "long"} & {each.get_attribute("textContent") for each in page.all("#answer bdi")}
        page.find("#tab-history").click()
        page.wait(lambda: page.all("#versions summary"))
        page.find("#versions summary").click()
        page.wait_for("2 added", "#versions")
        assert page.browser.execute_script("return window.owned") is None
        assert page.all("main img, main script") == []
        page.find("#tab-ask").click()
        page.browser.execute_script("document.getElementById('text').value = 'a'.repeat(100001)")
        page.find("#submit").click()
        page.wait_for("at most 100000 characters", "#error")


def test_the_key_is_asked_for_once(live: LiveModel, page: Page) -> None:
    with serving(live, SECRET) as url:
        page.open(url, "#key")
        assert not page.find("#ask").is_displayed()
        for key, problem in (("wrong", "not the key"), ("a b", "without spaces"), (SECRET, "")):
            page.find("#key-value").send_keys(key, ENTER)
            page.wait_for(problem, "#error")
            page.wait(lambda shown="#key" if problem else "#ask": page.find(shown).is_displayed())
        page.ask(TEXT)
        page.open(url)
        assert page.browser.execute_script("return [localStorage.length, document.cookie]") == [0, ""]


def test_labels_are_given_by_keys(live: LiveModel, page: Page) -> None:
    """Guess, another label, skip and undo; what others do meanwhile, and a server that goes away in between."""
    texts = [f"{TEXT} {number}" for number in range(30)]
    pool = Rows.from_lists(texts, ["metal"] * 30, source="a/texts.csv")
    asked, first = lambda: page.find("#to-label").text, lambda: page.find(".choices bdi").text
    rows = len(live.current().predictor.memory)

    with serving(live, pool=pool) as url:
        page.open(url)
        page.find("#tab-label").click()
        page.wait(lambda: asked() in texts)
        before, guess = asked(), first()
        page.press("9", shows="The key 9 has no label here.")
        page.press("1", shows=f"Saved: {guess}, as guessed.")
        assert last_row(live) == (before, guess)
        assert page.focus() == "to-label"
        before, guess, second = asked(), first(), page.all(".choices bdi")[1].text
        page.press("2", shows=f"Saved: {second}; the guess was {guess}.")
        assert ("The table has metal" in page.find("#status").text) == (second != "metal")
        assert last_row(live) == (before, second)
        assert {"2 labelled in this tab", "2 of 30 texts in the memory"} <= {
            each.text for each in page.all("#progress li")
        }
        skipped = asked()
        page.press("s")
        page.wait(lambda: asked() != skipped)
        page.press("u", shows="Back to the text that you skipped.")
        assert asked() == skipped
        page.press("u", shows=f"Undone: {second} is no longer in the memory.")
        assert (asked(), len(live.current().predictor.memory)) == (before, rows + 1)
        assert "1 labelled in this tab" in page.find("#progress").text
        # Another person is faster, with the same label and with another.
        live.write(lambda memory: memory.folder.add(Rows.from_lists([before], [first()])))
        page.press("1", shows="Somebody has labelled this text meanwhile")
        live.write(lambda memory: memory.folder.add(Rows.from_lists([asked()], [first()])))
        page.press("2", shows="the memory has both")
        text, guess = asked(), first()
    page.press("1")
    page.wait_for("cannot be reached. Is it still running? Your answer is not saved yet", "#error")
    assert asked() == text
    page.press("1")  # still away
    page.wait_for("not saved yet", "#error")
    with serving(live, pool=pool, port=int(url.rpartition(":")[2].strip("/"))):
        assert page.find("#again").text == f"Save again: {guess}"
        page.find("#again").send_keys(ENTER)
        page.wait_for(f"Saved: {guess}, as guessed.")
        assert last_row(live) == (text, guess)
        counts = page.find("#progress").text
        for _ in range(26):
            before = asked()
            page.press("s")
            page.wait(lambda before=before: asked() != before)
        assert asked() == "All texts are labelled but 26, which you have skipped."
        page.find("#question-to-label button").click()
        page.wait(lambda: asked() in texts)
        page.open(url)
        page.find("#tab-label").click()
        page.wait_for(counts, "#progress")  # they stay when the page is loaded again
    page.press("s")
    page.wait_for("cannot be reached", "#error")
    assert page.find("#again").text == "Load the next text"


def test_one_of_many_labels_is_written(live: LiveModel, page: Page) -> None:
    names = [f"kind {number}" for number in range(20)] + ["kind", HOSTILE]
    rows = Rows.from_lists([f"{name} of zebra" for name in names], names)
    live.write(lambda memory: memory.folder.add(rows))
    pool = Rows.from_lists([HOSTILE, (HOSTILE + " gold" * 20_000)[:99_000]], [HOSTILE] * 2, source=HOSTILE)
    with serving(live, pool=pool) as url:
        page.open(url)
        page.show("label", "#other")
        assert len(page.all(".choices li")) == 9
        for words, problem in (("kin", "part of 21 labels"), ("stone", "none of the 25 labels")):
            page.find("#other").clear()
            page.find("#other").send_keys(words, ENTER)
            page.wait_for(problem, "#error")
        assert live.current().memory_version == 2
        page.find("#other").clear()
        page.find("#other").send_keys("IND 17", ENTER)
        page.wait_for("Saved: kind 17; the guess was")
        page.press("/")
        page.press("kind", ENTER, shows="Saved: kind; the guess was")
        assert page.find("#to-label").text == "All texts are labelled."
        assert last_row(live)[1] == "kind"
        assert page.browser.execute_script("return window.owned") is None
        assert page.all("main img, main script") == []


def test_sets_are_labelled_by_keys(page: Page, tmp_path: Path) -> None:
    options = {"label_column": "labels", "label_separator": ";", "num_memories": 5}
    zoo.fit(write_sets(tmp_path / "train.jsonl", 60, 1), run_dir=tmp_path / "run", **options)
    live = LiveModel(str(tmp_path / "run"))
    pool = Rows.from_lists(
        [f"gold zebra {number}" for number in range(4)], ["metal; fruit"] * 4, source="texts.csv"
    )

    with serving(live, pool=pool) as url:
        page.open(url)
        page.show("label", "#other")
        guess, first = page.find("#other").get_attribute("value"), page.find(".choices bdi").text
        pressed = {each.text for each in page.all(".choices [aria-pressed=true] bdi")}
        assert pressed == set(filter(None, guess.split(";")))
        page.press("1")
        changed = ";".join(sorted(pressed ^ {first}))
        assert page.find("#other").get_attribute("value") == changed
        page.press(ENTER, shows="Saved: ")
        assert last_row(live)[1] == changed
        assert "The table has fruit;metal" in page.find("#status").text
        for written, saved in (("weather; fruit", "fruit;weather"), ("", "")):
            page.wait(lambda: page.focus() == "to-label")
            page.press("/")
            page.find("#other").clear()
            page.find("#other").send_keys(written, ENTER)
            page.wait_for(f"Saved: {saved or 'no label'}")
            assert last_row(live)[1] == saved
        page.press("u", shows="Undone: ")
        assert last_row(live)[1] == "fruit;weather"
        # An audit may suggest an empty set.
        done = call(f"{url}memory/relabel", {"labels": {"0": None}})
        assert (done["changed"], live.current().predictor.memory.rows.label(0)) == (1, "")
        page.find("#tab-ask").click()
        page.ask("a gold zebra")
        page.find("#right").click()
        page.wait_for("Answer")
        assert "NaN" not in page.find("#status").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_audit_and_the_looks(live: LiveModel, page: Page, axe: str | None, scheme: str) -> None:
    """Two wrong labels are corrected by keys; nothing is cut off, controls have names, and axe-core finds nothing."""
    before = live.current().memory.search([TEXT], 9).memories
    rows = before.table.to_pylist()[:2]
    wrong = {row["id"]: "fruit" if row["label"] == "metal" else "metal" for row in rows}
    live.write(lambda memory: memory.folder.replace(wrong, note="a " + "long" * 100))
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    pool = Rows.from_lists([TEXT + " pneumono" + "ultramicroscopic" * 20, "some iron"], source="texts.csv")
    with serving(live, pool=pool) as url:
        page.open(url)
        page.ask(TEXT + " supercalifragilistic" + "expialidocious" * 20)
        page.find("#answer summary").click()
        page.find("#answer .list .actions button").click()
        page.show("audit", "#find")
        page.find("#find").click()
        page.wait_for("are probably wrong")
        for row in page.all("#suspects > .list > li"):
            name = row.find_element("css selector", ".facts > span:nth-child(2) bdi").text
            page.press("a" if name in wrong else "k")
        for width in (380, 1600):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            for view, part in (
                ("ask", "#verdict"),
                ("label", "#to-label"),
                ("audit", "#apply"),
                ("history", "#calibration svg"),
            ):
                page.show(view, part)
                root = "document.documentElement"
                assert page.browser.execute_script(f"return {root}.scrollWidth - {root}.clientWidth") == 0
                controls = page.all("button, input, select, textarea, summary")
                assert all(each.accessible_name for each in controls if each.is_displayed())
                if axe is not None:
                    page.browser.execute_script(axe)
                    found = page.browser.execute_async_script("axe.run().then(arguments[0])")["violations"]
                    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == [], (view, width)
        scores = live.current().predictor.held_out_rows()
        assert f"{len(scores.is_right)} rows" in page.find("#calibration").get_attribute("textContent")
        page.show("audit", "#apply")
        page.find("#apply").click()
        page.wait_for("2 rows relabelled: version 3.")
        assert live.current().memory.search([TEXT], 9).memories.labels == before.labels
