# Every target does its own set-up: on a fresh machine `make demo` or `make test` is all there is to type.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU build where the index offers one; name another build or index here if yours does not.
TORCH ?= torch==2.13.0
# Four on two cores: tests wait for servers and processes as much as they compute. Three took an eighth longer.
WORKERS ?= 4
# The oldest torch that Mainstay supports; probes/torch_private.py names it too. PyPI's build brings 3 GB of CUDA.
OLDEST_TORCH ?= torch==2.6.0
OLDEST := .venv-oldest
PYTEST_ARGS ?=

.PHONY: help install web demo up test test-fast test-matrix check format docs bench lock clean
help: ## This list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort | expand -t 14

install: $(VENV)/installed ## .venv with the mainstay command
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Mainstay needs Python 3.11 or newer; name one: make PYTHON=python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: sudo apt-get install -y python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --upgrade pip
	@# torch first and alone: no other package may choose a build of it
	$(BIN)/pip install --quiet -c constraints.txt $(TORCH)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

WEB_SOURCES := $(shell find web/src web/index.html web/package.json web/vite.config.ts web/tsconfig.json -type f 2>/dev/null)
web: web/dist/index.html ## The dashboard, built
web/node_modules/.installed: web/package-lock.json
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null || { echo "Node 20 or newer is needed to build the dashboard: install it from nodejs.org or your distribution"; exit 1; }
	cd web && npm ci --no-audit --no-fund --loglevel=error
	@touch $@
web/dist/index.html: web/node_modules/.installed $(WEB_SOURCES)
	cd web && npm run --silent build
	@touch $@

demo: install web ## The main job: a protected training run, a kill, a recovery (DEMO_ARGS="--exit --json")
	$(BIN)/mainstay demo $(DEMO_ARGS)

up: install web ## Service, dashboard and the node daemon of this host on http://127.0.0.1:8080
	$(BIN)/mainstay up

test: install web ## All tests, with real PostgreSQL, Redis, Celery, Chromium and processes that really die
	$(BIN)/python tests/machine.py
	cd web && npm run --silent test
	$(BIN)/python -m tests.rerun_alone -n $(WORKERS) --dist loadgroup -m "not exclusive" $(PYTEST_ARGS)
	$(BIN)/python -m tests.rerun_alone -m exclusive

test-fast: install ## Tests that start no servers or jobs of their own (some minutes)
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not slow and not exclusive" $(PYTEST_ARGS)

$(OLDEST)/installed: pyproject.toml constraints.txt Makefile
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet $(OLDEST_TORCH)
	@# torch pins sympy and setuptools itself
	@grep -vE '^(torch|triton|nvidia-|sympy|setuptools)' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/pip install --quiet -c $(OLDEST)/constraints.txt -e '.[cli,frameworks,test,train]'
	@touch $@

test-matrix: $(OLDEST)/installed ## Recovery and SDK tests on the oldest torch (OLDEST_TORCH=torch==2.6.0)
	@# -W: older versions of torch warn where newer ones do not. -k: FSDP2 of torch 2.6 runs on GPUs only
	$(OLDEST)/bin/pytest -n $(WORKERS) --dist loadgroup -m "not exclusive" -k "not fsdp2 and not hsdp and not dcp]" -W default::UserWarning $(PYTEST_ARGS) tests/recovery/memory tests/recovery/sdk tests/recovery/adapters tests/probes/test_torch_private.py

check: install web/node_modules/.installed ## ruff, mypy --strict, import-linter, Biome and tsc (under a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	cd web && npm run --silent check

format: install web/node_modules/.installed ## Rewrite sources in the project style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cd web && npm run --silent fix

docs: install ## The documentation site with its generated reference, in build/site
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet

bench: install ## Every measured claim but those of bench.soak (2 h), printed and written to bench/results
	@for name in $$(cd bench && ls *.py | grep -vE '^(__init__|report|soak|lib_.*)\.py$$' | sed 's/\.py$$//'); do $(BIN)/python -m bench.$$name; done

bench-%: install ## One bench: make bench-recovery_time
	$(BIN)/python -m bench.$*

lock: install ## Pin what is installed now, and write the lock file of the image
	$(BIN)/pip freeze --exclude-editable | sed 's/^torch==.*/torch==2.13.0/' > constraints.txt
	@# the packages of the control plane again, each with the digests of its files: the image is built from these
	@test -x build/lock/bin/pip-compile || { $(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet pip-tools; }
	build/lock/bin/pip-compile --quiet --extra service --generate-hashes --strip-extras --no-header --no-annotate --no-emit-index-url --no-emit-find-links --unsafe-package mainstay -c constraints.txt -o requirements.lock pyproject.toml

clean: ## Remove everything that make made
	rm -rf $(VENV) $(OLDEST) web/node_modules web/dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache
