"""What a task needs around a network: steps, losses, metrics, optimizers."""
