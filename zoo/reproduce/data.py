"""The data of a table's rows: their files, and their data modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from datamodules.base import DataModule
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.reproduce.table import Row, Table

#: Data options that only training needs.
_TRAINING = ("retriever", "word_vectors", "memory")


@dataclass(frozen=True)
class RowData:
    """The data of one row; relative file names are under `folder`."""

    table: Table
    row: Row
    folder: Path

    def files(self) -> dict[str, str | list[str]]:
        """Return data option -> its absolute file name, or several."""
        options, kind = self._options(), self.table.data_type.options_type
        files: dict[str, str | list[str]] = {}
        for name in kind.files:
            value = options.get(name)
            if isinstance(value, str):
                files[name] = self._absolute(value)
            elif isinstance(value, list) and name not in kind.name_lists:
                files[name] = [self._absolute(file) for file in value]
        return files

    def paths(self) -> Iterator[tuple[str, Path]]:
        """Yield option and path of each local file."""
        for name, files in self.files().items():
            for file in [files] if isinstance(files, str) else files:
                if not file.startswith("hub:"):
                    yield name, Path(file)

    def module(self, **changes: object) -> DataModule:
        """Make the data module, with changed options, but without vectors and memories; nothing is read yet."""
        options = {**self._options(), **self.files()}
        options = {key: value for key, value in options.items() if key.partition(".")[0] not in _TRAINING}
        return self.table.data_type(**{**options, **changes})

    @property
    def has_test(self) -> bool:
        """True if the data set comes with a test."""
        data = self.module()
        return data.options.tables["test"] is not None or data.options.is_split_off("test")

    @property
    def test_files(self) -> PlainDict:
        """The options of a test of its own: its files, or the table that it is split from."""
        names = self.table.data_type.options_type.test_files
        return {name: files for name, files in self.files().items() if name in names}

    def _options(self) -> PlainDict:
        own = {key: value for key, value in self.row.overrides.items() if key.startswith("data.")}
        changes = {key.removeprefix("data."): value for key, value in own.items()}
        return {**self.table.base["data"]["init_args"], **changes}

    def _absolute(self, file: str) -> str:
        return file if file.startswith("hub:") else str((self.folder / file).resolve())


def read_test(file: Path, data: RowData) -> PlainDict:
    """Read the test of a row before hours of training; return the options with which `zoo test` reads it."""
    with_header: PlainDict = {"test_file": str(file.resolve())}
    without = {**with_header, **data.table.columns_without_header}
    try:
        data.module(**with_header).read_tables(["test"])
    except InputError as error:
        try:
            data.module(**without).read_tables(["test"])
        except InputError:
            raise error from None
        return without
    return with_header


def without_absent_tests(table: Table, folder: Path) -> Table:
    """Remove the test from rows of which only the test's files are missing."""
    rows = dict(table.rows)
    for row in table.rows.values():
        missing = [name for name, file in RowData(table, row, folder).paths() if not file.exists()]
        if missing and all(name.startswith("test_") for name in missing):
            kept = {key: value for key, value in row.overrides.items() if not key.startswith("data.test_")}
            rows[row.name] = replace(row, overrides=kept)
    return replace(table, rows=rows)
