"""Probes in third-party trainers."""
