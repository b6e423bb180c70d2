"""The `zoo` command; a command is imported when it is called, so that help is fast."""

from zoo.cli.main import main

__all__ = ["main"]
