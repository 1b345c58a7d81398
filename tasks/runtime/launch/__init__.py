"""Ranks, GPUs and hosts: what starts a job's processes and waits for them."""
