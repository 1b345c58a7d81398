# The two commands: `make study` and `make test`. Everything else is for those who build Dynolab.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python -m
STUDY  ?= deploy/studies/builtin.yaml

export DS_BUILD_OPS := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Threads that spin while they wait slow each other down on a busy machine.
export OMP_WAIT_POLICY ?= PASSIVE
# Every process would compile what it imports again, for seconds.
unexport PYTHONDONTWRITEBYTECODE

import  = $(VENV)/bin/python -c 'import importlib; \
          [importlib.import_module(name) for name in "$(1)".split()]' >/dev/null 2>&1

# With one thread each. tests/conftest.py says which files share a worker, and which go first.
two_workers = OMP_NUM_THREADS=1 $(RUN) pytest -n 2 --dist loadfile --no-loadscope-reorder
slow        = study or faults

# Folders with flows of their own, which the core does without.
wings := $(patsubst %/wing.py,%,$(wildcard */wing.py))

.PHONY: setup study test test-services test-all test-wings check check-gpu docs lint types test-study test-faults test-mutations up clean

setup: $(VENV)/.ready

# All is installed from the locks, without resolving, and only what has a hash there; packages without
# a wheel are built by what is locked. torch's smaller build for CPUs is taken where pip finds it.
# uv takes a fifth of pip's time, but does not read pip's settings: where these name the only registry
# that is reached, pip goes on. Bytecode is made of what is imported rather than of everything.
by_pip  = $(RUN) pip install --quiet --no-compile --no-deps --no-build-isolation --require-hashes
by_uv   = $(VENV)/bin/uv pip install --python $(VENV)/bin/python --quiet --no-deps --no-build-isolation --require-hashes
install = { $(by_uv) $(1) || $(by_pip) $(1); }

# A study needs neither tests nor documentation: their tools come with the other commands.
$(VENV)/.ready: $(VENV)/.platform locks/tools.lock
	$(call install,--requirement locks/tools.lock)
	touch $@

$(VENV)/.platform: $(filter-out locks/tools.lock,$(wildcard locks/*.lock)) pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(by_pip) --requirement locks/installer.lock --requirement locks/build.lock
	$(by_pip) --requirement locks/torch-cpu.lock 2>/dev/null || $(call install,--requirement locks/torch.lock)
	$(call install,$(foreach name,servers worker,--requirement locks/$(name).lock))
	$(RUN) pip install --quiet --no-deps --no-build-isolation --editable .
	@$(call import,torch.distributed.run transformers deepspeed datasets) & \
	 { $(call import,mlflow.server.fastapi_app prefect.flows); $(RUN) tasks.runtime.servers.new_homes; }; wait
	touch $@

study: $(VENV)/.platform
	$(VENV)/bin/dynolab study --config $(STUDY)

up: $(VENV)/.platform
	$(VENV)/bin/dynolab up

test: setup
	$(two_workers) -m "not ($(slow)) and (real_path or not services and not ranks)"

test-services: setup
	$(two_workers) -m "not ($(slow)) and not real_path and (services or ranks)"

# Both of the above: no worker waits in between, and what they share is made once.
test-all: setup
	$(two_workers) -m "not ($(slow))"

test-wings: setup
	$(two_workers) $(wings) -m "not ($(slow))"

lint: setup
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(MAKE) types
	$(VENV)/bin/lint-imports
	for wing in $(wings); do $(VENV)/bin/lint-imports --config $$wing/contracts.toml || exit; done
	$(RUN) tests.budget
	$(RUN) tests.structure

types: setup
	$(RUN) mypy dynolab models tasks flows $(wings)

check: lint
	$(MAKE) test

# The manual: docs/_build/html/index.html. A broken link fails.
docs: setup
	$(RUN) sphinx --quiet --fresh-env --fail-on-warning --keep-going docs docs/_build/html

# What this machine's GPUs do beside what the library relies on: .dynolab/reports/gpu.json.
check-gpu: setup
	$(RUN) tests.gpu.check

test-study: setup
	$(RUN) pytest -n 2 --dist loadfile -m study

test-faults: setup
	$(RUN) pytest -n 2 --dist loadfile -m faults

test-mutations: setup
	$(RUN) tests.benchmarks.mutations

clean:
	rm -rf .dynolab mutants
