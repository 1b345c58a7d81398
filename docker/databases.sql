-- What PostgreSQL's image makes beside its first database, on a new volume.
CREATE DATABASE mlflow;
CREATE DATABASE sweeps;
