# `make demo` deploys to local test hosts, `make test` runs every check. Both set up what they need, and say what they do.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE := $(CURDIR)/.cache
VENV := $(CACHE)/venv
BIN := $(VENV)/bin
RUN := PATH="$(BIN):$$PATH" DDTREE_ROOT="$(CURDIR)" DDTREE_CACHE="$(CACHE)/fleet" DDTREE_STATE="$(CACHE)/fleet/state"
FLEET := $(RUN) $(BIN)/python tests/fleet/fleet.py
STATE := $(CACHE)/fleet/state
STATES := state state-beside bench-state fleet-bench-state

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: demo
demo: input ## Deploy a real environment to local test hosts with deploy-ddtree.yml
	@$(RUN) tests/demo.sh

.PHONY: test
test: input ## Every check: lint, sanity, unit tests, engine faults, molecule scenarios
	@$(RUN) $(BIN)/python tests/run.py full

.PHONY: test-fast
test-fast: setup ## Lint and unit tests only
	@$(RUN) $(BIN)/python tests/run.py fast

.PHONY: test-long
test-long: input ## Everything in `test`, 900 more engine faults, and the benchmarks
	@$(RUN) $(BIN)/python tests/run.py long

.PHONY: bench
bench: input ## Transfers and manifests beside the peers, and what a fleet costs, 80 minutes; JSON in build/bench
	@$(RUN) $(BIN)/python tests/bench/transfer.py
	@$(RUN) $(BIN)/python tests/bench/manifest.py
	@$(RUN) $(BIN)/python tests/bench/fleet.py

.PHONY: lint
lint: setup ## Linters only
	@$(RUN) $(BIN)/python tests/run.py lint

.PHONY: fleet-up
fleet-up: input ## Start the test hosts and leave them running
	@$(FLEET) up --cache $(CACHE)/fleet --state $(STATE)

.PHONY: fleet-down
fleet-down: setup ## Stop the test hosts
	@$(FLEET) down --state $(STATE)

.PHONY: setup
setup: ## Install the Debian packages and the Python environment
	@tests/setup.sh $(VENV)

.PHONY: input
input: setup ## Build the root file system and the environments of the test hosts
	@$(FLEET) base --cache $(CACHE)/fleet --state $(STATE)
	@$(RUN) $(BIN)/python tests/input/build.py --rootfs $(CACHE)/fleet/base --cache $(CACHE)/fleet --out $(CACHE)/fleet/layers
	@$(RUN) $(BIN)/python tests/input/build_replayed.py --rootfs $(CACHE)/fleet/base --cache $(CACHE)/fleet --out $(CACHE)/fleet/layers

.PHONY: lock
lock: setup ## Renew requirements-dev.lock from pyproject.toml
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
		pyproject.toml -o requirements-dev.lock

.PHONY: clean
clean: ## Stop the test hosts and delete everything that was built
	@if [ -x $(BIN)/python ]; then for state in $(STATES); do $(FLEET) down --state $(CACHE)/fleet/$$state; done; fi
	@for state in $(STATES); do if mountpoint -q $(CACHE)/fleet/$$state; then umount $(CACHE)/fleet/$$state; fi; done
	rm -rf build .cache .mypy_cache .pytest_cache .ruff_cache .ansible
