"""Training many classifiers at once; their seeds, targets and label noise."""
