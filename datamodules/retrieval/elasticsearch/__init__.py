"""The Elasticsearch back end: lexical and dense retrieval on a server."""
