"""Queries, the documents of a collection, and judgements which of them answer a query."""
