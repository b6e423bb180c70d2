"""The embedded back end: an inverted index in a local folder, searched by compiled code."""
