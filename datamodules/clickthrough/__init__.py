"""Queries, the documents of a collection, and judgements which of them answer a query."""

from datamodules.clickthrough.module import ClickthroughDataModule

__all__ = ["ClickthroughDataModule"]
