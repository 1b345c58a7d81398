"""Classifiers trained many at once, their seeds, targets and label noise."""
