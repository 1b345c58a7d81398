"""Prefect, MLflow, PostgreSQL, Redis and S3 as child processes."""
