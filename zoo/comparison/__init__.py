"""Runs side by side: read from their folders, put in tables, drawn on a page."""
