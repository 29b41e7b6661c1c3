# Needs make and Python 3.11 or newer; everything else goes into .venv and .cache.
PYTHON ?= python3
PORT ?= 8000
# The versions the book was last tested with. For the newest: make CONSTRAINTS= test
CONSTRAINTS ?= constraints.txt
# make bench BENCH=--quick takes two minutes, and leaves the record alone.
BENCH ?=
# make fuzz draws so many times the cases that make test does.
FUZZ ?= 50
RUN := .venv/bin/python -m
INSTALL := $(RUN) pip install --quiet --disable-pip-version-check \
    $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
# Some virtual machines announce Intel's AMX and crash on it; AVX-512 does not need it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# Tests share the cores by processes: threads on top would only get in their way.
PYTEST := OMP_NUM_THREADS=1 $(RUN) pytest -n auto --maxprocesses=4 --dist worksteal
COVERED := $(PYTEST) --cov --cov-report=

export NO_MKDOCS_2_WARNING := 1

.PHONY: help site build pdf test fuzz mutants lint browser figures notebooks bench compatibility constraints release clean

help: ## list the targets (this)
	@awk -F ': .*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

site: .venv/site-installed ## build the book and serve it at http://127.0.0.1:8000 (PORT=...)
	-@.venv/bin/python tools/page_python.py
	@echo "The book will be at http://127.0.0.1:$(PORT)/ once it is built; Ctrl-C stops it."
	@$(RUN) mkdocs serve --livereload --no-strict --dev-addr 127.0.0.1:$(PORT) || { \
	    echo "If the port is taken, choose another: make site PORT=8001"; exit 1; }

build: .venv/site-installed ## build the book into the folder site, strictly
	$(RUN) mkdocs build --strict --clean --site-dir site

pdf: .venv/installed build ## print the book into site/book.pdf
	.venv/bin/python tools/pdf.py site site/book.pdf

test: lint browser ## run all checks: lint, tests, coverage, the site in a browser
	$(COVERED)
	$(COVERED) --cov-append --jaxtyping-packages= -m unhooked --ignore=tests/site
	$(RUN) coverage report --fail-under=98

fuzz: export FUZZ_SEED ?= $(shell date +%s)
fuzz: .venv/installed ## run the tests with random cases for minutes (FUZZ=50)
	@echo "FUZZ_SEED=$$FUZZ_SEED"
	FUZZ=$(FUZZ) $(PYTEST) -m fuzz tests
	FUZZ=$(FUZZ) $(PYTEST) -m fuzz tests --jaxtyping-packages=

mutants: .venv/installed ## change the code at random, and see whether tests notice
	nice .venv/bin/python tools/mutants.py

lint: .venv/installed ## check style and types
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) codespell_lib
	@$(RUN) pyright --version >/dev/null || { echo "pyright fetches itself from npm when it \
	first runs, and could not: connect, or set npm_config_registry to a mirror."; exit 1; }
	$(RUN) pyright --threads

browser: .venv/installed ## find a browser for the site's tests, or fetch one
	@.venv/bin/python tools/browser.py
	@.venv/bin/python tools/page_python.py

figures: .venv/installed ## run every example on its quick settings
	@set -e; for script in examples/*.py; do \
	    echo "$$script quick"; .venv/bin/python "$$script" quick; done

notebooks: .venv/installed ## run the notebooks, whose outputs are committed
	.venv/bin/jupyter nbconvert --to notebook --execute --inplace \
	    --ExecutePreprocessor.record_timing=False docs/notebooks/*.ipynb \
	    docs/assignments/*_solution.ipynb
	.venv/bin/python tools/starters.py

bench: .venv/installed ## measure against other libraries, which it installs
	$(INSTALL) --editable '.[bench]'
	.venv/bin/python benchmarks/run.py $(BENCH)
	$(if $(BENCH),,.venv/bin/python benchmarks/report.py)

compatibility: .venv/installed ## run the book's tests on the oldest and newest PyTorch
	.venv/bin/python tools/compatibility.py

constraints: .venv/installed ## record the installed versions in constraints.txt
	.venv/bin/python tools/release.py constraints

release: .venv/installed ## build wheel and sdist into dist, and check them
	.venv/bin/python tools/release.py

clean: ## remove .venv and whatever was built
	rm -rf .venv .cache dist site .coverage .hypothesis .pytest_cache .ruff_cache

# The stamps come last, so an interrupted installation is taken up again. Reading the
# book needs neither PyTorch nor the tools that test it.
.venv/site-installed: bookbinding/pyproject.toml $(CONSTRAINTS) | .venv/bin/pip
	@echo "Installing what the book needs into .venv; the first time, this takes a minute."
	$(INSTALL) --editable ./bookbinding
	@touch $@

.venv/installed: pyproject.toml bookbinding/pyproject.toml $(CONSTRAINTS) | .venv/bin/pip
	@echo "Installing into .venv; the first time, this takes some minutes, mostly for PyTorch."
	$(INSTALL) --editable '.[lab,dev]' --editable ./bookbinding
	@touch $@ .venv/site-installed

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python \
	3.11 or newer is needed, and $(PYTHON) is not. Name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "$(PYTHON) cannot make virtual \
	environments. On Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
