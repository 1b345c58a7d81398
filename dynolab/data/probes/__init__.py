"""Probe rows that need no model to make, and what a person should know of them."""
