# `make` alone prints this list. Everything is installed into .venv, once; nothing is fetched after that.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check docs bench clean

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv and install lurcher with all it needs (once)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "lurcher needs Python 3.11 or newer; run make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q '$(TORCH)'
	$(BIN)/python -m pip install -q -e '.[dev,torch]'
	@touch $@

demo: $(STAMP) ## train a small model here with a slow rank, and see it found (ARGS="--slow-rank 2")
	$(BIN)/lurcher demo $(ARGS)

test: check ## check, then every test: side by side, but for those that need the machine to themselves
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

test-fast: $(STAMP) ## unit and contract tests only
	$(BIN)/python -m pytest -n auto tests/unit tests/contract

check: $(STAMP) ## style, types, import rules, file length
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@find src tests bench examples -name '*.py' -exec wc -l {} + | awk '$$2 != "total" && $$1 > 400 { print $$2 " has " $$1 " lines; 400 is the most"; bad = 1 } END { exit bad }'

docs: $(STAMP) ## write the generated reference pages again
	$(BIN)/python docs/generate.py

bench: $(STAMP) ## run every benchmark and print its table
	@for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean: ## remove caches and build outputs; runs and .venv stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench examples docs -name __pycache__ -type d -prune -exec rm -rf {} +
