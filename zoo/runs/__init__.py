"""Training and evaluation as functions of values: `zoo fit`, `zoo.fit` and the other commands of a run call them."""
