"""Model folders: a trained model with everything that it names; nothing in them leads outside."""
