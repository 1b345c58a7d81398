"""Deployments in Prefect: what people fill in and start there."""
