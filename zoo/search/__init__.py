"""`zoo index`, `search`, `encode`, `fuse` and `measure`."""
