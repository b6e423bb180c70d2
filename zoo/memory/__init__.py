"""Memories of trained models: their growth, and the weights that they get."""
