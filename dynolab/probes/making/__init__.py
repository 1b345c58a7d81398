"""Probe sets of any kinds, with those that a policy or a judge-class model writes."""
