"""Training from Python: `zoo.fit`, and the estimator for scikit-learn."""
