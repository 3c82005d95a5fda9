# make demo: set up, films and planning with bundled weights.   make train: set up, train a policy in imagination, check
# it in physics.   make test: set up, run the tests.
# Both make .venv from constraints.txt first. PYTHON=... names another interpreter, VENV=... another folder.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,\
            $(if $(shell $(name) -c '' 2>/dev/null && echo yes),$(name))))
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export MUJOCO_GL ?= egl
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.PHONY: demo train test setup check lint types spell language

demo: setup
	$(BIN)/worldrl demo

train: setup
	$(BIN)/worldrl train-vla
	@echo "report: $(CURDIR)/runs/train-vla/report.html"

test: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

setup: $(INSTALLED)

$(INSTALLED): constraints.txt pyproject.toml scripts/check_system.py
	$(PYTHON) scripts/check_system.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

check: lint types spell language test

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright --pythonpath $(BIN)/python

spell: setup
	$(BIN)/codespell

language: setup
	$(BIN)/python scripts/check_language.py README.md CONTRIBUTING.md SECURITY.md docs assets
