"""Prefect and MLflow as child processes, the guard before both, and the bucket of a store."""
