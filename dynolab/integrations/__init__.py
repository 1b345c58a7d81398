"""Probes, forces and doses in the trainers of others."""
