# Needs make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= python3
PORT ?= 8000
# make bench BENCH=--quick takes two minutes, and leaves the record alone.
BENCH ?=
RUN := .venv/bin/python -m
INSTALLED := .venv/installed
# Tests share the cores by processes: threads on top would only get in their way.
PYTEST := OMP_NUM_THREADS=1 $(RUN) pytest
PARALLEL := -n auto --maxprocesses=4

export NO_MKDOCS_2_WARNING := 1

.PHONY: help site test lint figures bench compatibility chromium clean

help: ## list the targets (this)
	@awk -F ': .*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

site: $(INSTALLED) ## build the book and serve it at http://127.0.0.1:8000 (PORT=...)
	@echo "The book will be at http://127.0.0.1:$(PORT)/ once it is built; Ctrl-C stops it."
	@$(RUN) mkdocs serve --livereload --no-strict --dev-addr 127.0.0.1:$(PORT) || { \
	    echo "If the port is taken, choose another: make site PORT=8001"; exit 1; }

test: chromium lint ## run all checks: lint, tests, coverage, the site in a browser
	$(PYTEST) $(PARALLEL) --cov --cov-report= --ignore=tests/site
	$(PYTEST) $(PARALLEL) --cov --cov-report= --cov-append --ignore=tests/site \
	    --jaxtyping-packages=
	$(RUN) coverage report --fail-under=98
	$(PYTEST) tests/site

lint: $(INSTALLED) ## check style and types
	$(RUN) ruff check
	$(RUN) ruff format --check
	@$(RUN) pyright --version >/dev/null || { echo "pyright fetches itself from the npm \
	registry when it first runs, and could not: connect, or set npm_config_registry to a \
	mirror, and run make again."; exit 1; }
	$(RUN) pyright

figures: $(INSTALLED) ## run every example on its quick settings
	@set -e; ls examples/*.py >/dev/null 2>&1 || echo "There are no examples yet."; \
	for script in $(wildcard examples/*.py); do \
	    echo "$$script quick"; .venv/bin/python "$$script" quick; done

bench: $(INSTALLED) ## measure against other libraries, which it installs
	$(RUN) pip install --quiet --disable-pip-version-check --editable '.[bench]'
	.venv/bin/python benchmarks/run.py $(BENCH)

compatibility: $(INSTALLED) ## run the book's tests on the oldest and newest PyTorch
	.venv/bin/python tools/compatibility.py

clean: ## remove .venv and whatever was built
	rm -rf .venv .cache site .coverage .hypothesis .pytest_cache .ruff_cache

# The stamp comes last, so an interrupted installation is taken up again.
$(INSTALLED): pyproject.toml | .venv/bin/pip
	@echo "Installing into .venv; the first time, this takes some minutes."
	$(RUN) pip install --quiet --disable-pip-version-check --editable '.[lab,docs,dev]'
	@touch $@

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python \
	3.11 or newer is needed, and $(PYTHON) is not. Name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "$(PYTHON) cannot make virtual \
	environments. On Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv

# Before the installation, which takes minutes.
chromium: | .venv/bin/pip
	@.venv/bin/python tools/chromium.py >/dev/null
