"""Questions about dialogues: task, predictor, metrics and charts."""
