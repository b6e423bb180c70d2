"""Terms as Lucene makes them; the expected terms are the output of Lucene 9.12's analyzers."""

import random

import numpy as np
import pytest

from datamodules.retrieval.base import AnalyzerName
from datamodules.retrieval.embedded.analysis import TermIds, terms_of

TERMS: dict[AnalyzerName, list[tuple[str, list[str]]]] = {
    "standard": [
        ("Don't panic, Mr. O’Neil!", ["don't", "panic", "mr", "o’neil"]),
        ("U.S.A. 3.14 1,000 v1.2 x:y snake_case _", ["u.s.a", "3.14", "1,000", "v1.2", "x:y", "snake_case"]),
        ("a.1 1.a http://a.b/c", ["a", "1", "1", "a", "http", "a.b", "c"]),
        ("世界ひらカタナ한국어", ["世", "界", "ひ", "ら", "カタナ", "한국어"]),
        ("ΟΔΟΣ İx É", ["οδοσ", "ix", "é"]),
        ("cafe\u0301\u00adx a\u202fb a\u00a0b", ["cafe\u0301\u00adx", "a\u202fb", "a", "b"]),
        (
            "😀👍🏽 👨\u200d👩\u200d👧 🇩🇪 #\u20e3 x",
            ["😀", "👍🏽", "👨\u200d👩\u200d👧", "🇩🇪", "#\u20e3", "x"],
        ),
        ("ภาษาไทย १२ １２", ["ภาษาไทย", "१२", "１２"]),
        ("צה\"ל ג' \x00 \ud800", ['צה"ל', "ג'"]),
        ("", []),
    ],
    "english": [
        ("The runner's running", ["runner", "run"]),
        ("These ponies were not relational", ["poni", "were", "relat"]),
        ("BOSS’S it's possibly 𝑥s 𝑥ies \ud835\udc65s", ["boss", "possibl", "𝑥", "𝑥i", "𝑥"]),
    ],
    "cjk": [
        ("東京都", ["東京", "京都"]),
        ("東 京", ["東", "京"]),
        ("一abc二三、四", ["一", "abc", "二三", "四"]),
        ("カﾞｶﾞﾊﾟ한국어 ＡＢＣ１２", ["ガガ", "ガパ", "パ한", "한국", "국어", "abc12"]),
        ("the www an s is it", ["an"]),
        ("𠀀𠀁", ["𠀀𠀁"]),
    ],
}


@pytest.mark.parametrize(
    ("analyzer", "text", "terms"), [(name, *pair) for name, pairs in TERMS.items() for pair in pairs]
)
def test_terms(analyzer: AnalyzerName, text: str, terms: list[str]) -> None:
    assert terms_of(analyzer, text) == terms


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("a" * 600, [255, 255, 90]),
        ("a" * 254 + ".bc", [254, 2]),
        ("1" * 255 + ".5", [255, 1]),
        ("𝐀" * 300, [127, 127, 46]),  # each is two UTF-16 units
        ("-" * 5000 + "x" * 300, [255, 45]),
        ("-" * 4095 + "xy", [2]),
    ],
)
def test_long_tokens_are_split(text: str, lengths: list[int]) -> None:
    assert [len(term) for term in terms_of("standard", text)] == lengths


@pytest.mark.parametrize("unit", ["x", "世", "a.", "\ud800", "\u0301", "_"])
def test_a_text_of_a_megabyte(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    terms = terms_of("standard", text)
    letters = {"x": 1_000_000, "世": 1_000_000, "a.": 500_000}.get(unit, 0)
    assert sum(term.count(unit[0]) for term in terms) == letters


@pytest.mark.parametrize("analyzer", ["standard", "english", "cjk"])
def test_term_ids_are_the_terms(analyzer: AnalyzerName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.retrieval.embedded.analysis._MEMO_SIZE", 50)  # small enough to overflow
    rng = random.Random(0)
    words = ["Running,", "the", "x-y", "世界", "!?", "O'Neil's", "a\u202fb", "\n", *map(str, range(100))]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 12))) for _ in range(200)]
    encoder = TermIds(analyzer)
    for first in range(0, 200, 50):
        block = texts[first : first + 50]
        ids, starts = encoder.encode(block)
        assert ids.dtype == np.int32
        names = list(encoder.ids)
        for i, text in enumerate(block):
            assert [names[term] for term in ids[starts[i] : starts[i + 1]]] == terms_of(analyzer, text)
    assert list(encoder.ids.values()) == list(range(len(encoder.ids)))
    assert encoder.encode([])[1].tolist() == [0]
