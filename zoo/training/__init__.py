"""Training beyond the loss: warm starts, frozen parts, sharding, closed-form fits, optimizers."""
