"""A table in a file, of which a process holds one batch at a time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from datamodules.core.errors import DamagedError
from datamodules.corpora import stored_rows
from datamodules.corpora.rows import Rows
from datamodules.corpora.stored_rows import StoredRows
from datamodules.corpora.table import read_batches, read_table

TEXTS = [f"text {number} é\0" * (number % 3) for number in range(50)]


def batches(*sizes: int) -> list[pa.RecordBatch]:
    """Batches of these sizes, with labels."""
    ends = [*itertools.accumulate(sizes, initial=0)]
    tables = [
        Rows.from_lists(TEXTS[a:b], [f"c{n % 2}" for n in range(a, b)], [f"i{n}" for n in range(a, b)]).table
        for a, b in itertools.pairwise(ends)
    ]
    return [batch for table in tables for batch in table.to_batches()]


@pytest.mark.parametrize("sizes", [(50,), (7, 43), (20, 20, 10), (1,) * 50])
def test_any_rows_are_read_from_any_batches(sizes: tuple[int, ...], tmp_path: Path) -> None:
    parts = batches(*sizes)
    stored = StoredRows.build(tmp_path / "rows", "f", lambda: parts)
    whole = Rows(pa.Table.from_batches(parts), "texts")
    assert len(stored) == 50
    assert stored.fingerprint == whole.fingerprint == Rows(whole.table.combine_chunks(), "").fingerprint
    for rows in (range(50), range(0), range(6, 8), range(20, 40), range(49, 50)):
        blocks = [*stored.texts(rows, 8)]
        assert [text for block in blocks for text in block] == whole.texts[rows.start : rows.stop]
        assert all(len(block) == 8 for block in blocks[:-1])
    stored.save(tmp_path / "copy.arrow")
    whole.save(tmp_path / "whole.arrow")
    assert (tmp_path / "copy.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()


def test_it_is_read_once(tmp_path: Path) -> None:
    StoredRows.build(tmp_path / "rows", "f", lambda: batches(25, 25))
    again = StoredRows.build(tmp_path / "rows", "f", lambda: pytest.fail("read again"))
    assert again.sizes == [25, 25]


def test_a_damaged_file_is_read_again(tmp_path: Path) -> None:
    StoredRows.build(tmp_path / "rows", "f", lambda: batches(50))
    (tmp_path / "rows" / "rows.arrow").write_bytes(b"damaged")
    again = StoredRows.build(tmp_path / "rows", "f", lambda: batches(50))
    assert next(again.texts(range(1, 2), 1)) == [Rows.from_lists(TEXTS).texts[1]]


def test_batches_of_a_table_are_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.corpora.readers.BLOCK", 8)
    lines = ["key,text,label", *(f"k{number},a text {number % 9},{number % 2}" for number in range(30))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    columns = ("text", "label", "key")
    parts = [*read_batches(tmp_path / "table.csv", *columns)]
    assert [part.num_rows for part in parts] == [8, 8, 8, 6]
    assert pa.Table.from_batches(parts).equals(read_table(tmp_path / "table.csv", *columns).table)


def test_strings_outside_of_the_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredRows.build(tmp_path / "rows", "f", lambda: batches(50))

    class Invalid:
        @staticmethod
        def get_batch(number: int) -> pa.RecordBatch:
            offsets = pa.py_buffer(b"".join(n.to_bytes(8, "little") for n in (0, 1 << 40)))
            text = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(b"a")])
            return pa.RecordBatch.from_arrays([text], names=["text"])

        def __enter__(self) -> Invalid:
            return self

        def __exit__(self, *error: object) -> None:
            return

    monkeypatch.setattr(stored_rows.pa.ipc, "open_file", lambda file: Invalid())
    with pytest.raises(DamagedError, match=r"rows\.arrow: damaged"):
        next(stored.texts(range(1), 1))
