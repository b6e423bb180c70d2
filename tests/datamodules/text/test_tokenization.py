import json
import pickle
from pathlib import Path

import pytest

from datamodules.core import storage
from datamodules.text import tokenization
from datamodules.text.tokenization import Lexicon, make_tokenizer
from tests.datamodules.checks import refused
from tests.sentence_folders import save_tokenizer


def tokens(name: str, text: str, lowercase: bool = False) -> list[str]:
    lexicon = Lexicon()
    [row] = make_tokenizer(name, lowercase).encode([text], lexicon)
    words = list(lexicon)
    return [words[number] for number in row]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Can't stop; won't.", ["Can't", "stop", ";", "won't", "."]),
        ("pi=3.14, 1,000 U.S.A.", ["pi", "=", "3.14", ",", "1,000", "U.S.A", "."]),
        ("snake_case e-mail 'tis x''", ["snake_case", "e", "-", "mail", "'", "tis", "x", "'", "'"]),
        ("東京タワーへ行く", ["東", "京", "タワー", "へ", "行", "く"]),
        ("🇩🇪🇫🇷 👩‍👧 ❤️!", ["🇩🇪", "🇫🇷", "👩‍👧", "❤️", "!"]),
        ("cafe\u0301s \u0301x", ["cafe\u0301s", "\u0301", "x"]),
        ("א\"ב א'", ['א"ב', "א'"]),
        ("a\0b \ud800c\u3000d\x85e", ["a", "\0", "b", "\ud800", "c", "d", "e"]),
        (" \t\n", []),
        ("", []),
    ],
)
def test_words_follow_unicode_rules_and_keep_punctuation(text: str, expected: list[str]) -> None:
    assert tokens("words", text) == expected


def test_case_is_folded_on_request_only() -> None:
    assert tokens("words", "Ab AB ΣΑΣ", lowercase=True) == ["ab", "ab", "σας"]
    assert tokens("whitespace", "Ab AB!", lowercase=True) == ["ab", "ab!"]
    assert tokens("whitespace", "Ab AB!") == ["Ab", "AB!"]


def test_characters_are_code_points_spaces_included() -> None:
    assert tokens("characters", "Ab a\u0301\n") == ["A", "b", " ", "a", "\u0301", "\n"]
    assert tokens("characters", "AB", lowercase=True) == ["a", "b"]
    assert tokens("characters", "") == []


def test_a_full_cache_of_pieces_does_not_change_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_MAX_PIECES", 10)
    texts = [f"w{i}, w{i % 7}." for i in range(1000)]
    lexicon = Lexicon()
    rows = list(make_tokenizer("words", False).encode(texts, lexicon))
    assert all(len(row) == 4 for row in rows)
    words = list(lexicon)
    assert [words[number] for number in rows[-1]] == ["w999", ",", f"w{999 % 7}", "."]
    assert len(lexicon) == 1002


def test_long_stretches_are_cut_in_linear_time() -> None:
    for text in ("a" * 1_000_000, "a'" * 500_000, "漢" * 1_000_000, "_" * 1_000_000):
        assert "".join(tokens("words", text)) == text


def test_equal_specifications_describe_themselves_alike() -> None:
    first, second = make_tokenizer("words", True), make_tokenizer("words", True)
    assert first == second
    assert pickle.loads(pickle.dumps(first)) == first
    assert first.describe() == second.describe()
    assert len({str(make_tokenizer(*given).describe()) for given in
                [("words", True), ("words", False), ("whitespace", True), ("characters", True)]}) == 4  # fmt: skip


def test_transformers_tokens_are_in_the_vocabulary(tmp_path: Path) -> None:
    name = save_tokenizer(tmp_path)
    assert tokens(name, "The cats sat \ud800") == ["the", "cat", "##s", "sat", "[UNK]"]
    tokenizer = make_tokenizer(name, False)
    assert tokenizer.special_ids == ((2,), (3,))
    assert (tokenizer.pad_id, tokenizer.unk_id) == (0, 1)
    assert tokenizer.strings()[4:6] == ["the", "cat"]
    assert pickle.loads(pickle.dumps(tokenizer)).describe() == tokenizer.describe()


def test_transformers_tokenizer_without_special_tokens(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(save_tokenizer(tmp_path, special=False), False)
    assert (*tokenizer.special_ids, tokenizer.pad_id) == ((), (), 0)


def test_a_changed_vocabulary_changes_the_description(tmp_path: Path) -> None:
    names = [save_tokenizer(tmp_path / word, extra=word) for word in ("zoo", "zebra")]
    zoo, zebra = (make_tokenizer(name, False).describe()["contents"] for name in names)
    assert zoo != zebra


def test_an_unknown_tokenizer_gets_one_line(tmp_path: Path) -> None:
    with refused(tmp_path, match=r"use words, whitespace"):
        make_tokenizer(str(tmp_path / "nothing"), False)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with refused(match="broken"):
        make_tokenizer(str(tmp_path / "broken"), False)


def test_an_expression_that_never_ends_is_refused(tmp_path: Path) -> None:
    name = save_tokenizer(tmp_path)
    file = Path(name) / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    storage.write_json(file, {**json.loads(file.read_text()), "pre_tokenizer": split})
    with refused(tmp_path, match="use another tokenizer, it fails: .*limit"):
        next(make_tokenizer(name, False).encode(["a" * 50 + "!"], Lexicon()))
