"""Measurements for a GPU machine; on other machines the same at toy size: python -m tests.benchmarks.gpu --help."""

import os

# PyTorch's profiler reports each start and end; it reads this when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
