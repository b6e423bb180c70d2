"""PNG pictures by matplotlib."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.errors import reason
from datamodules.core.storage import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("zoo")

#: Fonts on Linux, macOS and Windows with letters that matplotlib's own lacks: Chinese, Japanese, Korean.
_MORE_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Droid Sans Fallback",
    "Arial Unicode MS", "Apple SD Gothic Neo", "Microsoft YaHei", "Malgun Gothic",
)  # fmt: skip


def write_picture(file: Path, draw: Callable[[], Figure]) -> Path | None:
    """Write a PNG file in one step, and return it; None if drawing failed, which is logged and ends no run."""
    try:
        picture = png(draw)
    except Exception as error:  # anything that matplotlib raises
        where = f"{file.parent.name}/{file.name}"
        log.warning("skipped picture %s: %s: %s", where, type(error).__name__, reason(error))
        log.debug("traceback", exc_info=True)
        file.unlink(missing_ok=True)
        return None
    with new_file(file) as unfinished:
        unfinished.write_bytes(picture)
    return file


def png(draw: Callable[[], Figure]) -> bytes:
    """Draw a figure in which `$` begins no formula; letters that no font of the machine has become boxes."""
    from matplotlib import font_manager, rc_context  # the import takes a second

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in _MORE_FONTS if font in installed)]
    file = BytesIO()
    with rc_context({"text.parse_math": False, "font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        draw().savefig(file, format="png", dpi=120)
    return file.getvalue()
