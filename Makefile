# Two commands set everything up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# e.g. make test PYTEST_ARGS="-k retrieval"
PYTEST_ARGS ?=

.PHONY: install demo test scale lowest elasticsearch9 lint docs clean

install: $(VENV)/.installed

# Installed again only when the requirements change.
$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --editable ".[dev]"
	touch $@

demo: install
	$(BIN)/python examples/demo/demo.py

test: install
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup -m "" $(PYTEST_ARGS)

# The page on large tables, on real Ray, Spark (which needs Java) and Dask, in an environment of their own.
scale: install
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --clear --quiet --python $(BIN)/python .venv-scale
	$(BIN)/uv pip install --quiet --python .venv-scale --editable ".[dev,ray]" "pyspark>=4.0" "dask[dataframe]>=2025.1"
	RAY_USAGE_STATS_ENABLED=0 ZOO_REQUIRE_SCALE=1 .venv-scale/bin/python -m pytest -m "" tests/zoo/examples/test_sharding.py $(PYTEST_ARGS)

# The lowest versions that setup.cfg allows, in an environment of their own.
lowest: install
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --clear --quiet --python $(BIN)/python .venv-lowest
	$(BIN)/uv pip install --quiet --python .venv-lowest --resolution lowest-direct --editable ".[dev]"
	.venv-lowest/bin/python -m pytest --numprocesses auto --dist loadgroup $(PYTEST_ARGS)

# Client and server 9, which needs Java 21; the server is downloaded once (130 MB).
elasticsearch9: install
	$(BIN)/python -m pip install --quiet --upgrade --target .client9 "elasticsearch>=9,<10"
	ZOO_TEST_ES_VERSION=9.5.3 ZOO_REQUIRE_ELASTICSEARCH=1 PYTHONPATH=$(CURDIR)/.client9 \
		$(BIN)/python -m pytest -m server $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.measures

docs: install
	$(BIN)/python -m tests.api_docs build/docs

clean:
	rm -rf $(VENV) .venv-scale .venv-lowest .client9 build dist *.egg-info
