# `make run`: the main job on this machine. `make test`: what CI runs. Nothing else is ever asked of a newcomer.
.PHONY: setup prepare run lint test test-all clean
PYTHON := .venv/bin/python
export OMP_NUM_THREADS ?= 1

setup:
	@scripts/setup $(FOR)

# What the tests need: everything but the tasks and the policy of the main job.
prepare: setup
	$(PYTHON) -m engine experiment=openhands_gspo model=tiny_qwen3_moe tasks=release_pairs job=prepare

run: setup
	$(PYTHON) -m engine experiment=openhands_gspo job=prepare
	$(PYTHON) -m engine experiment=openhands_gspo

# Files side by side; what starts sandboxes and engines is judged by what it leaves behind, so it runs alone.
SIDE_BY_SIDE := $(PYTHON) -m pytest tests/configs tests/unit -n logical --maxprocesses 8 --dist loadfile
ALONE := $(PYTHON) -m pytest tests/contract tests/e2e

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

test test-all: FOR := tests

test: lint prepare
	$(SIDE_BY_SIDE) -m "not slow"
	$(ALONE) -m "not slow"

test-all: lint prepare
	$(SIDE_BY_SIDE)
	$(ALONE)

clean:
	rm -rf runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
