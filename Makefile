# Axern's chores. `make` alone lists them.

PYTHON ?= python3
# Parallel workers: one more than the processors of a small machine, since many tests wait.
JOBS ?= 3
BIN := .venv/bin
# Tests start thousands of programs, each of which would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test test-long vm vm-long vm-shell vm-stop lint format docs bench demo install uninstall clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what tests and demo need: system packages (apt) and .venv (pip)
	@PYTHON="$(PYTHON)" .ci/setup

test: setup ## run everything, in the form that CI runs: in the test machine, then on this host
	@status=0; \
	$(BIN)/pytest -q --timeout 9000 tests/vm || status=1; \
	$(BIN)/pytest -n $(JOBS) --dist worksteal --durations 60 -m "not vm_job" || status=1; \
	exit $$status

test-long: setup ## run the same tests and the long ones, with new random examples
	AXERN_LONG=1 $(BIN)/pytest -n $(JOBS) --dist worksteal --timeout 3600 -m "not vm_job"

vm: setup ## run the test machine's tests: limits that a kernel holds, the units, reboots
	$(BIN)/pytest -q --timeout 9000 tests/vm

vm-long: setup ## run the test machine's tests alone, with the long form's figures (an hour at most)
	AXERN_LONG=1 $(BIN)/pytest -q --timeout 9000 tests/vm

vm-shell: setup ## open a shell in a test machine that has this checkout; `make vm-stop` ends it
	$(BIN)/python -m tests.vm shell

vm-stop: ## end the test machine of `make vm-shell`
	$(BIN)/python -m tests.vm stop

lint: setup ## run only ruff, mypy, floors, sizes, docs and help checks
	$(BIN)/pytest tests/tidy

format: setup ## let ruff format and repair what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## rewrite what is made from the table of commands: docs/cli.md; manual pages to build/man
	$(BIN)/python -m axern.cli.reference docs/cli.md
	$(BIN)/python -m axern.cli.manual build/man/man1

bench: setup ## measure beside peers, for an hour; FLAGS=--quick only tries each script
	@set -e; for name in $(filter-out common,$(basename $(notdir $(sort $(wildcard bench/*.py))))); do \
		echo "== $$name"; $(BIN)/python -m "bench.$$name" $(FLAGS); \
	done

demo: setup ## start a throw-away daemon, run two sandboxes and watch the ledger
	@.ci/demo

install: ## put Axern on this host with its systemd units (root), or below DESTDIR; PACKAGE may name a wheel
	@PYTHON="$(PYTHON)" DESTDIR="$(DESTDIR)" PACKAGE="$(PACKAGE)" systemd/install install

uninstall: ## take the programs and units away again; state, configuration and sandboxes stay
	@DESTDIR="$(DESTDIR)" systemd/install uninstall

clean: ## remove caches and build output; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find axern ledger tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
