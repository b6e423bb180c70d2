"""The API's pages, from the docstrings: `make docs` writes build/docs/index.html. A warning is an error."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

import callbacks
import datamodules
import zoo


def main() -> None:
    """Write the pages."""
    for package in (zoo, datamodules, callbacks):
        for name in package.__all__:
            setattr(package, name, getattr(package, name))  # what is imported when it is first asked for
    warnings.simplefilter("error")
    # NamedTuple writes constructors whose annotations pdoc looks up in the wrong module; it shows them as they stand.
    warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
    # Of the libraries that are imported on the way.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    pdoc.render.configure(docformat="google")
    pdoc.pdoc("zoo", "datamodules", "callbacks", output_directory=Path(sys.argv[1]))


if __name__ == "__main__":
    main()
