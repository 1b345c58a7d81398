"""Metrics, artifacts and progress: the outbox, MLflow and Prefect."""
