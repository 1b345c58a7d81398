"""Texts with a topic each."""
