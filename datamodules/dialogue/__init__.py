"""Dialogues with questions about them, answered by one of their words."""

from datamodules.dialogue.datamodule import DialogueDataModule

__all__ = ["DialogueDataModule"]
