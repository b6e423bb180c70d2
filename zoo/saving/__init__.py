"""The encoder of a trained model for dense retrieval, an entry point of the package."""
