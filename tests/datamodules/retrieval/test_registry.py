"""A user's own retriever works like a built-in one as soon as its module is imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.core.errors import InputError
from datamodules.core.storage import check_folder, new_folder
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory, FusedRetriever, make_retriever, open_memory
from datamodules.retrieval.base import ExcludedRows, Hits, Retriever, check_search
from datamodules.retrieval.registry import RETRIEVERS, retriever_class
from tests.datamodules.checks import refused
from tests.datamodules.corpus import labelled_texts, rows

TEXTS, _ = labelled_texts(30)


class OverlapRetriever(Retriever):
    """Ranks by the number of shared words, or of letters; its index is a JSON file."""

    def __init__(self, letters: bool = False) -> None:
        self.letters = letters
        self.texts: list[str] = []
        self.server = "no connection"

    def describe_ranking(self) -> dict[str, Any]:
        return {"similarity": "overlap", "letters": self.letters}

    def parts(self, text: str) -> set[str]:
        return set(text) if self.letters else set(text.split())

    def index(self, rows: Rows, fingerprint: str, folder: Path) -> None:
        with new_folder(folder, fingerprint) as partial:
            (partial / "texts.json").write_text(json.dumps(rows.texts[:]))
        self.open(folder, fingerprint)

    def open(self, folder: Path, fingerprint: str) -> None:
        check_folder(folder, fingerprint)
        self.texts = json.loads((folder / "texts.json").read_text())

    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        check_search(texts, k, exclude)
        hits = Hits.none(len(texts), k)
        for query, text in enumerate(texts):
            words = self.parts(text)
            scores = np.array([len(words & self.parts(other)) for other in self.texts], np.float32)
            scores[list(exclude[query]) if exclude is not None else []] = 0
            best = np.argsort(-scores, kind="stable")[: min(k, np.count_nonzero(scores))]
            hits.rows[query, : len(best)], hits.scores[query, : len(best)] = best, scores[best]
        return hits

    def close(self) -> None:
        self.texts = []


@pytest.mark.parametrize(
    "retriever",
    [
        OverlapRetriever(letters=True),
        FusedRetriever([EmbeddedRetriever(k1=0.9), OverlapRetriever()]),
        FusedRetriever([FusedRetriever([OverlapRetriever(), EmbeddedRetriever()]), OverlapRetriever(True)]),
    ],
)
def test_an_own_retriever_is_made_from_its_description(retriever: Retriever, tmp_path: Path) -> None:
    description = json.loads(json.dumps(retriever.describe()))
    again = make_retriever(description, None)
    assert type(again) is type(retriever)
    assert again.describe() == retriever.describe()
    # A memory finds it again, and grows.
    memory = FolderMemory.build(rows(30), retriever, tmp_path / "memory")
    expected = memory.search(TEXTS, 5)
    opened = open_memory(str(tmp_path / "memory"))
    np.testing.assert_array_equal(opened.search(TEXTS, 5).rows, expected.rows)
    opened.add(Rows.from_lists(["lion zebra"], ["beasts"]))
    assert list(opened.search(["lion zebra"], 1).memories.texts) == ["lion zebra"]


@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_built_in_retriever_is_found_with_and_without_its_module(name: str) -> None:
    kind = retriever_class(name)
    assert (kind.__name__, kind.__module__) == (name, RETRIEVERS[name])
    assert retriever_class(f"{RETRIEVERS[name]}.{name}") is kind


def test_the_module_decides_between_equal_names() -> None:
    class EmbeddedRetriever(OverlapRetriever):
        pass

    class FusedRetriever(OverlapRetriever):
        __module__ = "elsewhere"

    assert type(make_retriever(EmbeddedRetriever().describe(), None)) is EmbeddedRetriever
    assert type(make_retriever(FusedRetriever().describe(), None)) is FusedRetriever
    assert retriever_class("EmbeddedRetriever").__module__ == RETRIEVERS["EmbeddedRetriever"]
    # A script is the module `__main__` when it builds a memory, and has a name when another one imports it.
    assert retriever_class("__main__.OverlapRetriever") is OverlapRetriever


def test_a_class_that_was_not_imported_is_refused_and_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    strange = {"class_path": "strange.Strange", "init_args": {}}
    fused = {"class_path": "FusedRetriever", "init_args": {"retrievers": [strange, strange]}}
    for description in (strange, fused):
        with refused(match=r"no retriever 'strange.Strange'.*--import MODULE"):
            make_retriever(description, None)
    assert "strange" not in sys.modules


def test_encoders_are_those_of_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model/encoder").mkdir(parents=True)
    dense = {"class_path": "DenseRetriever", "init_args": {"encoder": "encoder"}}
    fused = {
        "class_path": "FusedRetriever",
        "init_args": {"retrievers": [EmbeddedRetriever().describe(), dense]},
    }
    assert make_retriever(fused, Path("model")).retrievers[1].options["encoder"] == "model/encoder"


def test_errors_of_descriptions_are_input_errors_and_those_of_constructors_are_not() -> None:
    class Failing(OverlapRetriever):
        def __init__(self, letters: bool = False) -> None:
            raise TypeError("a bug")

    described = OverlapRetriever().describe()
    with pytest.raises(TypeError, match="a bug"):
        make_retriever({**described, "class_path": f"{__name__}.Failing"})
    described["init_args"]["a.b"] = 1
    with pytest.raises(InputError, match=r"^the retriever OverlapRetriever has no option 'a\.b'$"):
        make_retriever(described)


class EnglishRetriever(EmbeddedRetriever):
    """An embedded one with another default."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"analyzer": "english", **options})


def test_options_that_a_subclass_sets_are_described() -> None:
    for options in ({}, {"analyzer": "cjk"}):
        described = EnglishRetriever(**options, k1=0.9).describe()
        assert described["init_args"]["analyzer"] == options.get("analyzer", "english")
        assert make_retriever(described).describe() == described
