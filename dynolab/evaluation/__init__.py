"""Evaluates a policy's samples, and how an update changes its right answers."""
