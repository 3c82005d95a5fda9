# The checks of a change. `.ci/run` runs the same commands in a fresh environment.
.PHONY: check lint types spell test

check: lint types spell test

lint:
	ruff check .
	ruff format --check .

types:
	pyright

spell:
	codespell

test:
	python -m pytest -q -n 2
