"""Builds probe sets, including rows written by the policy or by a judge-class model."""
