"""Memories: labelled texts with the index that finds them, and what was retrieved from them."""
