# Prefect's and MLflow's servers with the drivers of their databases, and nothing that trains.
#   docker build --file docker/server.Dockerfile --tag dynolab-server .
FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

RUN useradd --create-home --uid 1000 dynolab \
    && install -d -m 700 -o 1000 -g 1000 /home/dynolab/app /home/dynolab/home
USER 1000
WORKDIR /home/dynolab/app

ENV DO_NOT_TRACK=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    PYTHONUNBUFFERED=1 \
    PATH=/home/dynolab/venv/bin:$PATH

COPY --chown=1000 locks/servers.lock locks/
RUN python -m venv /home/dynolab/venv \
    && pip install --no-cache-dir --no-deps --require-hashes --requirement locks/servers.lock

# The program that serves needs this much of the project.
COPY --chown=1000 dynolab/__init__.py dynolab/__init__.pyi dynolab/errors.py dynolab/
COPY --chown=1000 tasks/__init__.py tasks/
COPY --chown=1000 tasks/runtime/__init__.py tasks/runtime/
COPY --chown=1000 tasks/runtime/servers/__init__.py tasks/runtime/servers/form_checks.py \
    tasks/runtime/servers/guard.py tasks/runtime/servers/new_homes.py tasks/runtime/servers/run_names.py \
    tasks/runtime/servers/serve.py tasks/runtime/servers/
COPY --chown=1000 tasks/runtime/system/__init__.py tasks/runtime/system/child.py \
    tasks/runtime/system/secret_files.py tasks/runtime/system/processes.py tasks/runtime/system/
COPY --chown=1000 tasks/runtime/track/__init__.py tasks/runtime/track/mlflow_pages.py tasks/runtime/track/

# Containers have a root that is read only; what is compiled later would be compiled at each start.
RUN python -m compileall -q dynolab tasks
ENV HOME=/home/dynolab/home \
    PREFECT_UI_STATIC_DIRECTORY=/tmp/prefect-ui

CMD ["python", "-m", "tasks.runtime.servers.serve"]
