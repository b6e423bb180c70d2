import json
from pathlib import Path

import torch

from datamodules.text.tokenization import make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from tests.sentence_folders import save_tokenizer

SPACES = make_tokenizer("whitespace", lowercase=False)


def store(*texts: str) -> TokenStore:
    return TokenStore.from_texts(texts, SPACES)


def test_frequent_words_come_first_and_ties_by_word() -> None:
    stores = [store("b a c", "d c"), store("b e", "zz c")]
    vocabulary = Vocabulary.from_stores(stores, SPACES, characters=True)
    assert vocabulary.words == ["<pad>", "<unk>", "c", "b", "a", "d", "e", "zz"]
    assert vocabulary.characters == ["<pad>", "<unk>", "c", "b", "z", "a", "d", "e"]
    assert len(vocabulary) == 8
    turned = [store("zz c", "b e"), store("d c", "c a b")]
    assert Vocabulary.from_stores(turned, SPACES, characters=True) == vocabulary
    assert vocabulary.tokenizer == SPACES.describe()


def test_rare_words_are_omitted_but_not_their_characters() -> None:
    stores = [store("b a c", "d c b c")]
    assert Vocabulary.from_stores(stores, SPACES, min_count=2, characters=False).words[2:] == ["c", "b"]
    small = Vocabulary.from_stores(stores, SPACES, min_count=3, extra_words=["q", "c", "a"], characters=True)
    assert small.words[2:] == ["c", "q", "a"]
    assert set(small.characters[2:]) == set("abcd")


def test_words_and_characters_are_looked_up() -> None:
    vocabulary = Vocabulary.from_stores([store("ab ab abc \ud800")], SPACES, characters=True)
    # Frequencies: a 3, b 3, c 1, the lone surrogate 1.
    assert vocabulary.characters == ["<pad>", "<unk>", "a", "b", "c", "\ud800"]
    assert vocabulary.lookup(["abc", "nope", "ab", "\ud800", ""]).tolist() == [3, 1, 2, 4, 1]
    table = vocabulary.char_table(["cab", "", "a\U0001f600", "abcabc", "\ud800"], max_chars=4)
    assert table.tolist() == [[4, 2, 3, 0], [0, 0, 0, 0], [2, 1, 0, 0], [2, 3, 4, 2], [5, 0, 0, 0]]
    assert vocabulary.char_table([]).shape == (0, 16)
    without = Vocabulary.from_stores([store("ab")], SPACES, characters=False)
    assert without.char_table(["ab", "c"]).shape == (2, 0)


def test_literal_reserved_words_are_unknown_words() -> None:
    vocabulary = Vocabulary.from_stores([store("<pad> <unk> a <pad>")], SPACES, characters=True)
    assert vocabulary.words == ["<pad>", "<unk>", "a"]
    assert vocabulary.lookup(["<pad>", "<unk>", "a"]).tolist() == [1, 1, 2]


def test_empty_texts_give_the_reserved_entries() -> None:
    vocabulary = Vocabulary.from_stores([store("", "")], SPACES, characters=True)
    assert vocabulary.words == vocabulary.characters == ["<pad>", "<unk>"]
    assert vocabulary.char_table(["ab"], 3).tolist() == [[1, 1, 0]]


def test_a_checkpoint_restores_the_vocabulary(tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_stores([store("ab é \ud800 \0 漢")], SPACES, characters=True)
    torch.save({"vocabulary": vocabulary.to_dict()}, tmp_path / "a.ckpt")
    loaded = torch.load(tmp_path / "a.ckpt", weights_only=True)["vocabulary"]
    for values in (loaded, json.loads(json.dumps(vocabulary.to_dict()))):
        restored = Vocabulary.from_dict(values)
        assert restored == vocabulary
        assert restored.fingerprint == vocabulary.fingerprint
    assert (
        Vocabulary.from_stores([store("ab")], SPACES, characters=True).fingerprint != vocabulary.fingerprint
    )


def test_a_transformers_vocabulary_keeps_its_ids(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(save_tokenizer(tmp_path / "t"), False)
    vocabulary = Vocabulary.from_transformers(tokenizer)
    assert vocabulary.words[2:6] == ["[CLS]", "[SEP]", "the", "cat"]
    assert (vocabulary.prefix, vocabulary.suffix, vocabulary.characters) == ((2,), (3,), None)
    assert vocabulary.lookup(["cat", "<p>", "dog"]).tolist() == [5, 0, 1]
    torch.save(vocabulary.to_dict(), tmp_path / "a.ckpt")
    assert Vocabulary.from_dict(torch.load(tmp_path / "a.ckpt", weights_only=True)) == vocabulary
