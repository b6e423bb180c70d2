"""The one exception for what a user can put right."""


class InputError(ValueError):
    """Something that the user gave can't be used.

    The message is one line. It names the file, row or option and says what to do; the command line prints
    it without a traceback and exits with 2.
    """


class DamagedError(InputError):
    """What is on the disk is not what was written there; where it can be made again, it is."""
