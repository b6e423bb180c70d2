"""Dense retrieval: texts compared by the vectors of an encoder."""
