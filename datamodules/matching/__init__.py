"""Pairs of texts to match."""

from datamodules.matching.module import MatchingDataModule

__all__ = ["MatchingDataModule"]
