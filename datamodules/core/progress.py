"""Progress of long work: a bar on a terminal, and elsewhere a line in the log every ten seconds."""

import io
import logging
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

log = logging.getLogger(__name__)

_SECONDS = 10.0


class _LoggedBar(tqdm):  # type: ignore[type-arg]
    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:  # a message would be the empty one of `close`
            total = "" if self.total is None else f" of {self.total:,}"
            seconds = self.format_dict["elapsed"]
            log.info("%s: %s%s%s in %.0f s", self.desc, f"{self.n:,}", total, self.unit, seconds)


def progress_bar(
    items: Iterable[Any] | None = None,
    desc: str = "",
    total: int | None = None,
    unit: str = " texts",
    is_hidden: bool = False,
    **options: Any,
) -> "tqdm[Any]":
    """Return a bar for work that takes more than two seconds; see `tqdm`."""
    if is_hidden or sys.stderr.isatty():
        return tqdm(items, desc, total, unit=unit, delay=2, disable=is_hidden, **options)
    options |= {"file": io.StringIO(), "leave": False, "mininterval": _SECONDS, "delay": _SECONDS}
    return _LoggedBar(items, desc, total, unit=unit, **options)
