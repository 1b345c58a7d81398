"""Preference pairs judged before training: the audit, CHES, and what came true."""
