"""Comparison of runs: read from their folders, put in tables, drawn on a page."""
