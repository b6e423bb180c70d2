import json
from pathlib import Path
from typing import Any

import torch

from datamodules.text.tokenization import make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from tests.sentence_folders import save_tokenizer

SPACES = make_tokenizer("whitespace", lowercase=False)


def made(*texts: list[str], characters: bool = True, **options: Any) -> Vocabulary:
    """The vocabulary of the texts of several stores."""
    stores = [TokenStore.from_texts(each, SPACES) for each in texts]
    return Vocabulary.from_stores(stores, SPACES, characters=characters, **options)


def test_frequent_words_come_first_and_ties_by_word() -> None:
    vocabulary = made(["b a c", "d c"], ["b e", "zz c"])
    assert vocabulary.words == ["<pad>", "<unk>", "c", "b", "a", "d", "e", "zz"]
    assert vocabulary.characters == ["<pad>", "<unk>", "c", "b", "z", "a", "d", "e"]
    assert len(vocabulary) == 8
    assert made(["zz c", "b e"], ["d c", "c a b"]) == vocabulary
    assert vocabulary.tokenizer == SPACES.describe()


def test_rare_words_are_omitted_but_not_their_characters() -> None:
    texts = ["b a c", "d c b c"]
    assert made(texts, min_count=2, characters=False).words[2:] == ["c", "b"]
    small = made(texts, min_count=3, extra_words=["q", "c", "a"])
    assert small.words[2:] == ["c", "q", "a"]
    assert set(small.characters[2:]) == set("abcd")


def test_words_and_characters_are_looked_up() -> None:
    vocabulary = made(["ab ab abc \ud800"])
    # Frequencies: a 3, b 3, c 1, the lone surrogate 1.
    assert vocabulary.characters == ["<pad>", "<unk>", "a", "b", "c", "\ud800"]
    assert vocabulary.lookup(["abc", "nope", "ab", "\ud800", ""]).tolist() == [3, 1, 2, 4, 1]
    table = vocabulary.char_table(["cab", "", "a\U0001f600", "abcabc", "\ud800"], max_chars=4)
    assert table.tolist() == [[4, 2, 3, 0], [0, 0, 0, 0], [2, 1, 0, 0], [2, 3, 4, 2], [5, 0, 0, 0]]
    assert vocabulary.char_table([]).shape == (0, 16)
    without = made(["ab"], characters=False)
    assert without.char_table(["ab", "c"]).shape == (2, 0)


def test_literal_reserved_words_are_unknown_words() -> None:
    vocabulary = made(["<pad> <unk> a <pad>"])
    assert vocabulary.words == ["<pad>", "<unk>", "a"]
    assert vocabulary.lookup(["<pad>", "<unk>", "a"]).tolist() == [1, 1, 2]


def test_empty_texts_give_the_reserved_entries() -> None:
    vocabulary = made(["", ""])
    assert vocabulary.words == vocabulary.characters == ["<pad>", "<unk>"]
    assert vocabulary.char_table(["ab"], 3).tolist() == [[1, 1, 0]]


def test_a_checkpoint_restores_the_vocabulary(tmp_path: Path) -> None:
    vocabulary = made(["ab é \ud800 \0 漢"])
    torch.save({"vocabulary": vocabulary.to_dict()}, tmp_path / "a.ckpt")
    loaded = torch.load(tmp_path / "a.ckpt", weights_only=True)["vocabulary"]
    for values in (loaded, json.loads(json.dumps(vocabulary.to_dict()))):
        restored = Vocabulary.from_dict(values)
        assert restored == vocabulary
        assert restored.fingerprint == vocabulary.fingerprint
    assert made(["ab"]).fingerprint != vocabulary.fingerprint


def test_a_transformers_vocabulary_keeps_its_ids(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(save_tokenizer(tmp_path / "t"), False)
    vocabulary = Vocabulary.from_transformers(tokenizer)
    assert vocabulary.words[2:6] == ["[CLS]", "[SEP]", "the", "cat"]
    assert (vocabulary.prefix, vocabulary.suffix, vocabulary.characters) == ((2,), (3,), None)
    assert vocabulary.lookup(["cat", "<p>", "dog"]).tolist() == [5, 0, 1]
    torch.save(vocabulary.to_dict(), tmp_path / "a.ckpt")
    assert Vocabulary.from_dict(torch.load(tmp_path / "a.ckpt", weights_only=True)) == vocabulary
