"""What a trained recurrent network does inside: its gates over the words, its keywords, its cells' topics."""
