"""Pairs of texts to match."""

from datamodules.matching.datamodule import MatchingDataModule

__all__ = ["MatchingDataModule"]
