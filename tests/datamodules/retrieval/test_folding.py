"""Duplicates have equal hashes, other texts have different ones."""

import numpy as np
import pytest

from datamodules.retrieval.folding import fold, fold_hashes


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("The Lion", "the lion"),
        ("the lion", "  the \t\n lion "),
        ("the lion", "the\u00a0\u3000lion"),
        ("STRASSE", "straße"),
        ("ΟΔΟΣ", "οδος"),
        ("", " \n"),
        ("the lion", "The lion ."),
        ("the lion", '"the lion\u201d\u2026'),
        ("a well-known caf\u00e9", "a well known cafe\u0301!"),
        ("\ufb01ne \uff11", "fine 1"),
        ("zero width", "zero\u200b width"),
    ],
)
def test_duplicates_have_equal_hashes(a: str, b: str) -> None:
    assert fold(a) == fold(b)
    first, second = fold_hashes([a, b])
    assert first == second


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("the lion", "thelion"),
        ("a b", "b a"),
        ("1", "2"),
        ("", "x"),
        ("", "."),
        ("?", "!"),
        ("\u2026", "\u2014"),
        ("\u0915\u093f", "\u0915\u093e"),  # vowels that are marks
        ("$5", "\u20ac5"),
        ("cafe", "caf\u00e9"),
    ],
)
def test_other_texts_have_different_hashes(a: str, b: str) -> None:
    assert fold(a) != fold(b)
    first, second = fold_hashes([a, b])
    assert first != second


def test_hashes_are_the_same_on_every_machine() -> None:
    hashes = fold_hashes(["The  lion", "\ud800"])
    assert hashes.dtype == np.uint64
    assert [f"{value:016x}" for value in hashes.tolist()] == ["80fa88d98b115d5c", "680d7d923e780842"]
    assert fold_hashes([]).shape == (0,)
