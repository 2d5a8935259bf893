# The commands of the project. Each makes .venv and installs what it needs; the second run installs nothing.
# All paths are relative, so the checkout may live in a folder with spaces in its name.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= python3
WORKERS ?= 2
TABLE ?= speed
QUICK ?=
SEED ?= 0
PART ?=
CASE ?=
COUNT ?=
MINUTES ?=
# Address of the repository, for the links of a release.
REPOSITORY ?=
SETTINGS ?= default avx2 compatible one three

VENV := .venv
RUN := $(VENV)/bin/python
# -qq keeps pip to its errors; the build of the package itself is pinned like everything else.
INSTALL := $(RUN) -m pip install -qq -c constraints.txt --build-constraint constraints.txt
PINS := pyproject.toml constraints.txt
# Folders that may not exist yet are left out.
CODE := $(wildcard src tests benchmarks campaign examples docs release hatch_build.py)

.PHONY: help demo test setup lint types layers size unit machines docs bench campaign release clean

help: ## list these commands
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/.stamp-demo ## train three small networks, take them apart and write pages to look at, in demo/
	@$(RUN) -m nobsp demo --out demo --force

test: lint types layers size docs unit ## everything that must hold: style, types, layers, private names, documents, tests

setup: $(VENV)/.stamp-dev ## make .venv with the package, its optional parts and the development tools

lint: $(VENV)/.stamp-dev ## style and formatting
	$(RUN) -m ruff check $(CODE)
	$(RUN) -m ruff check --select E501 --config lint.pycodestyle.max-line-length=100 src
	$(RUN) -m ruff format --check $(CODE)

types: $(VENV)/.stamp-dev ## static types of the package
	$(RUN) -m mypy --strict src

layers: $(VENV)/.stamp-dev ## a room imports only from rooms further down
	$(VENV)/bin/lint-imports

size: $(VENV)/.stamp-dev ## no room uses another's private names
	$(RUN) tests/house.py

unit: $(VENV)/.stamp-browser ## the tests and the examples in docstrings
	$(RUN) -m pytest -q -n $(WORKERS)

# Kernels without vector instructions, with short ones, MKL as on any processor, and sums split over threads.
SETTING_default := ATEN_CPU_CAPABILITY=default
SETTING_avx2 := ATEN_CPU_CAPABILITY=avx2
SETTING_compatible := MKL_CBWR=COMPATIBLE
SETTING_one := OMP_NUM_THREADS=1
SETTING_three := OMP_NUM_THREADS=3 OMP_WAIT_POLICY=PASSIVE

machines: $(addprefix machine-,$(SETTINGS)) ## the tests as on other processors, one setting after another; SETTINGS=avx2 runs one

machine-%: $(VENV)/.stamp-browser
	@echo "$*: $(or $(SETTING_$*),$(error no setting $*; there are default, avx2, compatible, one and three))"
	$(SETTING_$*) $(RUN) -m pytest -q -n $(WORKERS)

docs: $(VENV)/.stamp-docs ## the documentation, in site/, with the examples run; a warning is an error
	OMP_NUM_THREADS=1 $(RUN) docs/_examples.py
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet
	@$(RUN) docs/_links.py site

bench: $(VENV)/.stamp-bench ## one table of speeds; TABLE=synthetic runs another, TABLE= lists them, QUICK=1 hurries
	@$(RUN) -m benchmarks $(TABLE) $(if $(QUICK),--quick)

campaign: $(VENV)/.stamp-browser ## thousands of things that go wrong, for hours; PART=files one part, SEED= CASE= one case
	@$(RUN) -m campaign --seed $(SEED) $(if $(PART),--part $(PART)) $(if $(CASE),--case $(CASE)) \
		$(if $(COUNT),--count $(COUNT)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(CASE),,--write)

release: test ## all of a release but the upload: everything that must hold, wheel and sdist in dist/, read, installed and tried
	@git diff --quiet HEAD || { echo "there are changes that are not committed; a release is made of a commit"; exit 1; }
	rm -rf dist
	NOBSP_REPOSITORY=$(REPOSITORY) $(RUN) release/check.py --out dist --install

clean: ## remove .venv, caches and built files
	rm -rf $(VENV) .cache demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist site
	find src tests benchmarks campaign -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The interpreter is checked before the environment is made, so an old one fails with a sentence.
# torch comes first and by its pin: no later install can then pull another build of it.
$(VENV)/.stamp-core: $(PINS)
	@command -v $(PYTHON) >/dev/null || { echo "nobsp needs Python 3.11 or newer, but $(PYTHON) was not found; try make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "nobsp needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into $(VENV); the first time takes some minutes"
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install -qq --upgrade -c constraints.txt pip
	@$(INSTALL) torch
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.stamp-demo: $(VENV)/.stamp-core
	@$(INSTALL) -e ".[report,frames]"
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-core
	@$(INSTALL) -e ".[all,bench]" --group dev
	@touch $@

# Tests of pages drive a real browser, those of SQL a real PostgreSQL. Without them they are skipped, and say so.
# A package manager is run where CI=true alone: elsewhere the machine is yours.
$(VENV)/.stamp-browser: $(VENV)/.stamp-dev
	@missing=""; \
	command -v chromium >/dev/null || missing="chromium"; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$$missing postgresql"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$${CI:-}" = true ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing for the tests:" $$missing; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $$missing; } >/dev/null 2>&1 \
			|| echo "not installed: the tests that need these will be skipped:" $$missing; \
	else echo "the tests that need these will be skipped; to have them: sudo apt-get install" $$missing; fi
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-core
	@$(INSTALL) -e ".[plot,images,report,frames]" --group docs
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-core
	@$(INSTALL) -e ".[bench,ann,milvus,report,frames]"
	@touch $@
