"""From texts to padded batches: tokens, vocabulary, pre-trained vectors, encodings."""
