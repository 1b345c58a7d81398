"""Figures and tables, one subject a file."""
