"""Base of a classifier whose batches have the vectors of their memories."""

from __future__ import annotations

import logging
import os
from functools import partial

from typing_extensions import override

from datamodules.batch import BatchContents
from datamodules.classification import ClassificationDataModule
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.dense.vector_store import VectorStore, store_folder
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.tasks.classification.predictor import ClassificationPredictor
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.encoders import EncodesMemory, FrozenEncoder

log = logging.getLogger("zoo")


class ReadsMemoryVectors(EncodesMemory, FrozenEncoder, ClassificationTask):
    """A classifier whose encoder reads texts and memories alike.

    A batch has the words of its memories, or their vectors: those of the whole memory, if they are stored with it or
    encoding them costs less than reading the batches.
    """

    _encoded_memory: EncodedMemory | None = None

    @override
    def setup(self, stage: str) -> None:
        self._encoded_memory = None  # it belongs to the data of an earlier run
        super().setup(stage)

    @override
    def read_memory(
        self, data: ClassificationDataModule, memory: Memory | None, num_texts: int | None = None
    ) -> None:
        before, self._encoded_memory = self._encoded_memory, None
        if not self.uses_memory or not isinstance(memory, FolderMemory):
            return
        encoder = self.encoder_fingerprint(data)
        if before is not None and before.is_of(memory, encoder):
            self._encoded_memory = before
            return
        store, texts = VectorStore(store_folder(memory.folder, encoder)), memory.rows.texts
        missing = store.missing(texts)
        if missing and not os.access(memory.folder, os.W_OK):
            log.info("%s is read-only: its texts are encoded with each batch", memory.folder)
        # For a few texts, only their own memories are encoded, together with them.
        elif num_texts is None or missing <= num_texts * data.options.num_memories:
            predictor, length = ClassificationPredictor(self, data), data.lengths[1]
            encode = partial(predictor.raw_vectors, length=length)
            self._encoded_memory = EncodedMemory(memory, store.vectors(texts, encode), encode, encoder)

    @override
    def attach(self, split: str) -> None:
        super().attach(split)
        # A frozen encoder has its final weights when `on_fit_start` encodes the training texts.
        is_first = split == "train" and self.encoder_is_frozen and self._encoded_memory is None
        if self.uses_memory and (is_first or self.is_evaluated(split)):
            data = self.training_data
            # A prepared split is measured without a server.
            if data.has_memory and not data.retriever.is_on_server:
                self.read_memory(data, data.open_memory(), len(data.split(split).rows))
                data.retriever.close()

    @override
    def batch_contents(self, split: str) -> BatchContents:
        return super().batch_contents(split)._replace(encoded_memory=self._encoded_memory)
