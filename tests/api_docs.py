"""Pages of the API, from the docstrings: `make docs` writes build/docs/index.html. A warning is an error."""

import sys
import warnings
from pathlib import Path

import pdoc

import callbacks
import datamodules
import zoo


def main() -> None:
    """Write the pages to the folder that the first argument names."""
    for package in (zoo, datamodules, callbacks):
        for name in package.__all__:
            setattr(package, name, getattr(package, name))  # imported on first use
    warnings.simplefilter("error")
    # pdoc looks up the annotations of NamedTuple constructors in the wrong module, and then shows them unchanged.
    warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
    # Warnings of imported libraries.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    pdoc.render.configure(docformat="google")
    pdoc.pdoc("zoo", "datamodules", "callbacks", output_directory=Path(sys.argv[1]))


if __name__ == "__main__":
    main()
