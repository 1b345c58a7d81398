"""The flows that a user starts, one module each."""
