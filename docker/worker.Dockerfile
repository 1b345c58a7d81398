# An image that runs studies on CPUs:
#   docker build --file docker/worker-cpu.Dockerfile --tag dynolab-worker-cpu .
#   docker run --volume dynolab:/home/dynolab/home dynolab-worker-cpu study
FROM python:3.11.14-slim-bookworm

RUN useradd --create-home --uid 1000 dynolab
USER 1000
WORKDIR /home/dynolab/app

ENV DS_BUILD_OPS=0 \
    DYNOLAB_HOME=/home/dynolab/home \
    OMP_WAIT_POLICY=PASSIVE \
    PATH=/home/dynolab/venv/bin:$PATH

COPY --chown=1000 requirements.lock ./
RUN python -m venv /home/dynolab/venv \
    && pip install --no-cache-dir --constraint requirements.lock \
        --extra-index-url https://download.pytorch.org/whl/cpu torch setuptools \
    && pip install --no-cache-dir --no-deps --requirement requirements.lock

COPY --chown=1000 . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable .

ENTRYPOINT ["dynolab"]
CMD ["--help"]
