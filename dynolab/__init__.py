"""Dynolab measures the forces that training exerts on what a model says."""

__version__ = "0.1.0"
