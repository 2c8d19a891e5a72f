# Two commands to know: `make run` and `make test`. `make help` lists the rest.
# Every target sets the environment up first; only Python 3.11+ and a package index are needed.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := $(shell command -v uv 2>/dev/null)

.PHONY: help setup run lint format test conformance mutants planted sim bench chaos lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv with the locked versions (does nothing when it is up to date)

$(READY): pyproject.toml locks/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with PYTHON=python3.12"; exit 1; }
	@rm -f $@
ifneq ($(UV),)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes locks/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement locks/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endif
	@touch $@

run: setup ## a local cluster: etcd and three daemons on loopback, with a demo topic (Ctrl-C ends it)
	$(BIN)/scalable-topics dev --data .run --brokers 3

lint: setup ## ruff, strict types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup ## the whole test suite, on all cores
	$(BIN)/python -m pytest -n auto --dist worksteal

conformance: setup ## run a cases file: make conformance CASES=path
	$(BIN)/python -m tests.conformance $(or $(CASES),tests/conformance/cases.json)

mutants: setup ## mutation testing of model/, policy/ and metadata/ (up to 45 minutes)
	$(BIN)/python -m tests.mutants

planted: setup ## switch on deliberate mistakes of the protocol: the simulation must find every one
	$(BIN)/python -m tests.simulation.planted

sim: setup ## simulate clusters under faults: make sim SEEDS=7, or SEEDS=1000:+400 (from, count)
	$(BIN)/python -m tests.simulation $(or $(SEEDS),0:+400)

bench: setup ## measure core, store, watch and whole daemons (some 5 minutes); writes docs/benchmarks.md and .json
	$(BIN)/python -m tests.bench

chaos: setup ## the crash matrix on real processes, then faults for half an hour: make chaos MINUTES=5
	$(BIN)/python -m tests.cluster.matrix
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),30)

lock: ## resolve the newest allowed versions into locks/ (hashes, no index addresses)
	$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header --upgrade --quiet -o locks/dev.txt
	$(VENV)-lock/bin/uv pip compile pyproject.toml --extra spark --extra pulsar -c locks/dev.txt --universal --python-version 3.11 --generate-hashes --no-header --upgrade --quiet -o locks/extras.txt
	@rm -rf $(VENV)-lock

clean: ## remove what setup and the tools made
	rm -rf $(VENV) $(VENV)-lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
