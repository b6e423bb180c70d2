"""Memories: labelled texts with their index, and the neighbors that are retrieved from them."""
