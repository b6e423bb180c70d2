"""The fit of a trained model's weights, and of members, for its memory as it is now."""

from __future__ import annotations

from datamodules.core.storage import set_key
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory
from zoo.model_folder.folder import FITTED, LEARNED, MEMORY, REPORT, ModelFolder
from zoo.model_folder.state import Fitted, write_values


def fit_again(folder: ModelFolder, rows: Rows | None, refit: bool) -> None:
    """Fit weights to a model's memory, after the members with `refit`, and switch the model to them.

    `rows` are labelled; None = the held-out rows that stayed with the model, and rows of the memory.
    """
    from zoo.loading import held_out_rows, load  # the import takes seconds

    state = folder.state
    predictor = load(folder)
    version = predictor.memory.version if isinstance(predictor.memory, FolderMemory) else 0
    before = state.fitted_to(version)
    kept = held_out_rows(folder, before)
    if rows is None and kept is not None and kept.texts is not None:
        rows = Rows.from_lists(kept.texts, kept.labels, source="the held-out rows of the model")
    task = predictor.model
    report = task.refit(predictor.data, predictor.memory, rows, refit)
    values, held_out = folder.path / FITTED, task.describe_held_out()
    fitted = Fitted(
        weights=write_values(values, "weights", task.describe_weights()),
        members=write_values(values, "members", task.describe_members()) if refit else before.members,
        held_out=None if held_out is None else write_values(values, "held_out", held_out),
    )
    folder.switch(state.with_fitted(version, fitted))
    set_key(folder.state_file, REPORT, f"fitted to version {version} of the memory: {report}")
    print(f"{folder.path}: {report}")
    if refit and (part := task.learned_by_gradients()) is not None:
        print(f"{part} has learned from the rows of the training only; {how_to_train(folder)}")


def remembering(folder: ModelFolder) -> str:
    """Name the files of a model and its run that remember rows which are no longer in the memory."""
    run, current = folder.path.parent, f"version-{folder.state.version}"
    files = [*(folder.path / name for name in LEARNED), *sorted(run.glob("checkpoints/*.ckpt"))]
    files += [each for each in (folder.path / MEMORY).glob("version-*") if each.name != current]
    return (
        f"what remembers removed rows: {', '.join(map(str, files))}, the training table and its copies in the cache of"
        " data; `zoo memory compact` deletes versions, and only a new training forgets"
    )


def how_to_train(folder: ModelFolder) -> str:
    """Return the advice to train a model again."""
    config = folder.path.parent / "config.yaml"
    from_run = f" --config {config}" if config.is_file() else ""
    return f"to train it on all rows: zoo fit{from_run} --data.train_file ALL_ROWS.csv --run_dir NEW_RUN"
