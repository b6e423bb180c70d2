"""Trained models on disk: checkpoints, model folders, the Hugging Face Hub."""
