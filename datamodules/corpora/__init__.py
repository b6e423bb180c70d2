"""Readers of tables of texts: files that users give, data sets of the Hub, and splits of both."""
