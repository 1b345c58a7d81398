"""Probes: answers whose likelihood is watched, their scores, and the paths these draw."""
