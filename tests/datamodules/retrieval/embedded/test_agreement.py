"""The embedded retriever and a real server return the same rows with the same scores."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.retrieval.embedded.analysis import tokens
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from tests.conftest import ON_BOTH
from tests.datamodules.corpus import indexed
from tests.elasticsearch.character_classes import CHARACTERS, CLASSES, PLACE, tokens_of

WORDS = """
    the running runs ran dogs' dog's Don’t U.S.A. 3.14 1,000 e-mail naïve Straße ΣΟΦΟΣ ΟΔΟΣ co_op x86
    généralisation connections relational 我们 想订机票 こんにちは カタカナ 한국어 ไทย 🙂 👩‍👩‍👧 1️⃣ 🇩🇪 #tag @me
    \ud800 a\x00b ﬁne ＡＢＣ ｶﾞｷﾞ עברית כ"ץ العربية can't ''' 𝑥s \ud83d\ude42 ... http://example.org/a?b=c
""".split()  # noqa: SIM905

CJK_KINDS = {"<IDEOGRAPHIC>", "<HIRAGANA>", "<KATAKANA>", "<HANGUL>"}


def strange_texts(count: int) -> list[str]:
    random_ = random.Random(3)
    joints = [" ", "  ", "", ", ", "\t", "\u3000", "\u00a0", "'", ".", "-"]
    weights = [20, 2, 1, 3, 1, 1, 1, 1, 1, 1]
    texts = []
    for _ in range(count):
        words = random_.choices(WORDS, k=random_.choice([0, 1, 3, 8, 20, 60, 300]))
        texts.append("".join(word + random_.choices(joints, weights)[0] for word in words))
    return texts


@pytest.mark.server
@pytest.mark.parametrize("context", [PLACE, f"a{PLACE}b", f"1{PLACE}2", f"❤{PLACE}"])
def test_every_character_is_cut_as_by_the_server(context: str, elasticsearch_url: str) -> None:
    texts = [context.replace(PLACE, chr(character)) for character in CHARACTERS]
    assert not differing(texts, elasticsearch_url)


@pytest.mark.server
def test_characters_of_all_classes_side_by_side(elasticsearch_url: str) -> None:
    random_ = random.Random(7)
    characters = [*CLASSES.values(), "-", "☝", "©"]
    texts = ["".join(random_.choices(characters, k=random_.choice([2, 3, 5, 8, 12]))) for _ in range(40_000)]
    assert not differing(texts, elasticsearch_url)


def differing(texts: list[str], url: str) -> list[str]:
    """The texts that the server cuts in another way, as escapes."""
    found = []
    for start in range(0, len(texts), 800):
        some = texts[start : start + 800]
        for text, by_server in zip(some, tokens_of(url, some), strict=True):
            own = [(start, start + len(token), is_cjk) for start, token, is_cjk in tokens(text)]
            if own != [(start, end, kind in CJK_KINDS) for start, end, kind in by_server]:
                found.append(ascii(text))
    return found


@pytest.mark.server
@pytest.mark.parametrize("analyzer", ["standard", "english", "cjk"])
@pytest.mark.parametrize("similarity", ["BM25", "LMDirichlet"])
@ON_BOTH
def test_strange_texts(product: str, similarity: Any, analyzer: Any, on_server: Any, tmp_path: Path) -> None:
    texts = strange_texts(800)
    options = {"similarity": similarity, "analyzer": analyzer, "k1": 0.9, "b": 0.4, "mu": 50.0}
    embedded = indexed(EmbeddedRetriever(**options), texts, tmp_path / "index", "f" * 16)
    server = indexed(on_server(product)(**options), texts, Path(), "f" * 16)
    # Queries of the same kind, some of them not in the collection.
    queries = [*texts[:200], *strange_texts(1000)[800:]]
    exclude = [[query] if query < 200 else [] for query in range(len(queries))]
    hits, by_server = embedded.search(queries, 10, exclude), server.search(queries, 10, exclude)
    assert (by_server.rows.dtype, by_server.scores.dtype) == (np.int32, np.float32)
    for rows, scores in zip(*by_server, strict=True):
        order = [(-score, row) for score, row in zip(scores, rows, strict=True) if row >= 0]
        assert order == sorted(order)
    np.testing.assert_array_equal(hits.rows, by_server.rows)
    np.testing.assert_array_equal(hits.scores, by_server.scores)
    assert (hits.rows >= 0).mean() > 0.5
