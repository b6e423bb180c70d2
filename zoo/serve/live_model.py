"""A model in service, which follows the versions of its memory; any process may write the next one."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, TypeVar

from datamodules.core.errors import DamagedError, InputError, reason
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, Memory
from zoo.loading import load
from zoo.memory.answers import answers_around
from zoo.memory.opened import Edit, OpenedMemory
from zoo.model_folder.folder import ModelFolder
from zoo.model_folder.state import FittedFiles
from zoo.serve.bodies import Predicted
from zoo.tasks.classification.predictor import ClassificationPredictor
from zoo.tasks.predictor import Predictor
from zoo.tasks.records import as_record

#: Number of the last texts that are compared with the held-out rows.
_COMPARED_TEXTS = 1000

ResultT = TypeVar("ResultT")
#: Inode, time and size of the file of a model's state; another state has other values.
StateVersion: TypeAlias = tuple[int, int, int]


class Served(NamedTuple):
    """One version of the model: requests that began with it also end with it."""

    version: StateVersion
    #: the values that were fitted to the version of the memory.
    fitted: FittedFiles
    folder: ModelFolder
    predictor: Predictor

    @property
    def memory(self) -> Memory:
        """The memory; an `InputError` if the model reads none."""
        if self.predictor.memory is None:
            raise InputError(f"{self.folder.source}: this model reads no memory")
        return self.predictor.memory

    @property
    def opened(self) -> OpenedMemory:
        """The memory with its model; an `InputError` if the model reads none."""
        return OpenedMemory(self.memory, self.folder)

    @property
    def memory_version(self) -> int | None:
        """Version of the memory; None for an index of the user's, and without a memory."""
        memory = self.predictor.memory
        return memory.version if isinstance(memory, FolderMemory) else None


class LiveModel:
    """The current version of a model, for any number of threads.

    The network is loaded once. When another process, or `write`, has switched the memory to a new version, the next
    request opens it; when weights were fitted (`zoo memory tune`), the model is loaded again.
    """

    def __init__(self, source: str, device: str = "cpu") -> None:
        self.source, self.device = source, device
        self._opening, self._writing = threading.Lock(), ThreadPoolExecutor(1)
        #: of the last texts.
        self._familiarity: deque[float] = deque(maxlen=_COMPARED_TEXTS)
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
                    self._served = self._next(served, version)
                return self._served
            except InputError:
                if version == _version_of(self._served.folder):
                    raise
        # Another process has meanwhile deleted this version (`zoo memory compact`).
        return self.current()

    def predict(self, served: Served, body: Predicted) -> list[PlainDict]:
        """The lines of `zoo predict` for the texts of a request."""
        predictor, texts = served.predictor, body.all_texts()
        if not isinstance(predictor, ClassificationPredictor):
            if (body.max_error, body.label_sets, body.unknown) != (None, None, None):
                raise InputError("max_error, label_sets, unknown: only a classifier has them")
            return list(predictor.text_records(texts))
        levels = body.model_dump(include={"max_error", "confidence", "label_sets", "unknown"})
        predictions = predictor.predict(texts, **levels)
        self._familiarity.extend(each.familiarity for each in predictions if each.familiarity is not None)
        return list(map(as_record, predictions))

    def drift(self) -> PlainDict:
        """Compare the last texts of this process with the held-out rows; see `zoo.tasks.classification.held_out`."""
        predictor = self.current().predictor
        if not isinstance(predictor, ClassificationPredictor):
            raise InputError("drift: only a classifier is compared with its held-out rows")
        return predictor.drift(list(self._familiarity))

    def preview(self, edit: Edit[Any], texts: list[str]) -> PlainDict:
        """Make an edit of a copy, which is loaded: the answers to texts that change, the accuracy on held-out rows."""
        served = self.current()
        served.folder.check_changeable()
        done, answers, held_out = answers_around(served.opened, texts, edit, None)
        changes = []
        for before, after in answers:
            if before.label != after.label:
                old, new = ([each.label, each.probability] for each in (before, after))
                changes.append({"text": before.text, "before": old, "after": new})
        return {**done._asdict(), "changes": changes, "held_out": held_out}

    def write(self, change: Callable[[OpenedMemory], ResultT]) -> ResultT:
        """Change the memory; then it is on the disk, for any later request to any process."""
        served = self.current()
        served.folder.check_changeable()
        # Requests in flight read the version that is open.
        return change(OpenedMemory(_reopened(served.opened.folder), served.folder))

    async def write_in_turn(self, change: Callable[[OpenedMemory], ResultT]) -> ResultT:
        """Change the memory after the writers that wait, which take no thread from other requests."""
        return await asyncio.wrap_future(self._writing.submit(self.write, change))

    def _open(self) -> Served:
        folder = ModelFolder.open(self.source)
        version, state = _version_of(folder), folder.state
        predictor = load(folder, device=self.device)
        if predictor.memory is None and predictor.answers_from_memory and predictor.data.memory is not None:
            predictor = predictor.with_memory(predictor.data.memory.open())
        return Served(version, state.fitted_to(state.version), folder, predictor)

    def _next(self, served: Served, version: StateVersion) -> Served:
        state, predictor = served.folder.state, served.predictor
        if state.fitted_to(state.version) != served.fitted:
            return self._open()
        if isinstance(predictor.memory, FolderMemory):
            # Not a later one: other values may be fitted to it.
            predictor = predictor.with_memory(_reopened(predictor.memory, state.version))
        return served._replace(version=version, predictor=predictor)


def _reopened(memory: FolderMemory, version: int | None = None) -> FolderMemory:
    """Open a version, None opens the current one; the given memory stays open."""
    return FolderMemory(memory.folder, memory.retriever.without_index(), version)


def _version_of(folder: ModelFolder) -> StateVersion:
    try:
        state = folder.state_file.stat()
    except OSError as error:
        raise DamagedError(f"{folder.source}: can't be read: {reason(error)}") from error
    return state.st_ino, state.st_mtime_ns, state.st_size
