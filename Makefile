# make help   what there is
# Options: PYTHON=python3.12 (which Python), DEVICE=auto|cpu|cuda|cu126 (which wheels), TRIO=auto|2.14|2.13|2.11 (which torch, with the
# fbgemm and torchrec built for it), VENV=folder, EXTRAS=dev,bench

PYTHON ?= python3
DEVICE ?= auto
TRIO ?= auto
EXTRAS ?= dev
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-slow test-slurm test-cpp gpu-check lint type docs bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-10s %s\n", $$1, $$2}'

setup: ## make .venv with the torch, fbgemm and torchrec that fit this machine; quick when nothing is to do
	@$(PYTHON) scripts/setup.py --venv=$(VENV) --device=$(DEVICE) --trio=$(TRIO) --extras=$(EXTRAS)

demo: setup ## from raw click logs to an AUC per epoch, in a few minutes
	rm -rf demo
	$(BIN)/dlrm-generate rows=500_000 output=demo/clicks.tsv
	$(BIN)/dlrm-preprocess dataset=criteo_kaggle input.train=demo/clicks.tsv split.val=0.1 split.test=0.1 output=demo/dataset
	$(BIN)/dlrm-train data.path=demo/dataset output=demo/run

test: setup ## the quick tests; three processes on two cores, for some of them wait
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-all: setup ## all tests, the slow and the long ones too
	$(BIN)/python -m pytest -m "not gpu"

test-slow: setup ## tests that take more than about two seconds each
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "slow and not long"

test-slurm: setup ## jobs on a Slurm of two nodes, started here, and two machines cut apart (root; Debian installs it)
	@tests/install.sh "slurmctld slurmd munged" "slurm-wlm munge"
	$(BIN)/python -m pytest -m long tests/slurm tests/integration/test_multinode.py

test-cpp: setup ## compiled exports, and the C++ program that scores them, compared with Python (Debian installs cmake and g++)
	@tests/install.sh "cmake g++" "cmake g++"
	$(BIN)/python -m pytest -m long tests/inference/test_cpp.py tests/inference/test_package.py

gpu-check: setup ## on a machine with GPUs: trainings on them against its CPU, packed into gpu-check.tar.gz; DEVICE=cpu tries it without
	DEVICE=$(DEVICE) $(BIN)/python scripts/gpu_check.py $(OPTIONS)

lint: setup ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup ## mypy, strict
	$(BIN)/mypy

docs: EXTRAS := dev,docs
docs: setup ## build the documentation into site/; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: EXTRAS := dev,bench
bench: setup ## measure preprocessing and planning on this machine (benchmarks/ has more)
	@for script in preprocess "planner --limit 0"; do \
	  set -- $$script; echo "== benchmarks/$$1.py"; file=benchmarks/$$1.py; shift; $(BIN)/python $$file "$$@" || exit 1; done

clean: ## remove what tests and builds leave behind; .venv, demo/ and runs/ stay
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
