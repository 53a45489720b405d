# Everything a clone needs: `make run` and `make test` set up .venv by themselves, once.

.DEFAULT_GOAL := help
.PHONY: help run dev compiled test servers sparks test-spark test-integration test-exhaustive test-airflow test-mutants docs lint clean

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(STAMP) ## the main job: stream, SIGKILL in mid-batch, resume from a checkpoint, compare; exit 0 only if identical
	@tools/require-java
	$(BIN)/python -m assets.main_job $(ARGS)

dev: $(STAMP) ## the same pipelines in the Dagster UI
	@tools/require-java
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/dev

# Each worker has a Spark session of its own; a file stays with one worker, because its tests share fixtures. One more
# than there are processors, because the tests of daemons mostly wait.
WORKERS := $(shell n=$$(getconf _NPROCESSORS_ONLN); if [ $$n -ge 4 ]; then echo 4; else echo $$((n + 1)); fi)
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# An environment may forbid Python to keep what it compiles, and each of the thousand processes of the tests would compile
# the package again. By the hash of the source, so that a test that changes a module never finds what is out of date.
unexport PYTHONDONTWRITEBYTECODE
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q --invalidation-mode checked-hash dagster_ckpt assets tests definitions.py

test: compiled ## the fast tests, side by side
	@tools/require-java
	@tools/require-postgres
	@$(BIN)/python -m tests.helpers.local_spark
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-integration: compiled servers ## the slow tests and those that need a daemon, a cluster or a browser
	@tools/require-java
	@tools/require-chromium
	@tools/require-npm
	@tools/require-go
	@tools/require-postgres
	@$(BIN)/python -m tests.helpers.local_spark
	$(BIN)/python -m pytest -m "(slow or integration) and not exhaustive and not upgrade and not airflow" $(SIDE_BY_SIDE)

# Without anything of $(VENV): both are made side by side.
servers: ## the servers of other people that the integration tests talk to
	@tools/require-npm
	@tools/require-go
	@echo "Building fake-gcs-server, versitygw and Azurite; the first time takes a few minutes."
	@$(or $(PYTHON),python3) tests/servers/programs.py

# An environment of its own for each, with everything but PySpark from $(VENV).
sparks: $(STAMP)
	@$(BIN)/python -m tools.spark_environment $(SPARK)

test-spark: compiled ## the tests of every Spark with older ones: make test-spark SPARK="4.1 4.2"
	@tools/require-java
	@tools/require-postgres
	$(BIN)/python tools/test_spark.py $(SPARK)

test-exhaustive: compiled ## what the other tests try at some points, at every point
	@tools/require-java
	@tools/require-chromium
	@tools/require-npm
	@tools/require-go
	@tools/require-postgres
	@tools/require-prometheus
	@tools/require-hosts
	$(BIN)/python -m pytest -m "(exhaustive or releases) and not upgrade" $(SIDE_BY_SIDE)
	$(BIN)/python tools/test_spark.py --exhaustive 4.0 4.1 4.2

# An environment of its own for Airflow, which calls the Python of $(VENV).
test-airflow: compiled ## the example for Airflow under a real `airflow standalone`
	@tools/require-java
	$(BIN)/python tools/test_airflow.py

# An environment of its own, which sees what is installed in .venv. ONLY=checkpoint/taking tries one folder or module;
# MATCHING=sync those whose line matches; SAMPLE=200 SEED=1 so many places, chosen at random. By default every place is
# tried, which takes hours.
MUTANTS := build/mutants/venv

test-mutants: $(MUTANTS)/.installed ## which changes of the code the fast tests do not notice; ONLY=, MATCHING=, SAMPLE=, SEED=
	@tools/require-java
	$(MUTANTS)/bin/python tools/mutants.py --only "$(ONLY)" --matching '$(MATCHING)' --sample "$(or $(SAMPLE),0)" --seed "$(or $(SEED),0)"

$(MUTANTS)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(MUTANTS)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" > \
		"$$($(MUTANTS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	$(MUTANTS)/bin/python -m pip install --quiet --disable-pip-version-check "cosmic-ray>=8.4,<9" "coverage>=7.6,<8"
	@touch $@

docs: $(STAMP) ## the documentation as a site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

lint: $(STAMP) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## removes what running, testing and building leave behind, .venv too
	rm -rf $(VENV) .venv-spark-* .venv-flink-* .venv-airflow .dagster_home artifacts data build dist spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Again whenever the dependencies change; an interrupted installation leaves no stamp and is repeated.
$(STAMP): pyproject.toml tools/bootstrap
	@tools/bootstrap $(VENV)
	@touch $@
