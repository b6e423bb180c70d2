"""A classifier of independent members, combined by a few weights: the default for a table of one's own."""
