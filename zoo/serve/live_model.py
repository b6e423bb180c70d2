"""A model in service, which follows the versions of its memory; any process may write the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from datamodules.core.errors import DamagedError, InputError, reason
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory, Memory, UnknownLabels
from zoo.loading import load
from zoo.memory.opened import OpenedMemory
from zoo.model_folder.folder import ModelFolder
from zoo.model_folder.state import Fitted
from zoo.tasks.classification.drift import drift
from zoo.tasks.classification.predictor import ClassificationPredictor
from zoo.tasks.predictor import Predictor
from zoo.tasks.records import as_record

#: Number of the last texts that are compared with the held-out rows.
_COMPARED_TEXTS = 1000

ResultT = TypeVar("ResultT")


#: Inode, time and size of the file of a model's state; another state has other values.
Version: TypeAlias = tuple[int, int, int]


class Served(NamedTuple):
    """One version of the model: requests that began with it also end with it."""

    version: Version
    #: the values that were fitted to the version of the memory.
    fitted: Fitted
    folder: ModelFolder
    predictor: Predictor[Any, Any]

    @property
    def memory(self) -> Memory:
        """The memory; an `InputError` if the model reads none."""
        if self.predictor.memory is None:
            raise InputError(f"{self.folder.source}: this model reads no memory")
        return self.predictor.memory

    @property
    def memory_version(self) -> int | None:
        """Version of the memory; None for an index of the user's, and without a memory."""
        memory = self.predictor.memory
        return memory.version if isinstance(memory, FolderMemory) else None

    def records(self, texts: Sequence[str]) -> list[PlainDict]:
        """The lines of `zoo predict` for texts."""
        return list(self.predictor.text_records(texts))


class LiveModel:
    """The current version of a model, for any number of threads.

    The network is loaded once. When another process, or `write`, has switched the memory to a new version, the next
    request opens it; when weights were fitted (`zoo memory tune`), the model is loaded again.
    """

    def __init__(self, source: str, device: str = "cpu") -> None:
        self.source, self.device = source, device
        self._opening, self._writing = threading.Lock(), threading.Lock()
        # How like their memories the last texts were.
        self._likeness: deque[float] = deque(maxlen=_COMPARED_TEXTS)
        self._served = self._open()

    def current(self) -> Served:
        """Return the current version, opened if it is new: after a call of `stat` if it is not."""
        served = self._served
        if _version_of(served.folder) == served.version:
            return served
        with self._opening:
            # Read before the files: whatever changes meanwhile is seen by the next request.
            version, served = _version_of(self._served.folder), self._served
            try:
                if version != served.version:
                    state = served.folder.state
                    is_same = state.fitted_to(state.version) == served.fitted
                    self._served = self._with_current_memory(served, version) if is_same else self._open()
                return self._served
            except InputError:
                if version == _version_of(self._served.folder):
                    raise
        # Another process has meanwhile deleted this version (`zoo memory compact`).
        return self.current()

    def predict(
        self,
        served: Served,
        texts: Sequence[str],
        max_error: float | None = None,
        confidence: float = 0.95,
        label_sets: float | None = None,
    ) -> list[PlainDict]:
        """The lines of `zoo predict` for texts, with a classifier's options."""
        predictor = served.predictor
        if not isinstance(predictor, ClassificationPredictor):
            if max_error is not None or label_sets is not None:
                raise InputError("max_error, label_sets: only a classifier has them")
            return served.records(texts)
        predictions = predictor.predict(
            texts, max_error=max_error, confidence=confidence, label_sets=label_sets
        )
        self._likeness.extend(map(predictor.likeness, predictions))
        return list(map(as_record, predictions))

    def drift(self) -> PlainDict:
        """Compare the last texts of this process with the held-out rows; see `zoo.tasks.classification.drift`."""
        predictor = self.current().predictor
        if not isinstance(predictor, ClassificationPredictor):
            raise InputError("drift: only a classifier is compared with its held-out rows")
        found = drift(predictor.held_out_likeness(), list(self._likeness))
        return {**found._asdict(), "is_alarm": found.is_alarm, "summary": str(found)}

    def write(self, change: Callable[[OpenedMemory], ResultT]) -> ResultT:
        """Change the memory. Other writers wait.

        When this returns, the new version is on the disk, and every later request to any process uses it.
        """
        with self._writing:
            served = self.current()
            served.folder.check_changeable()
            if not isinstance(served.memory, FolderMemory):
                raise served.memory.is_only_read()
            # Requests in flight read the version that is open.
            return change(OpenedMemory(_reopened(served.memory), served.folder))

    def _open(self) -> Served:
        folder = ModelFolder.open(self.source)
        version, state = _version_of(folder), folder.state
        predictor = load(folder, device=self.device)
        if predictor.memory is None and predictor.answers_from_memory and predictor.data.memory is not None:
            predictor = predictor.with_memory(predictor.data.memory.open())
        return Served(version, state.fitted_to(state.version), folder, predictor)

    @staticmethod
    def _with_current_memory(served: Served, version: Version) -> Served:
        memory = served.predictor.memory
        if not isinstance(memory, FolderMemory):
            return served._replace(version=version)
        return served._replace(version=version, predictor=served.predictor.with_memory(_reopened(memory)))


def add_rows(
    live: LiveModel, rows: Rows, keep_ids: bool, new_labels: bool, skip_unknown: bool
) -> tuple[PlainDict, list[str]]:
    """Add rows to the memory as `zoo memory add` does; return the counts and the ids of the new rows."""

    def change(opened: OpenedMemory) -> tuple[PlainDict, list[str]]:
        memory, labels = opened.folder, opened.addable_labels(new_labels)
        unknown: UnknownLabels = "skip" if skip_unknown else "refuse"
        done = memory.add(rows, labels, unknown, keep_ids)
        ids = memory.rows.table.column("id").slice(done.rows - done.added).to_pylist()
        return done._asdict(), ids

    return live.write(change)


def _reopened(memory: FolderMemory) -> FolderMemory:
    """Open the current version; the given memory stays open."""
    return FolderMemory(memory.folder, memory.retriever.without_index(), pointer=memory.pointer)


def _version_of(folder: ModelFolder) -> Version:
    try:
        state = folder.state_file.stat()
    except OSError as error:
        raise DamagedError(f"{folder.source}: can't be read: {reason(error)}") from error
    return state.st_ino, state.st_mtime_ns, state.st_size
