"""Memories of trained models: how they grow, and how much they are trusted."""
