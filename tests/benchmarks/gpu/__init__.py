"""Measurements for a GPU machine; on other machines the same at toy size: python -m tests.benchmarks.gpu --help."""
