-- What PostgreSQL's image makes beside its first database, on a new volume. Workers have a user of their
-- own, who can enter the database of sweeps alone.
\getenv password SWEEPS_PASSWORD
CREATE ROLE sweeps LOGIN PASSWORD :'password';
CREATE DATABASE mlflow;
CREATE DATABASE sweeps OWNER sweeps;
REVOKE CONNECT, TEMPORARY ON DATABASE mlflow, postgres, prefect, sweeps, template1 FROM PUBLIC;
