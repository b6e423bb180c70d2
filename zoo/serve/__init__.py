"""`zoo serve`: a trained model over HTTP, with a memory that can be edited while it answers."""
