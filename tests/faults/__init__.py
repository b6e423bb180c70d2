"""Campaigns of faults; see `python -m tests.faults --help`."""

import os

# The client of the Hub reads it when it is imported: a case asks no server outside of this machine.
os.environ["HF_HUB_OFFLINE"] = "1"
