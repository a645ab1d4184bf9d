# Every target sets up what it needs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
# The oldest supported torch in an environment of its own; its wheel brings gigabytes of CUDA packages.
OLDEST := build/oldest
OLDEST_TORCH := $(shell sed -n 's/.*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
MINUTES ?= 30

.PHONY: demo test test-slow test-long test-oldest test-kernels check-data coverage fuzz lint types docs bench figures screenshots study-theory clean

demo: $(SETUP)
	$(BIN)/inexact-muon demo

test: $(SETUP)
	$(BIN)/python -m pytest -n 2

test-slow: $(SETUP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'slow and not long'

test-long: $(SETUP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m long --timeout 3600

test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python -c 'import torch; print("torch", torch.__version__)'
	$(OLDEST)/bin/python -m pytest -n 2 -rs

# Triton takes 290 MB to load and a gigabyte on disk: without it these tests say so and are skipped.
test-kernels: $(SETUP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt triton
	$(BIN)/python -m pytest -n 2 -m 'not long' tests/test_symmetric_kernel.py

# Committed tables against the pages that quote them; part of `make test` too.
check-data: $(SETUP)
	$(BIN)/python -m pytest -n 2 -m data

# The fast tests; the floor is `fail_under` in pyproject.toml. What only the slow tests run counts as missed.
coverage: $(SETUP)
	$(BIN)/python -m pytest -n 2 --cov --cov-report term

fuzz: $(SETUP)
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES)

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SETUP)
	$(BIN)/mypy

docs: $(SETUP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "written: build/site/index.html"

bench: $(SETUP)
	$(BIN)/inexact-muon bench --out benchmarks/results/bench.json
	$(BIN)/python benchmarks/telemetry.py
	$(BIN)/python benchmarks/estimate.py

figures: $(SETUP)
	$(BIN)/inexact-muon demo --oracles --out docs/figures
	$(BIN)/python studies/cotuning_tables.py --out docs/figures
	$(BIN)/python benchmarks/choose.py

screenshots: demo
	$(BIN)/python benchmarks/screenshots.py

study-theory: $(SETUP)
	$(BIN)/python studies/theory/study.py --out docs/figures

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis runs build

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "inexact-muon needs Python 3.11 or newer, found " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[lab,safetensors,clients,docs,dev]'
	# timm without its dependencies: it wants torchvision, which has no build for this torch; tests stub what is missing.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --constraint constraints.txt timm
	touch $(SETUP)

$(OLDEST)/.ready: pyproject.toml constraints.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	# torch brings the Triton of its own version.
	sed 's/^torch==.*/torch==$(OLDEST_TORCH)/; /^triton==/d' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt hatchling editables
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --constraint $(OLDEST)/constraints.txt --editable '.[lab,safetensors,docs,dev]'
	touch $@
