"""Document retrieval: task, predictor, metrics and mined negatives."""
