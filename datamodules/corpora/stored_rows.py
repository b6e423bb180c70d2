"""The rows of a table that may not fit in memory, in an Arrow file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

import pyarrow as pa

from datamodules.core.arrays import damaged
from datamodules.core.errors import reason
from datamodules.core.storage import build_folder, load_json, write_json
from datamodules.corpora.rows import Rows, RowsDigest


@dataclass(frozen=True)
class StoredRows:
    """The rows of a table in a file that `Rows.load` maps; here they are read, and one batch is in memory at a time."""

    file: Path
    #: `Rows.fingerprint` of all rows.
    fingerprint: str
    #: number of rows of each batch in the file.
    sizes: list[int]

    @classmethod
    def build(
        cls, folder: Path, fingerprint: str, read: Callable[[], Iterable[pa.RecordBatch]]
    ) -> StoredRows:
        """Write the batches that `read` returns into a folder, unless it is whole; other processes wait meanwhile."""
        build_folder(folder, fingerprint, lambda partial: _write(partial, read()))
        facts = load_json(folder / "rows.json")
        return cls(folder / "rows.arrow", facts["fingerprint"], facts["sizes"])

    def __len__(self) -> int:
        return sum(self.sizes)

    def save(self, path: Path) -> None:
        """Copy the file, whose bytes are those that `Rows.save` writes."""
        shutil.copyfile(self.file, path)

    def texts(self, rows: range, block: int) -> Iterator[list[str]]:
        """Yield the texts of consecutive rows in blocks."""
        texts = self._texts(rows)
        while part := list(islice(texts, block)):
            yield part

    def _texts(self, rows: range) -> Iterator[str]:
        # Pages of a mapped file would count as memory of this process.
        with pa.OSFile(str(self.file)) as file, pa.ipc.open_file(file) as reader:
            for number, (end, size) in enumerate(zip(accumulate(self.sizes), self.sizes, strict=True)):
                start = end - size
                if start < rows.stop and rows.start < end:
                    first, last = max(rows.start - start, 0), min(rows.stop - start, size)
                    yield from self._column(reader, number).slice(first, last - first).to_pylist()

    def _column(self, reader: pa.RecordBatchFileReader, number: int) -> pa.Array:
        """Return the texts of a batch; a `DamagedError` if they lie outside of the file."""
        try:
            batch = reader.get_batch(number)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise damaged(self.file, reason(error)) from error
        return batch.column("text")


def _write(folder: Path, batches: Iterable[pa.RecordBatch]) -> None:
    digest, sizes = RowsDigest(), []
    with Rows.writer(folder / "rows.arrow") as write:
        for batch in batches:
            if not batch.num_rows:  # the file has no batch without rows
                continue
            digest.update(batch)
            sizes.append(batch.num_rows)
            write(Rows(pa.Table.from_batches([batch]), str(folder)))
    write_json(folder / "rows.json", {"fingerprint": digest.hexdigest(), "sizes": sizes})
