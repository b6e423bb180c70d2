"""The names in a model folder."""

from __future__ import annotations

#: Folder of the model in that of its run.
IN_RUN = "model"
MODEL, VOCABULARY, WEIGHTS = "model.json", "vocabulary.json", "model.safetensors"
#: The pointer: the current version of the memory, and the fitted values.
STATE = "state.json"
MEMORY, TOKENIZER, FITTED = "memory", "tokenizer", "fitted"
#: Fingerprint of the manifest, which has the files that never change.
KIND = "memory-zoo model 2"
