"""Texts are encoded once by an encoder, whichever command encodes them."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
from numpy.typing import NDArray

from datamodules.core.arrays import RowLookup
from datamodules.core.storage import cache_folder
from datamodules.retrieval.dense import text_vectors
from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.retriever import DenseRetriever
from datamodules.retrieval.dense.text_vectors import TextVectors
from tests.datamodules.corpus import indexed, labelled_texts

TEXTS = [*dict.fromkeys(labelled_texts(300)[0])][:140]


def built(encoder: str, texts: Sequence[str], folder: Path, **options: Any) -> NDArray[np.float32]:
    indexed(DenseRetriever(encoder, device="cpu", **options), texts, folder)
    return np.load(folder / "vectors.npy")


def test_a_text_is_encoded_once(tmp_path: Path, tiny_encoder: str, encoded: list[str]) -> None:
    first = built(tiny_encoder, TEXTS[:70], tmp_path / "first")
    assert encoded == TEXTS[:70]
    # Another table in another order: only the new texts.
    second = built(tiny_encoder, [*TEXTS[70:], *TEXTS[69::-1], TEXTS[0]], tmp_path / "second")
    assert encoded == TEXTS
    np.testing.assert_array_equal(second[70:140], first[::-1])
    np.testing.assert_array_equal(second[140], first[0])
    third = built(tiny_encoder, TEXTS, tmp_path / "third")
    assert len(encoded) == 140
    np.testing.assert_array_equal(third, [*first, *second[:70]])
    # Other vectors have a place of their own; a prompt of queries changes none.
    built(tiny_encoder, TEXTS, tmp_path / "cls", pooling="cls")
    assert len(encoded) == 280
    built(tiny_encoder, TEXTS, tmp_path / "query", query_prompt="lion")
    assert len(encoded) == 280


def test_the_blocks_of_a_table_do_not_look_up_each_other(
    tiny_encoder: str, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up takes time for each part: the number of parts must not grow with the number of blocks."""
    vectors = TextVectors(DenseRanking(tiny_encoder), 8, "cpu")
    table = [*TEXTS, TEXTS[0]]
    look_up = create_autospec(RowLookup.first_rows, side_effect=RowLookup.first_rows)
    monkeypatch.setattr(RowLookup, "first_rows", look_up)
    once = [*vectors.blocks(table, 70)]
    look_up.assert_not_called()
    assert encoded == table
    # The next table finds all that was stored; a block of fewer texts is not stored by itself.
    twice = [*vectors.blocks(table, 70)]
    assert [len(call.args[1]) for call in look_up.call_args_list[-2:]] == [1, 1]
    assert encoded == table
    np.testing.assert_allclose(np.concatenate(twice), np.concatenate(once), atol=1e-6)


def test_vectors_of_small_and_large_tables_are_not_stored(
    tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = TextVectors(DenseRanking(tiny_encoder), 8, "cpu")
    assert len([*vectors.blocks(TEXTS[: text_vectors.FEWEST - 1], 70)]) == 1
    monkeypatch.setattr(text_vectors, "MOST", 139)
    assert len([*vectors.blocks(TEXTS, 70)]) == 2
    assert not [*cache_folder(None).glob("vectors-*")]
    monkeypatch.setattr(text_vectors, "MOST", 140)
    assert len([*vectors.blocks(TEXTS, 70)]) == 2
    assert len([*cache_folder(None).glob("vectors-*/part-*")]) == 2


def test_damaged_and_lost_parts_are_made_again(tmp_path: Path, tiny_encoder: str, encoded: list[str]) -> None:
    expected = built(tiny_encoder, TEXTS, tmp_path / "first")
    (file,) = cache_folder(None).glob("vectors-*/part-*/vectors.npy")
    file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    np.testing.assert_array_equal(built(tiny_encoder, TEXTS, tmp_path / "second"), expected)
    assert len(encoded) == 280
    np.testing.assert_array_equal(built(tiny_encoder, TEXTS, tmp_path / "third"), expected)
    assert len(encoded) == 280


def test_without_a_place_for_the_cache(
    tmp_path: Path, tiny_encoder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZOO_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        assert len(built(tiny_encoder, TEXTS, tmp_path / "first")) == 140
    assert "vectors are not kept for other commands" in caplog.text


def test_commands_share_vectors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_encoder: str,
    encoded: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """`zoo encode` of any sentence encoder, `zoo index` and `zoo fit`."""
    import zoo  # noqa: F401 - registers the checkpoints
    from zoo.cli import main

    def run(*options: str) -> str:
        assert main([*options]) == 0
        return capfd.readouterr().out

    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"d{row}", "text": text} for row, text in enumerate(TEXTS)]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"id": f"q{row}", "text": text} for row, text in enumerate(TEXTS[:20])]
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    Path("qrels.tsv").write_text("".join(f"q{row}\td{row}\t1\n" for row in range(20)))
    out = run("encode", "--encoder", tiny_encoder, "--input=docs.jsonl", "--id_column=id", "--output=vectors")
    assert out == "vectors: 140 vectors of 16 numbers\n"
    assert len(encoded) == 140
    expected = np.load("vectors/vectors.npy")
    Path("vectors.notes-of-mine").mkdir()
    assert run("index", "--embeddings=vectors", "--memory=one").startswith("one: 140 memories")
    table = ["--file=docs.jsonl", "--id_column=id", "--label_column=null"]
    dense = ["--retriever=DenseRetriever", f"--retriever.encoder={tiny_encoder}", "--retriever.device=cpu"]
    run("index", *table, "--memory=two", *dense)
    assert len(encoded) == 140
    (made,) = Path("two").rglob("index*/vectors.npy")
    np.testing.assert_array_equal(np.load(made), expected)
    run(
        "fit", "--model=RetrievalBM25", "--model.mix_retriever=true", "--data=ClickthroughDataModule",
        "--data.corpus_file=docs.jsonl", "--data.train_queries=queries.jsonl", "--data.train_judgements=qrels.tsv",
        "--data.validation_split=0.5", "--data.num_hits=9", "--run_dir=run", "--trainer.max_epochs=1",
        *(option.replace("--", "--data.") for option in dense),
    )  # fmt: skip
    assert len(encoded) == 140
    # Other options of the same encoder are another encoder's vectors.
    assert main(["index", "--embeddings=vectors", "--memory=three", *dense, "--retriever.pooling=cls"]) == 2
    assert "was not made by the encoder" in capfd.readouterr().err
