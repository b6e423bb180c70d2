"""The other rows of the papers' tables: one file a family, each from its own paper."""
