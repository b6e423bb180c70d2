"""The one exception for what a user can put right, how what was wrong is repeated, and a check that all share."""

#: Characters that a message repeats of what was wrong: a table's header may have 20,000.
LONGEST = 200


class InputError(ValueError):
    """Something that the user gave can't be used.

    The message is one line. It names the file, row or option and says what to do; the command line prints
    it without a traceback and exits with 2.
    """


class DamagedError(InputError):
    """What is on the disk is not what was written there; where it can be made again, it is."""


def check_count(name: str, count: int, most: int | None = None) -> None:
    """Refuse a number of things that is below 1, or beyond what is possible.

    Raises:
        InputError: names the option.
    """
    if count < 1 or (most is not None and count > most):
        raise InputError(f"--{name} {count}: must be 1 " + ("or more" if most is None else f"to {most:,}"))


def excerpt(wrong: object, longest: int = LONGEST) -> str:
    """What was wrong, on one line and not longer than a message bears.

    Args:
        wrong: a value that the user gave, or an error of which only the words count.
        longest: characters.
    """
    # A value of millions of characters is not looked at in whole.
    text = " ".join(str(wrong)[: 20 * longest].split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def reason(error: BaseException) -> str:
    """What an error says, as an excerpt; its class where it says nothing."""
    return excerpt(error) or type(error).__name__
