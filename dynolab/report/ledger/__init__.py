"""Figures and tables of a training's ledger."""
