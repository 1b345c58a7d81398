"""Texts with one topic each."""
