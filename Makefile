# Everything runs from here. `make demo` and `make test` need only Python >= 3.11.
#   PYTHON=...       the interpreter of the virtual environments (default: the first one >= 3.11)
#   PYTEST_ARGS=...  for test, test-oldest and test-gpu, e.g. PYTEST_ARGS="tests/test_pool.py -x"

SHELL := /bin/sh
export PYTHON

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_OLDEST := .venv-oldest/.ready
READY_BENCH := .venv-bench/.ready
LABEXTENSION := $(wildcard labextension/*.json labextension/src/*.ts labextension/src/*/* labextension/style/* \
	labextension/schema/* jupyter_mgpu/widgets/views/*)
QUICKSTART := notebooks/01_quickstart.ipynb
ISOLATED := scripts/isolated.sh
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help demo test test-oldest test-gpu lab check format bench clean

help:
	@echo "make demo         run the quickstart notebook and show what it prints"
	@echo "make test         every check and every test, some with the oldest versions, too"
	@echo "make lab          open the quickstart in JupyterLab"
	@echo "make check        lint, format, types, architecture, spelling, notebooks without outputs"
	@echo "make test-oldest  the tests with the oldest versions that are supported"
	@echo "make test-gpu     the tests that need real GPUs"
	@echo "make bench        measure beside other projects; writes benchmarks/README.md"

demo: $(READY)
	@$(ISOLATED) $(BIN)/python scripts/demo.py $(QUICKSTART) build/demo

test: check
	scripts/install-test-programs.sh
	$(ISOLATED) $(BIN)/python -m pytest $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS),,$(MAKE) test-oldest PYTEST_ARGS="-m oldest")

test-oldest: $(READY_OLDEST)
	$(ISOLATED) .venv-oldest/bin/python -m pytest $(PYTEST_ARGS)

test-gpu: $(READY)
	MGPU_REQUIRE_GPUS=1 $(ISOLATED) $(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

# A copy, so that saving it in JupyterLab leaves the checkout clean.
lab: $(READY)
	@mkdir -p build/lab
	@cp -u $(QUICKSTART) build/lab/
	$(BIN)/jupyter lab $(AS_ROOT) build/lab/$(notdir $(QUICKSTART))

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/nbstripout --verify notebooks/*.ipynb

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout notebooks/*.ipynb

bench: $(READY_BENCH)
	$(ISOLATED) .venv-bench/bin/python benchmarks/run.py

clean:
	rm -rf build .venv .venv-oldest .venv-bench .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml constraints.txt $(LABEXTENSION)
	scripts/bootstrap.sh $(VENV) constraints.txt test,libraries
	@touch $@

$(READY_OLDEST): pyproject.toml constraints-oldest.txt $(LABEXTENSION)
	scripts/bootstrap.sh .venv-oldest constraints-oldest.txt test
	@touch $@

$(READY_BENCH): pyproject.toml constraints.txt
	scripts/bootstrap.sh .venv-bench constraints.txt bench
	@touch $@
