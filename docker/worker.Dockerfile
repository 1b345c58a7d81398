# Runs studies: as a worker of a pool, as one of a training's hosts, or alone.
#   docker build --file docker/worker.Dockerfile --tag dynolab-worker-cpu .
#   docker build --file docker/worker.Dockerfile --build-arg DEVICE=gpu --tag dynolab-worker-gpu .
#   docker run --volume dynolab:/home/dynolab/home dynolab-worker-cpu dynolab study
ARG DEVICE=cpu

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS base

# tini hands signals on and reaps what killed ranks leave.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 dynolab \
    && install -d -o 1000 -g 1000 /home/dynolab/app /home/dynolab/home
USER 1000
WORKDIR /home/dynolab/app

ENV CUBLAS_WORKSPACE_CONFIG=:4096:8 \
    DS_BUILD_OPS=0 \
    DYNOLAB_HOME=/home/dynolab/home/lab \
    OMP_WAIT_POLICY=PASSIVE \
    THP_MEM_ALLOC_ENABLE=1 \
    PYTHONUNBUFFERED=1 \
    PATH=/home/dynolab/venv/bin:$PATH

COPY --chown=1000 locks/*.lock locks/
RUN python -m venv /home/dynolab/venv

# torch comes alone, for its device: CPU builds have an index of their own, and the usual builds
# bring CUDA's runtime along, so that the host needs the driver and NVIDIA's container toolkit.
FROM base AS torch-cpu
RUN pip install --no-cache-dir --no-deps --require-hashes \
    --index-url https://download.pytorch.org/whl/cpu --requirement locks/torch-cpu.lock

FROM base AS torch-gpu
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement locks/torch.lock

# hadolint ignore=DL3006
FROM torch-${DEVICE} AS worker
WORKDIR /home/dynolab/app
# What studies need, without the tests' tools; a change of code does not install it again. What has no
# wheel is built by what is locked.
COPY --chown=1000 pyproject.toml README.md ./
COPY --chown=1000 dynolab/__init__.py dynolab/
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement locks/build.lock \
    && pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes \
        --requirement locks/servers.lock --requirement locks/worker.lock \
    && pip install --no-cache-dir --no-deps --no-build-isolation --editable .

COPY --chown=1000 . .
# Containers have a root that is read only: caches are in the volume of the home, and what is compiled
# later would be compiled at each start.
RUN python -m compileall -q .
ENV HOME=/home/dynolab/home \
    PREFECT_UI_STATIC_DIRECTORY=/tmp/prefect-ui

ENTRYPOINT ["tini", "-s", "--"]
CMD ["dynolab", "--help"]
