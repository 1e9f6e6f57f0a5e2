# make setup | train | test | lint | bench: each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup train test lint bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing Shoal and what it needs into .venv (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

train: setup
	@$(BIN)/shoal train --env cooperative-navigation --rules openai --episodes 8000 --watch

test: lint
	@$(BIN)/python -m pytest -n 2 tests/training tests/algorithms
	@$(BIN)/python -m pytest -n 2 --ignore tests/training --ignore tests/algorithms

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

bench: setup
	@$(BIN)/shoal bench all

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
