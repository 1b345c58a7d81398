"""Probes: answers whose likelihood is tracked during training, their scores and learning paths."""
