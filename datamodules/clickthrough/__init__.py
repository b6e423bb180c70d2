"""Queries, the documents of a collection, and judgements which of them answer a query."""

from datamodules.clickthrough.datamodule import ClickthroughDataModule

__all__ = ["ClickthroughDataModule"]
