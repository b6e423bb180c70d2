import gzip
from pathlib import Path

import numpy as np
import pytest

from datamodules.text.tokenization import make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vectors import initial_table, read_vectors
from datamodules.text.vocabulary import Vocabulary
from tests.datamodules.checks import refused, write

GLOVE = ["the 1 2 3", "cat 4 5 6.5", ". . . 7 8 9", "é -1 0 1e-2", "cat 0 0 0", "1 2 2 2", ". 3 3 3"]
WORDS = {
    "the": [1, 2, 3],
    "cat": [4, 5, 6.5],
    ". . .": [7, 8, 9],
    "é": [-1, 0, 0.01],
    "1": [2, 2, 2],
    ".": [3, 3, 3],
}
SPACES = make_tokenizer("whitespace", lowercase=False)


def save(path: Path, lines: list[str], end: str = "\n") -> Path:
    content = "".join(line + end for line in lines).encode()
    return write(path, gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
@pytest.mark.parametrize("header", [[], ["7 3"]])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
def test_every_format_gives_the_same_vectors(tmp_path: Path, name: str, header: list[str], end: str) -> None:
    vectors = read_vectors(save(tmp_path / name, header + GLOVE, end), most_frequent=1000)
    assert list(vectors.rows) == list(WORDS)
    assert vectors.values.dtype == np.float32
    np.testing.assert_array_equal(vectors.values, np.array(list(WORDS.values()), dtype=np.float32))


def test_only_wanted_words_are_kept(tmp_path: Path) -> None:
    path = save(tmp_path / "v.txt", GLOVE)
    assert list(read_vectors(path, {"The", "cat", "none"}).rows) == ["the", "cat"]
    assert list(read_vectors(path, {"."}).rows) == ["."]
    assert list(read_vectors(path, {". . ."}).rows) == [". . ."]
    assert list(read_vectors(path, most_frequent=2).rows) == ["the", "cat"]
    assert list(read_vectors(path, {"é", "the"}, most_frequent=1).rows) == ["the", "é"]
    headed = save(tmp_path / "w.txt", ["7 3", *GLOVE])
    assert list(read_vectors(headed, most_frequent=2).rows) == ["the", "cat"]
    nothing = read_vectors(path, {"none"})
    assert nothing.values.shape == (0, 3)


def test_a_word_falls_back_to_lower_case(tmp_path: Path) -> None:
    path = save(tmp_path / "v.txt", ["Us 1", "us 2", "it 3"])
    vectors = read_vectors(path, {"Us", "US", "It"})
    assert [vectors.find(word) for word in ("Us", "US", "us", "It", "is")] == [0, 1, 1, 2, -1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "v.txt: the vector file is empty"),
        (["3 2"], "v.txt: the vector file is empty"),
        (["a 1 2", "b 1"], "v.txt, line 2: 1 numbers where the lines before have 2"),
        (["a 1 2", "b 1 2 3"], "v.txt, line 2: 3 numbers where"),
        (["2 2", "b 1 2 3", "a 1 2"], "v.txt, line 2: 3 numbers where"),
        (["a 1 2", "b"], "v.txt, line 2: 0 numbers where"),
        (["a 1 2", "b 1 x"], "v.txt, line 2: 'x' is not a number"),
        (["a 1 2", "b 1 nan"], "v.txt, line 2: a number is not finite"),
        (["a 1 2", "b 1 1e99"], "v.txt, line 2: a number is not finite"),
        (["3 2", "a 1 2", "b 1 2"], "v.txt: ends at line 3, but its header announces 3 words"),
        (["just text"], "v.txt, line 1: expected a word and its numbers"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = save(tmp_path / "v.txt", lines)
    with refused(message, path):
        read_vectors(path, most_frequent=1000)


def test_coverage_counts_words_and_tokens(tmp_path: Path) -> None:
    stores = [TokenStore.from_texts(texts, SPACES) for texts in (["the Cat cat", "dog"], ["The the dog"])]
    vectors = read_vectors(save(tmp_path / "v.txt", GLOVE), most_frequent=1000)
    line = vectors.describe_coverage(stores)
    assert "4 of 5 (80.0%, 2 of them lower-cased) words" in line
    assert "5 of 7 (71.4%, 2 of them lower-cased) tokens" in line
    assert "v.txt" in line
    assert "\n" not in line


def test_the_table_starts_from_the_vectors(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = [f"w{i} " + " ".join(f"{x:.6f}" for x in random.normal(0, 0.4, 50)) for i in range(200)]
    vectors = read_vectors(save(tmp_path / "v.txt", lines), most_frequent=1000)
    store = TokenStore.from_texts([" ".join(f"w{i} W{i} z{i}" for i in range(150))], SPACES)
    vocabulary = Vocabulary.from_stores([store], SPACES, extra_words=vectors.rows, characters=False)
    assert vocabulary.words[-1] == "w199"
    table, has_vector = initial_table(vocabulary, vectors, seed=1)
    assert (table.shape, table.dtype) == ((len(vocabulary), 50), np.float32)
    assert not table[0].any()
    known = [id for id, word in enumerate(vocabulary.words) if word[0] in "wW"]
    for id in known:
        np.testing.assert_array_equal(table[id], vectors.values[int(vocabulary.words[id][1:])])
    assert np.flatnonzero(has_vector).tolist() == known
    noise = np.delete(table, [0, *known], axis=0)
    assert len(noise) == 151
    assert noise.std() == pytest.approx(vectors.values.std(), rel=0.05)
    np.testing.assert_array_equal(table, initial_table(vocabulary, vectors, seed=1)[0])
    assert (table != initial_table(vocabulary, vectors, seed=2)[0]).any()
