"""Text matching: task, losses, predictor and metrics."""
