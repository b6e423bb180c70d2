"""A classifier of independent witnesses, combined by a few weights: the default for a table of one's own."""
