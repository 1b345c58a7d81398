"""Classifiers: many trained at once, their forces and their learning paths."""
