"""Tables of the papers: what a YAML says, the runs, and what is written of them."""
