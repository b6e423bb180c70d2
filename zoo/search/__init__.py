"""`zoo index`, `search` and `encode`."""
