"""The memory that a command works on: of a model, or a folder of `zoo index`."""

from __future__ import annotations

from typing import NamedTuple

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, Memory, Retriever, open_memory
from zoo.model_folder.folder import ModelFolder, is_model


class OpenedMemory(NamedTuple):
    """A memory with the model that reads it, whose weights are not read.

    Commands on memories open one, by the name of a model or of a memory folder, and change or show it.
    """

    memory: Memory
    #: None for a memory folder.
    model: ModelFolder | None

    @classmethod
    def open(cls, name: str, retriever: Retriever | None = None, memory: str | None = None) -> OpenedMemory:
        """Open the memory of a model or another one (`memory`), or a memory folder, in the current version."""
        if not is_model(name):
            if memory is not None:
                raise InputError(f"{name}: is a memory folder; give a model, or omit --memory")
            return cls(open_memory(name, retriever), None)
        model = ModelFolder.open(name)
        retriever = retriever or model.retriever()
        opened = model.open_memory(retriever) if memory is None else open_memory(memory, retriever)
        _check_labels(model, opened)
        return cls(opened, model)

    @classmethod
    def open_to_change(
        cls, name: str, retriever: Retriever | None = None, refit: bool = False, push: str | None = None
    ) -> OpenedMemory:
        """Open a memory that can be changed; raise an `InputError` unless what follows is possible, too."""
        opened = cls.open(name, retriever)
        opened.check_push(push)
        if refit:
            opened.check_fits_weights("--refit")
        if opened.model is not None:
            opened.model.check_changeable()
        return opened

    @property
    def folder(self) -> FolderMemory:
        """The memory, which is in a folder; an `InputError` for an index of the user's."""
        if not isinstance(self.memory, FolderMemory):
            raise self.memory.is_only_read()
        return self.memory

    @property
    def columns(self) -> PlainDict:
        """The arguments of `read_table` for rows like those of the memory."""
        return {} if self.model is None else dict(self.model.meta.data.memory_columns)

    def addable_labels(self, new_labels: bool = False) -> list[str] | None:
        """Return the labels that rows of the memory may have; None = any."""
        if new_labels:
            self._check_new_labels()
        labels = self.memory.labels()
        if self.model is None or new_labels or not labels:
            return None
        return [*self.model.meta.spec.get("memory_labels", ()), *labels]

    def _check_new_labels(self) -> None:
        if self.model is None:
            raise InputError(
                f"--new_labels: {self.memory.location()} is a memory folder, which takes any label without it"
            )
        if not self.model.meta.takes_new_labels:
            raise InputError(
                f"--new_labels: a {self.model.meta.model} cannot predict labels that it was not trained with; train it"
                " again with their rows, or use a MemoryEnsemble"
            )

    def check_fits_weights(self, option: str) -> ModelFolder:
        """Return the model, or raise an `InputError` if it has no weights that can be fitted without training."""
        if (model := self.model) is None:
            raise InputError(
                f"{option}: {self.memory.location()} is a memory folder, and has no weights; name the model"
            )
        model.check_changeable()
        if not model.meta.fits_weights:
            raise InputError(
                f"{model.source}: a {model.meta.model} has no weights that could be fitted without training; train a"
                " MemoryEnsemble"
            )
        return model

    def check_push(self, push: str | None) -> None:
        """Raise an `InputError` unless the model, once changed, can be uploaded as `push`."""
        if push is None:
            return
        if self.model is None:
            raise InputError(f"--push: {self.memory.location()} is a memory folder; name the model")
        from zoo.model_folder import export  # the import takes seconds

        export.check_target(push)

    def share(self, push: str | None) -> None:
        """Upload the changed model, if `push` names a place."""
        if push is not None and self.model is not None:
            from zoo.model_folder import export  # the import takes seconds

            print(export.share(self.model.source, push))


def _check_labels(model: ModelFolder, memory: Memory) -> None:
    """Raise an `InputError` for a memory with labels that a classifier lacks."""
    known = model.meta.spec.get("memory_labels")
    if known is None:
        return
    labels = memory.labels()
    unknown = [label for label in labels if label not in known]
    if bool(labels) == bool(known) and (not unknown or model.meta.takes_new_labels):
        return
    why = f"has the label {unknown[0]!r}, which it does not know" if unknown else "has no labels"
    raise InputError(
        f"{memory.location()}: belongs to another model: it {why}; name this model's memory, or omit --memory"
    )
