"""Squeezing: where the probability goes that a negative gradient takes from an answer."""
