"""`zoo audit`: the labels of a model's memory that are probably wrong."""

from __future__ import annotations

import csv
import json

from datamodules.core.errors import visible
from datamodules.core.outputs import check_output
from datamodules.core.storage import new_file
from datamodules.retrieval import open_memory
from zoo.audit.audit import Audit, audit
from zoo.loading import load
from zoo.model_folder.folder import is_model

_COLUMNS = ("id", "text", "label", "suggested", "suspicion")
_CONTRADICTIONS = ("contradicting_ids", "contradicting_labels", "contradicting_texts")


def audit_memory(model: str, output: str = "audit.csv") -> None:
    """Write the rows of a model's memory, those whose label is probably wrong first.

    Each row is judged by members that are fitted without it and by its neighbors without itself and its duplicates. The
    table has a line for each row: id, text, label, suggested label, suspicion (1 - the probability of the
    label), and up to 3 rows that contradict it (JSON lists).

    To correct labels, change the column `label` of the table where a suggestion is right:
    `zoo memory relabel MODEL --file audit.csv` makes a new version of the memory.

    Args:
        model: a run folder or a model folder; or a memory folder.
        output: the table, a CSV file.
    """
    table = check_output(output, [model])
    audited = load(model) if is_model(model) else open_memory(model)
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
    print(f"{visible(output)}: {describe(result)}")


def describe(result: Audit) -> str:
    """Return the number of rows, of labels that are probably wrong, and of conflicts."""
    count = len(result.rows)
    percent = f"{100 * result.wrong:.1f} ± {100 * result.standard_error:.1f} %"
    return (
        f"{count:,} rows; about {round(result.wrong * count):,} labels ({percent}) are probably wrong;"
        f" {result.conflicts:,} rows have the text of a row with another label"
    )
