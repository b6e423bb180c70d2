"""The option parser, whose errors are `InputError`s."""

from __future__ import annotations

import re
from argparse import ArgumentError
from typing import Any

from jsonargparse import ArgumentParser
from typing_extensions import override

from datamodules.core.errors import LONGEST, InputError, excerpt, raised_in, reason


class Parser(ArgumentParser):
    """A parser that raises an `InputError` for wrong options, and errors of the classes that it makes as they are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"exit_on_error": False, "allow_abbrev": False, **options})

    @override
    def parse_args(self, *args: Any, **options: Any) -> Any:
        try:
            return super().parse_args(*args, **options)
        except UnicodeDecodeError as error:
            raise InputError(
                f"a file that was named, such as --config, is no text in UTF-8 ({reason(error)}); save it as UTF-8"
            ) from error
        except (ArgumentError, ValueError) as error:
            root = _root(error)
            raise root if isinstance(root, InputError) else self._refusal(error) from error

    @override
    def instantiate(self, *args: Any, **options: Any) -> Any:
        try:
            return super().instantiate(*args, **options)
        except ValueError as error:
            # The parser wraps errors of constructors.
            root = _root(error)
            if isinstance(root, ImportError) or raised_in(root).startswith("jsonargparse"):
                raise self._refusal(error) from error
            raise root from None

    def _refusal(self, error: Exception) -> InputError:
        return InputError(f"{_without_types(str(error))}; see `{self.prog} --help`")


def _root(error: BaseException) -> BaseException:
    """Return the error that others were raised from; an `InputError` before those that caused it."""
    while error.__cause__ is not None and not isinstance(error, InputError):
        error = error.__cause__
    return error


def _without_types(message: str) -> str:
    """Return a message of the parser without the types that it tried."""
    message = " ".join(message.split())
    if match := re.match(r'Parser key "model": .*Expected a dot import path string: (\S+)', message):
        from zoo.registry import MODELS

        return f"no model {excerpt(match[1])!r}; there are {', '.join(MODELS)}"
    message = re.sub(r"Does not validate against any of the Union subtypes .*?Errors: - ", "", message)
    # For a list of classes, the parser's message begins with the error of taking it as a single class.
    message = re.sub(r"Not a valid subclass of .* - (?=Problem with given class_path)", "", message)
    return excerpt(re.sub(r" - Expected a <class .*", "", message), 2 * LONGEST)
