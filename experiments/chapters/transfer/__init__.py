"""Preparing task heads, and how fast two factorisations adapt."""
