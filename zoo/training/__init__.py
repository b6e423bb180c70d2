"""Training beyond the loss: warm starts, frozen parts, closed-form fits, optimizers."""
