"""A changed model is uploaded."""

from __future__ import annotations


def share_changed(push: str | None, model: str, change: str, file: str | None) -> None:
    """Upload a model after a change by the rows of a table, if `push` names a place."""
    if push is not None:
        from zoo.model_folder import sharing  # the import takes seconds

        tables = [] if file is None else [sharing.table_of(change, file)]
        print(sharing.share(model, push, tables=tables))
