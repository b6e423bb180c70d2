"""Tables of the papers: their YAML files, the runs of their rows, and the reports."""
