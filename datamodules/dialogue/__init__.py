"""Dialogues with questions about them, answered by one of their words."""

from datamodules.dialogue.module import DialogueDataModule

__all__ = ["DialogueDataModule"]
