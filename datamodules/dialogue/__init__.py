"""Dialogues with questions about them, answered by one of their words."""
