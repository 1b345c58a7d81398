"""Probes in other people's trainers."""
