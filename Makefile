# make run    broker with simulated devices     make test   all tests
# make setup  just the set-up                   make check  what CI runs: format, lint, types, tests
# make long   tests with their full rounds      make bench  speed, beside the peers that are installed
# make compiled  the modules that every message goes through, made into C: docs/howto/compiled.md
# make fuzz   every codec with atheris, a minute each: fuzz/README.md

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: setup browser run test check long bench compiled fuzz clean lock
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' Makefile

setup: .venv/ready

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'SMB needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'; exit 1; }
	@echo 'setting up .venv (once)'
	@$(PYTHON) -m venv .venv || { echo 'no venv module; on Debian: apt-get install python3-venv'; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

CHROMIUM := command -v chromium || command -v chromium-browser || command -v google-chrome

browser:  # the page is tested with the system's Chromium; where it cannot be installed the tests say so
	@{ $(CHROMIUM); } > /dev/null || ! command -v apt-get > /dev/null || [ "$$(id -u)" != 0 ] || \
	    { echo 'installing Chromium for the tests of the page (once)'; export DEBIAN_FRONTEND=noninteractive; \
	      apt-get install -qq -y chromium > /dev/null 2>&1 || \
	      { apt-get update -qq > /dev/null 2>&1 && apt-get install -qq -y chromium > /dev/null 2>&1; } || true; }
	@{ $(CHROMIUM); } > /dev/null || [ "$$SMB_PAGE" != must ] || \
	    { echo 'the page cannot be tested: there is no Chromium: apt-get install chromium'; exit 1; }

run: setup
	@$(BIN)/smb demo $(ARGS)

test: setup browser
	@$(BIN)/python tests/twice.py $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory test

long: setup browser
	@SMB_LONG=1 $(BIN)/python -m pytest $(ARGS)

bench: setup
	@$(BIN)/python bench/run.py $(ARGS)

compiled: setup
	@echo 'compiling, about a minute'
	@$(BIN)/python hatch_build.py build/compiled

TARGETS ?= soh pipe semicolon padded typed mqtt websocket http
SECONDS ?= 60

fuzz: .venv-fuzz/ready
	@PYTHONPATH=src .venv-fuzz/bin/python fuzz/corpus.py build/fuzz
	@for target in $(TARGETS); do echo "== $$target"; PYTHONPATH=src .venv-fuzz/bin/python fuzz/run.py $$target build/fuzz/$$target \
	    -max_total_time=$(SECONDS) -max_len=4096 -artifact_prefix=build/fuzz/$$target- || exit 1; done

.venv-fuzz/ready: requirements.txt  # of its own: atheris is none of the project's dependencies
	@$(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/pip install --quiet --disable-pip-version-check -c requirements.txt atheris starlette h11 prometheus-client
	@touch $@

lock:
	@rm -rf .venv/lock && $(PYTHON) -m venv .venv/lock && .venv/lock/bin/pip install --quiet '.[dev]'
	@.venv/lock/bin/pip freeze --exclude smbroker | grep -v '@' > requirements.txt && rm -rf .venv/lock

clean:
	@rm -rf .venv .venv-fuzz build dist
