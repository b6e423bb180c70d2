"""Everything up to tensors: corpora, text, retrieval, and the data modules that put them together."""

from datamodules.classification import ClassificationDataModule
from datamodules.errors import InputError

__all__ = ["ClassificationDataModule", "InputError"]
