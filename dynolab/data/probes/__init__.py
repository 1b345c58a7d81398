"""Probe rows that need no model to make, and their flags."""
