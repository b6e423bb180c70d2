"""`zoo reproduce`: a paper's table from one YAML file, every row for every seed, with the paper's figures."""

from __future__ import annotations

import sys
from pathlib import Path

from datamodules.core.errors import InputError, check_count, visible
from datamodules.core.storage import named_disk_errors
from zoo.reproduce.run import Figures, Reproduction, RowFailed, describe_skipped
from zoo.reproduce.table import load_table, shipped_tables


def reproduce(
    name: str | None = None,
    data_dir: str | None = None,
    test_file: str | None = None,
    rows: str | None = None,
    seeds: int | None = None,
    run_dir: str | None = None,
    encoder: str | None = None,
    list_runs: bool = False,
) -> Figures:
    """Run a paper's table: every row for every seed, with the paper's figures. Without arguments, list the tables.

    Writes `table.json` and `table.md`. The same command resumes a killed table; finished runs are kept.

    Args:
        name: a table's name, or its YAML file.
        data_dir: the folder with the data.
        test_file: a table of test rows with the training file's columns, for rows whose data set comes without a test.
        rows: names of rows, or single runs as ROW/SEED, e.g. "M1,M7/2"; null: all. What they start from is run, too.
        seeds: runs of each row; null: the table's own number.
        run_dir: the table's folder; null: runs/reproduce/NAME. A row's runs are ROW/seed-1, ... in it.
        encoder: Hub name or folder of a transformer in place of the table's own.
        list_runs: only print the runs: ROW/SEED, its state, the run that it starts from, and its files, between tabs.
    """
    if name is None and data_dir is None:
        for table in map(load_table, shipped_tables()):
            minutes = table.minutes
            time = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
            print(f"{table.name:22} {time:>8}  {table.description}")
        return {}
    if name is None or data_dir is None:
        raise InputError("zoo reproduce: give a table and --data_dir; `zoo reproduce` alone shows the tables")
    if encoder is not None and Path(encoder).is_dir():
        encoder = str(Path(encoder).resolve())
    table = load_table(name, encoder)
    wanted = [*table.rows] if rows is None else [row.strip() for row in rows.split(",")]
    for row in (each.partition("/")[0] for each in wanted):
        if row not in table.rows:
            raise InputError(f"--rows: {table.name} has no row {row!r}; there are {', '.join(table.rows)}")
    number = table.seeds if seeds is None else seeds
    check_count("seeds", number)
    out = Path(run_dir or f"runs/reproduce/{table.name}").resolve()
    test = None if test_file is None else Path(test_file)
    reproduction = Reproduction(table, wanted, number, Path(data_dir), test, out)
    for line in describe_skipped(reproduction.skipped):
        print(visible(line), file=sys.stderr if list_runs else sys.stdout)
    if list_runs:
        for line in reproduction.run_lines():
            print(*map(visible, line.split("\t")), sep="\t")
        return {}
    with named_disk_errors(out, "--run_dir"):
        out.mkdir(parents=True, exist_ok=True)
    reproduction.run()
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"table: {out / 'table.md'} (.json)")
    if failed := reproduction.failed:
        raise RowFailed(f"{len(failed)} of the runs failed: {', '.join(failed)}")
    return reproduction.write()
