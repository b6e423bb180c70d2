"""Pairs of texts to match."""
