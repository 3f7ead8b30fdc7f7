# Needs python3.11 or later, pip, make and git. Everything else comes from the package index, by hash.
.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-fast size bench mutants soak chromium ui screenshots lock clean

# All state of `run` and `demo` stays in the checkout; the user's own is never touched.
RUN_HERE := AGENT_OS_HOME="$(CURDIR)/.agent-os" .venv/bin/python
# Where set-up found uv: in the venv, or beside it on a machine without ensurepip.
COMPILE = $(or $(wildcard .venv/bin/uv),.cache/uv/bin/uv) pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.ok  ## make .venv from the locks (PYTHON=... chooses the interpreter)

.venv/.ok: pyproject.toml requirements.lock scripts/bootstrap scripts/uv.lock.txt
	@PYTHON="$(PYTHON)" scripts/bootstrap

run: .venv/.ok  ## start the OS with the demo agents; Ctrl-C ends it
	@$(RUN_HERE) examples/demo/run.py --stay

demo: .venv/.ok  ## the demo agents without interaction; checks what each must show
	@$(RUN_HERE) examples/demo/run.py

test: .venv/.ok  ## everything: lint, types, contracts, all tests, as root also unprivileged (STRICT=1: no skips)
	@.venv/bin/python scripts/test $(ARGS)

test-fast: .venv/.ok  ## lint, contracts, unit and property tests that take under a second
	@.venv/bin/python scripts/test --fast $(ARGS)

size: .venv/.ok  ## lines, files, cycles, calls; fails where a figure rose (ARGS=--write keeps the figures of now)
	@.venv/bin/python scripts/size $(ARGS)

bench: .venv/.ok  ## measure; ratios of one run
	@$(RUN_HERE) benchmarks/run.py $(ARGS)

mutants: .venv/.ok  ## plant faults one at a time in a copy; the tests must find each
	@.venv/bin/python scripts/mutants $(ARGS)

soak: .venv/.ok  ## the long forms of the tests
	@.venv/bin/python scripts/test --soak $(ARGS)

chromium:  ## get the browser of the tools browser.* (a system package; needs root)
	@scripts/chromium

ui:  ## rebuild the dashboard into the package (needs npm)
	@scripts/ui

screenshots: .venv/.ok  ## take the pictures of docs/images from the running demo (needs chromium)
	@.venv/bin/python scripts/screenshots

lock: .venv/.ok  ## renew requirements.lock and the pinned uv
	@$(COMPILE) --group dev --all-extras --output-file requirements.lock pyproject.toml
	@echo uv | $(COMPILE) --output-file scripts/uv.lock.txt -

clean:  ## remove .venv, .agent-os, .cache and build products
	rm -rf .venv .agent-os .cache build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
