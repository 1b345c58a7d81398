# The two commands: `make study` and `make test`. Everything else is for those who build Dynolab.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python -m
STUDY  ?= deploy/studies/builtin.yaml

export DS_BUILD_OPS := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup study test check lint test-study test-faults up clean

setup: $(VENV)/.ready

# torch comes first and alone, with what it needs on this machine; the rest is installed whole from
# the lock, without resolving.
$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet --no-compile --constraint requirements.lock torch setuptools
	$(RUN) pip install --quiet --no-compile --no-deps --requirement requirements.lock
	$(RUN) pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

study: setup
	$(VENV)/bin/dynolab study --config $(STUDY)

up: setup
	$(VENV)/bin/dynolab up

test: setup
	$(RUN) pytest -m "not study and not faults"

lint: setup
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports

check: lint
	$(MAKE) test

test-study: setup
	$(RUN) pytest -m study

test-faults: setup
	$(RUN) pytest -m faults

clean:
	rm -rf .dynolab
