"""Labelled texts with their memories."""

from datamodules.classification.module import ClassificationDataModule

__all__ = ["ClassificationDataModule"]
