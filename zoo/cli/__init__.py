"""The `zoo` command. Each of its commands is imported when it is called, so that help is there at once."""

from zoo.cli.main import main

__all__ = ["main"]
