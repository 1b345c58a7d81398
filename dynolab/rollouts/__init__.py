"""Rollouts: answers sampled from a policy."""
