"""Tasks: steps, losses, metrics and predictions around a network."""
