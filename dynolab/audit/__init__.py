"""Ranks preference pairs before training (audit, CHES), and checks the rankings afterwards."""
