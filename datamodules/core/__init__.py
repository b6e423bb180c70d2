"""Errors, files, folders on disk and secrets: what every other package stands on."""
