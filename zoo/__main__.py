"""`python -m zoo` is `zoo`."""

import os
import sys

# `python -m` searches the current folder first: a folder `datamodules` of the user's there would hide ours.
if os.path.abspath(sys.path[0]) == os.getcwd():
    del sys.path[0]

from zoo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
