# Everything installs from hashed locks into .venv; nothing else on the machine is touched, but for Debian packages (`make packages`).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The build backend comes from the lock too, so no build step resolves anything by itself.
INSTALL_SELF := $(PIP) install --no-deps --no-build-isolation --no-index --editable .
# Tests wait for processes, sockets and pages as much as they compute: two more than there are cores.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 2)')

.PHONY: help run demo test packages check format bench weather soak crash lock clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "headgate needs Python 3.11 or newer; set PYTHON=python3.x")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/pyvenv.cfg requirements/run.lock pyproject.toml
	@echo "installing headgate into $(VENV) …"
	@$(PIP) install --require-hashes --requirement requirements/run.lock
	@$(INSTALL_SELF)
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.lock
	@echo "installing the development tools into $(VENV) …"
	@$(PIP) install --require-hashes --requirement requirements/dev.lock
	@touch $@

run: $(VENV)/.run ## Start the gateway on its defaults, on port 8400 (ARGS="--port 8401" and the like)
	@$(BIN)/headgate serve $(ARGS)

demo: $(VENV)/.run ## A storm on a gateway of its own, with a verdict
	@$(BIN)/headgate demo

test: $(VENV)/.dev packages ## All tests
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal $(if $(filter true,$(CI)),--reruns 1 -raR)

packages: ## What some tests need from Debian: chromium for the pages, pgbouncer for PostgreSQL
	@missing=; browser=; search=$$PATH:/usr/sbin; \
	for name in chromium chromium-browser google-chrome; do PATH=$$search command -v $$name >/dev/null && browser=$$name; done; \
	[ -n "$$browser" ] || missing="$$missing chromium"; \
	PATH=$$search command -v pgbouncer >/dev/null || missing="$$missing pgbouncer"; \
	[ -z "$$missing" ] && exit 0; \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing$$missing …" && apt-get -qq update \
	  && DEBIAN_FRONTEND=noninteractive apt-get -qq --yes --no-install-recommends install $$missing >/dev/null \
	  || echo "could not install$$missing here; the tests that need it are skipped: sudo apt-get install$$missing"

check: $(VENV)/.dev ## Style, types, arrows
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## Format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## Measured costs and figures, each beside its floor
	@$(BIN)/python bench/gate.py
	@$(BIN)/python bench/queues.py
	@$(BIN)/python bench/batches.py
	@$(BIN)/python bench/feeding.py
	@$(BIN)/python bench/transport.py
	@$(BIN)/python bench/http_front.py
	@$(BIN)/python bench/gateway.py
	@$(BIN)/python bench/replay.py
	@$(BIN)/python bench/metrics.py
	@$(BIN)/python bench/listening.py
	@$(BIN)/python bench/dashboard.py
	@$(BIN)/python bench/plan.py
	@HEADGATE_LONG_RUNS=1 $(BIN)/pytest -q tests/sim tests/calls/test_gate_machine.py

weather: $(VENV)/.dev ## What callers get in bad weather, with Headgate and without: an hour or more (ARGS="--calls 60 quota-20" and the like)
	@$(BIN)/python bench/weather.py --virtual
	@$(BIN)/python bench/weather.py $(ARGS)

soak: $(VENV)/.dev ## Random storms, gate machines and store machines, much longer than in the tests, each from its seed
	@$(BIN)/python bench/soak.py
	@HEADGATE_MACHINE_EXAMPLES=2000 $(BIN)/pytest -q --timeout 3600 tests/contracts/test_store_machine.py
	@HEADGATE_MACHINE_EXAMPLES=500 $(BIN)/pytest -q --timeout 3600 tests/client/test_outbox_machine.py

crash: $(VENV)/.dev packages ## Kill, freeze and cut off producers, workers, clients and databases, over 1,000 times; nothing accepted may be lost, doubled or stuck
	@HEADGATE_CRASH_ROUNDS=1000 HEADGATE_POWER_CUTS=500 $(BIN)/pytest -q tests/crash tests/chaos tests/stores/test_sqlite_power.py

lock: ## Pin all dependencies anew, with hashes (needs uv)
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --upgrade \
	  pyproject.toml requirements/build.in --output-file requirements/run.lock
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --upgrade \
	  pyproject.toml requirements/build.in --group dev --constraints requirements/run.lock --output-file requirements/dev.lock
	uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --upgrade \
	  pyproject.toml requirements/build.in --extra postgres --extra bedrock --constraints requirements/dev.lock --output-file requirements/image.lock

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .hypothesis .mypy_cache .ruff_cache .import_linter_cache
