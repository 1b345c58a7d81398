"""Benchmarks of this wing: `python -m experiments.benchmarks.NAME`."""
