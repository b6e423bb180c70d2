"""Errors, files, folders on disk, arrays and secrets: the base of every other package."""
