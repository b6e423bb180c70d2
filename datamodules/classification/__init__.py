"""Labelled texts with their memories."""

from datamodules.classification.datamodule import ClassificationDataModule

__all__ = ["ClassificationDataModule"]
