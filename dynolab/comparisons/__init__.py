"""Compares trainings (arms) that share a start, by their figures over seeds."""
