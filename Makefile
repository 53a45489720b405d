# Everything a clone needs: `make run` and `make test` set up .venv by themselves, once.

.DEFAULT_GOAL := help
.PHONY: help run dev test test-integration test-exhaustive docs lint clean

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(STAMP) ## the main job: stream, SIGKILL in mid-batch, resume from a checkpoint, compare; exit 0 only if identical
	@tools/require-java
	$(BIN)/python -m assets.main_job

dev: $(STAMP) ## the same pipelines in the Dagster UI
	@tools/require-java
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/dev

# Each worker has a Spark session of its own; a file stays with one worker, because its tests share fixtures. One more
# than there are processors, because the tests of daemons mostly wait.
WORKERS := $(shell n=$$(getconf _NPROCESSORS_ONLN); if [ $$n -ge 4 ]; then echo 4; else echo $$((n + 1)); fi)
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(STAMP) ## the fast tests, side by side
	@tools/require-java
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-integration: $(STAMP) ## the slow tests and those that need a daemon, a cluster or a browser
	@tools/require-java
	@tools/require-chromium
	@tools/require-npm
	@tools/require-go
	@echo "Building fake-gcs-server and versitygw; the first time takes a few minutes."
	@$(BIN)/python -m tests.servers.fake_gcs_server
	@$(BIN)/python -m tests.servers.versitygw
	$(BIN)/python -m pytest -m "(slow or integration) and not exhaustive" $(SIDE_BY_SIDE)

test-exhaustive: $(STAMP) ## what the other tests try at some points, at every point
	@tools/require-java
	$(BIN)/python -m pytest -m exhaustive $(SIDE_BY_SIDE)

docs: $(STAMP) ## the documentation as a site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

lint: $(STAMP) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## removes what running, testing and building leave behind, .venv too
	rm -rf $(VENV) .dagster_home artifacts data build dist spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Again whenever the dependencies change; an interrupted installation leaves no stamp and is repeated.
$(STAMP): pyproject.toml tools/bootstrap
	@tools/bootstrap $(VENV)
	@touch $@
