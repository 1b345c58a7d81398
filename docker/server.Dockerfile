# Prefect's and MLflow's servers with the drivers of their databases, and nothing that trains.
#   docker build --file docker/server.Dockerfile --tag dynolab-server .
FROM python:3.11.14-slim-bookworm

RUN useradd --create-home --uid 1000 dynolab \
    && install -d -m 700 -o 1000 -g 1000 /home/dynolab/app /home/dynolab/home
USER 1000
WORKDIR /home/dynolab/app

ENV DO_NOT_TRACK=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    PYTHONUNBUFFERED=1 \
    PATH=/home/dynolab/venv/bin:$PATH

COPY --chown=1000 requirements.lock ./
RUN python -m venv /home/dynolab/venv \
    && pip install --no-cache-dir --constraint requirements.lock \
        asyncpg boto3 mlflow prefect prefect-redis "psycopg[binary]" uvicorn

# The program that serves needs this much of the project.
COPY --chown=1000 dynolab/__init__.py dynolab/errors.py dynolab/
COPY --chown=1000 tasks/__init__.py tasks/
COPY --chown=1000 tasks/runtime/__init__.py tasks/runtime/
COPY --chown=1000 tasks/runtime/servers/__init__.py tasks/runtime/servers/guard.py \
    tasks/runtime/servers/serve.py tasks/runtime/servers/
COPY --chown=1000 tasks/runtime/system/__init__.py tasks/runtime/system/child.py \
    tasks/runtime/system/secret_files.py tasks/runtime/system/processes.py tasks/runtime/system/
COPY --chown=1000 tasks/runtime/track/__init__.py tasks/runtime/track/mlflow_pages.py tasks/runtime/track/

CMD ["python", "-m", "tasks.runtime.servers.serve"]
