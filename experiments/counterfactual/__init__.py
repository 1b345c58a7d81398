"""Trainings without some pairs, which check what a ledger forecasts."""
