# What one types here. `make` alone lists it.
#
# Everything is installed into .venv from the locked, hash-checked lists in .setup; nothing on
# the machine is changed, and after `make setup` nothing needs the network. Wanted beforehand:
# Python 3.11 or newer with its venv module (Debian: python3-venv). Java is optional.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo lab-demo test bugs lab-long test-report explore campaign mutants fuzz bench peers lint format locks clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_OPTIONS ?=
PEERS_OPTIONS ?=
# Tests start hundreds of interpreters, and each would compile what it imports.
test bugs test-report lab-long campaign mutants fuzz explore: export PYTHONDONTWRITEBYTECODE :=
WORKERS ?= $(shell echo $$(($$(nproc) + 3)))
RUNS ?=
SEEDS ?= 1..2000
# Of each further protocol, so many per landing: some mistakes show in one seed in a hundred.
LANDING ?= 1..300
PROTOCOLS ?= gryphon durable ges ges_reliable multi_proxy
LEDGER ?= results/reliability.json
LAB ?= lab-demo
HOST_PYTHONS ?= 3.11 3.12 3.13
HOST_PLATFORMS ?= $(foreach kind,manylinux_2_17 manylinux2014 manylinux_2_28,\
    --platform $(kind)_$(shell uname -m))

PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
# Of pip's hundreds of lines, those that show a long download or build going on.
TELL_PROGRESS := sed -n -u -E \
    -e '/\.metadata/d' -e 's/^ *(Downloading .*\([0-9.]+ MB\))/  \1/p' \
    -e 's/^ *(Building wheel for [^ ]+) .*: started/  \1/p' \
    -e 's/^(Installing collected packages).*/  \1/p'

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp-project $(VENV)/.stamp-wheelhouse ## build .venv from the locked requirements (first time: 700 MB, minutes)

demo: setup ## kill a broker under load, with and without the δ tree, and judge both runs
	@$(BIN)/pubsubctl demo

lab-demo: setup ## the same over SSH, on 8 test hosts made for it (root, openssh-server, nftables)
	@$(BIN)/pubsubctl lab up --name $(LAB) --hosts 8
	@trap '$(BIN)/pubsubctl lab down --name $(LAB)' EXIT; $(BIN)/pubsubctl -i $(LAB) demo

# Many tests wait, for processes and disks: three more workers than cores keep the cores busy.
test: setup ## run the whole test suite on all cores, what takes longest first
	@$(BIN)/python -m compileall -q -j 0 -x 'tests/.*/?(test_[^/]*|conftest)\.py$$' \
	    tests brokerd bench fault_injection pubsubctl results  # else each worker does
	@$(BIN)/python -m tests.helpers.compiled
	@$(BIN)/python -m pytest -m "not report" -n $(WORKERS) --dist loadfile \
	    --no-loadscope-reorder --draw-bugs=new $(TEST_OPTIONS)

bugs: setup ## plant every named bug, run every sampled test; `make test` draws a third of both
	@$(BIN)/python -m pytest -m "drawn or sampled" -n $(WORKERS) $(TEST_OPTIONS)

lab-long: setup ## run the tests on test hosts at full length; prints the table of kills
	@$(BIN)/python -m pytest -m lab --lab-long $(TEST_OPTIONS)

test-report: setup ## open the HTML report in Debian's chromium and look at it
	@command -v chromium >/dev/null || { \
	    echo "make test-report needs chromium (Debian: apt-get install chromium)" >&2; exit 4; }
	@$(BIN)/python -m pytest -m report $(TEST_OPTIONS)

explore: setup ## run the property tests with new examples, 2,000 each
	@HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m "not report" \
	    $$(grep -rl --include='test_*.py' 'hypothesis import' tests) $(TEST_OPTIONS)

campaign: setup ## simulate the campaign; RUNS=50 of each row, SEEDS=1..500 for a short one
	@$(BIN)/pubsubctl simulate campaign $(if $(RUNS),--runs $(RUNS)) --ledger $(LEDGER)
	@$(BIN)/pubsubctl simulate mutants $(if $(RUNS),--runs $(RUNS)) --ledger $(LEDGER)
	@$(BIN)/pubsubctl simulate swarm --seeds $(SEEDS) --ledger $(LEDGER)
	@$(BIN)/pubsubctl simulate swarm --seeds 1..100 --verify-determinism
	@for protocol in $(PROTOCOLS); do \
	    $(BIN)/pubsubctl simulate swarm --protocol $$protocol --seeds $(LANDING) \
	        --ledger $(LEDGER) || exit $$?; done

mutants: setup ## try generated mutants; MODULE=brokerd/sessions COUNT=20 SEED=1
	@$(BIN)/python -m tests.mutation $(or $(MODULE),brokerd/sessions) --count $(or $(COUNT),20) \
	    $(if $(SEED),--seed $(SEED))

fuzz: setup ## send hostile sessions to real brokers; FRAMES=100000 SEED=1 PROTOCOL=gryphon
	@$(BIN)/python -m tests.fuzz.sessions --frames $(or $(FRAMES),100000) --seed $(or $(SEED),1) \
	    $(if $(PROTOCOL),--protocol $(PROTOCOL))

bench: setup ## run what brokers are meant to reach: target, reached, limit; 10 min
	@$(BIN)/pubsubctl targets

peers: setup ## measure NATS and mosquitto beside ours (Debian: nats-server, mosquitto); 10 min
	@$(BIN)/python -m bench.peers $(PEERS_OPTIONS)

lint: setup ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## put the code into the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

locks: ## resolve .setup/*.lock anew (needs the network)
	@PYTHON="$(PYTHON)" .setup/relock

clean: ## remove .venv, caches and build products; measured runs stay
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.11" >&2; \
	    exit 4; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
	    rm -rf $(VENV); \
	    echo "Python's venv module is missing (Debian: apt-get install python3-venv)" >&2; exit 4; }

$(VENV)/.stamp-build: .setup/build.lock | $(BIN)/python
	@echo "Installing pip and the build tools"
	@$(PIP_INSTALL) --quiet --require-hashes --only-binary :all: -r $<
	@touch $@

# PySpark is the one package published as source only, so the one that is built here.
$(VENV)/.stamp-requirements: .setup/requirements.lock $(VENV)/.stamp-build
	@echo "Installing the requirements: 700 MB the first time (PySpark alone is 460 MB)"
	@$(PIP_INSTALL) --require-hashes --only-binary :all: --no-binary pyspark \
	    --no-build-isolation -r $< | $(TELL_PROGRESS)
	@touch $@

# What `deploy` installs on hosts that are reached over SSH; they need no network themselves.
$(VENV)/.stamp-wheelhouse: .setup/host.lock $(VENV)/.stamp-build
	@echo "Fetching the wheels for hosts"
	@rm -rf $(VENV)/wheelhouse
	@for version in $(HOST_PYTHONS); do \
	    $(BIN)/python -m pip download --disable-pip-version-check --progress-bar off --quiet \
	        --require-hashes --no-deps --only-binary :all: --dest $(VENV)/wheelhouse \
	        --implementation cp --python-version $$version $(HOST_PLATFORMS) -r $<; \
	done
	@cp $< $(VENV)/wheelhouse/host.lock
	@touch $@

# By a path, not by an import hook: a user's folder `results` would come before the hook.
# A changed recipe installs the project again.
$(VENV)/.stamp-project: pyproject.toml Makefile $(VENV)/.stamp-requirements
	@$(PIP_INSTALL) -qq --no-index --no-deps --no-build-isolation \
	    --config-settings editable_mode=compat --editable .
	@$(BIN)/python -m pip check --quiet
	@touch $@
	@echo "Ready: $(BIN)/pubsubctl"
