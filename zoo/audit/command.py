"""`zoo audit`: the labels of a model's memory that are probably wrong, and their correction."""

from __future__ import annotations

import csv
import json

from datamodules.core.errors import InputError, visible
from datamodules.core.outputs import check_output
from datamodules.core.storage import new_file, write_text
from datamodules.corpora.table import read_table
from datamodules.retrieval import Retriever, open_memory
from zoo.audit.audit import Audit, audit
from zoo.audit.page import page as page_of
from zoo.loading import load
from zoo.memory.edit import relabel_rows
from zoo.memory.opened import OpenedMemory
from zoo.model_folder.folder import is_model

_COLUMNS = ("id", "text", "label", "suggested", "suspicion")
_CONTRADICTIONS = ("contradicting_ids", "contradicting_labels", "contradicting_texts")


def audit_memory(
    model: str,
    output: str = "audit.csv",
    page: str | None = None,
    apply: str | None = None,
    allow_empty_class: bool = False,
    refit: bool = False,
    retriever: Retriever | None = None,
) -> None:
    """Write the rows of a model's memory, those whose label is probably wrong first; or correct confirmed ones.

    Each row is judged by members that are fitted without it and by its neighbors without itself and its duplicates. The
    table has a line for each row: id, text, label, suggested label, suspicion (1 - the probability of the
    label), and up to 3 rows that contradict it (JSON lists).

    To correct labels, change the column `label` of the table where a suggestion is right, and name the table with
    --apply: the memory has a new version with these labels.

    Args:
        model: a run folder or a model folder; or a memory folder.
        output: the table, a CSV file.
        page: a HTML file for the 1,000 most suspicious rows; null: none.
        apply: relabel the memory's rows by a table with the columns id and label instead; other rows stay.
        allow_empty_class: with --apply, whether the last row of a class may get another label.
        refit: with --apply, see `zoo memory remove`.
        retriever: back end to use instead of the model's (another server).
    """
    if apply is not None:
        opened = OpenedMemory.open_to_change(model, retriever, refit)
        # Labels are names: those of the memory, even where the training table has numbers for them.
        rows = read_table(apply, "id", "label")
        relabel_rows(opened, list(rows.texts), rows.labels or [], allow_empty_class, refit, retriever)
        return
    table = check_output(output, [model])
    page_file = None if page is None else check_output(page, [model], "--page")
    if page_file == table:
        raise InputError(f"--page {visible(output)}: is the file of --output; name another file")
    audited = load(model, retriever=retriever) if is_model(model) else open_memory(model, retriever)
    result = audit(audited)
    with new_file(table, "--output") as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*_COLUMNS, *_CONTRADICTIONS])
        for row in result.rows:
            against = [
                json.dumps([getattr(each, name) for each in row.contradictions], ensure_ascii=False)
                for name in ("id", "label", "text")
            ]
            writer.writerow([row.id, row.text, row.label, row.suggested, f"{row.suspicion:.4f}", *against])
    summary = describe(result)
    if page_file is not None:
        write_text(page_file, page_of(result, f"Audit of {model}", summary), "--page")
    print(f"{visible(output)}: {summary}")


def describe(result: Audit) -> str:
    """Return the number of rows, of labels that are probably wrong, and of conflicts."""
    count = len(result.rows)
    percent = f"{100 * result.wrong:.1f} ± {100 * result.standard_error:.1f} %"
    return (
        f"{count:,} rows; about {round(result.wrong * count):,} labels ({percent}) are probably wrong;"
        f" {result.conflicts:,} rows have the text of a row with another label"
    )
