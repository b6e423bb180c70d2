"""Text classification: task, predictor, metrics and charts."""
