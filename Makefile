# make setup | train | test | quick | lint | format | bench | docs | wheel: each sets up what it needs in .venv.
# `setup` and `train` install what training needs; the others add the tools and environments of the tests.
PYTHON ?= python3
BIN := .venv/bin
# Container images often forbid Python to keep the bytecode of what it imports: every command would compile it again and
# take three times as long to start. `setup` compiles all of it but torch, of which little is ever imported.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Shoal runs from this folder. A copy of it means that `pip install .` has replaced that, or left a remainder in its way.
COPY := $(wildcard .venv/lib/python*/site-packages/shoal)

.PHONY: setup train test quick lint format bench docs wheel clean FORCE

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt $(if $(COPY),FORCE)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing Shoal into .venv (about a minute the first time)"
	@$(INSTALL) -e .
	@rm -rf $(COPY)
	@$(BIN)/python -m compileall -q -j 0 -x '/(torch|sympy|tests?)/' shoal papers .venv/lib > /dev/null 2>&1 || true
	@$(BIN)/python -c "import torch"
	@touch $@

.venv/ready-dev: .venv/ready
	@echo "Adding the tools and environments of the tests to .venv"
	@$(INSTALL) -e ".[dev]"
	@$(BIN)/python -m compileall -q -j 0 .venv/lib > /dev/null 2>&1 || true  # the tests start many processes
	@touch $@

# A marker of its own: training and testing do not install what only the site needs.
.venv/ready-docs: .venv/ready
	@echo "Adding what builds the documentation site to .venv"
	@$(INSTALL) -e ".[docs]"
	@touch $@

train: setup
	@$(BIN)/shoal train --preset tuned --env cooperative-navigation --rules openai --episodes 16000 --watch

# Neighbouring tests stay in one worker, with their fixtures and compiled loops; an idle worker steals from the other.
test: lint
	@$(BIN)/python -m pytest -n 2 --dist worksteal

# Under a minute: the tests of what has changed since a commit (SINCE=HEAD~3), or TESTS="tests/replay tests/envs".
SINCE ?= main
TESTS ?=
quick: lint
	@$(BIN)/python -m tests.changed --since $(SINCE) $(TESTS)

lint: .venv/ready-dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

format: .venv/ready-dev
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

bench: .venv/ready-dev
	@$(BIN)/shoal bench all

# Warnings are errors; nothing is fetched from the network.
docs: .venv/ready-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

# The wheel is built from the source archive, so that nothing is missing there, and tried in an environment of its own.
TRY := --episodes 60 --warmup 300 --batch 32 --hidden 8 --evaluate-episodes 4 --quiet
wheel: .venv/ready
	@rm -rf build dist *.egg-info
	@$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist')" > /dev/null
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist dist/*.tar.gz
	@$(BIN)/python -m venv build/clean
	@build/clean/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	@cd build/clean && unset PYTHONPATH && bin/shoal --version && bin/shoal train $(TRY) --out run
	@ls dist/*

clean:
	rm -rf .venv build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
