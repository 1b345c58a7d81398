"""Runs stages: key, cache, launcher, tracking, progress, services."""
