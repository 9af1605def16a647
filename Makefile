# `make demo` and `make test` work from a fresh clone: what they need is installed into .venv first, once.

# Python 3.11 with venv: the first of these that is one. Another: make demo PYTHON=/path/to/python3.11
IS_3_11 := import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))
PYTHON ?= $(shell for one in python3.11 python3 python; do \
  $$one -c '$(IS_3_11)' >/dev/null 2>&1 && { echo $$one; break; }; done)

BIN := .venv/bin
INSTALLED := .venv/.installed
ENGINE := .venv-workflow/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Processes; on two cores two take half the time of one.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)
# Pytest ends with 5 when it has selected no test.
NONE_YET = { status=$$?; test $$status -eq 5 || exit $$status; echo "$@: no test is marked for this yet"; }

.DEFAULT_GOAL := help
BENCHES := $(addprefix bench-,recovery real frames schemes populations estimators digits gre sbc prepare scale expected space gap)
.PHONY: help demo demo-check test test-slow test-slurm fuzz workflow lint $(BENCHES) reproduce gpu-check gpu-bench clean

help:
	@echo "make demo              posterior maps of Broca's area from real files, in build/demo"
	@echo "make demo-check        the BIDS validator on its output, and a picture of its Workbench scene"
	@echo "make test              style, import contracts, tests"
	@echo "make test-slow         the long proofs"
	@echo "make fuzz              damaged files to every reader (MINUTES=10, FILES: more files or folders to damage)"
	@echo "make test-slurm        the workflow on a Slurm of one node, as root"
	@echo "make workflow          install Snakemake, which parcellation run calls, into .venv-workflow"
	@echo "make lint              style and import contracts only"
	@echo "make bench-recovery    what is recovered of cohorts of known truth, beside rival methods"
	@echo "make bench-schemes     the same for every scheme of the posterior and both models of labels"
	@echo "make bench-real        individual networks of real people, judged by their other sessions, beside rival methods"
	@echo "make bench-frames      a model of long runs applied to runs of a half and a quarter of their frames"
	@echo "make bench-estimators  variance and result of the gradient's estimators, on random effects"
	@echo "make bench-digits      auto-encoders of handwritten digits: evidence, and its bounds"
	@echo "make bench-gre         ours and rivals against the exact evidence of random effects"
	@echo "make bench-populations new cohorts of another population: kept, inferred again, or trained anew"
	@echo "make bench-sbc         whether posteriors are as wide as they say, over data sets drawn from the prior"
	@echo "make bench-space       smooth maps and smooth deviations of subjects from them, beside free maps"
	@echo "make bench-prepare     time and memory of preparing a run of real size, beside reading it"
	@echo "make bench-scale       time and memory of training and inference, from 50 to 1000 subjects and the whole cortex"
	@echo "make bench-expected    what a study of 10, 100, 1000 subjects needs, from what those two measured"
	@echo "make bench-gap         the amortization gap, and what refinement closes of it at which price"
	@echo "make reproduce         the paper's experiments, judged against the exact evidence (SIZE=small or full)"
	@echo "make gpu-check         tests and short benchmarks that need a CUDA device, at most 8 minutes"
	@echo "make gpu-bench         the same with the whole training of the whole cortex"
	@echo "make clean             remove .venv, build and caches"

demo: $(INSTALLED)
	$(BIN)/parcellation demo

# What other programs make of the demonstration's files.
demo-check: demo
	for one in results results-person; do \
	  $(BIN)/bids-validator-deno --ignoreWarnings build/demo/$$one || exit 1; \
	  wb_command -show-scene build/demo/$$one/tpl-fsaverage/broca2.scene 1 build/demo/$$one.png 1200 600 \
	    -use-window-size || exit 1; \
	done

test: lint
	$(PYTEST)

test-slow: $(INSTALLED)
	$(PYTEST) -m slow || $(NONE_YET)

test-slurm: $(INSTALLED) $(ENGINE)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm -rs

MINUTES ?= 10
fuzz: $(INSTALLED)
	$(BIN)/python -m pipelines.fuzz --minutes $(MINUTES) --jobs $(WORKERS) $(FILES)

workflow: $(ENGINE)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

# Each benchmark prints a table and writes build/bench/NAME.json.
$(BENCHES): bench-%: $(INSTALLED)
	$(BIN)/python -m pipelines.benchmarks.$*

SIZE ?= small
CORES ?= all
# FROM: an archive of finished runs to go on from.
reproduce: $(INSTALLED) $(ENGINE)
	$(if $(FROM),$(BIN)/python -m pipelines.reproduce.archive unpack $(FROM) build/reproduce/$(SIZE))
	.venv-workflow/bin/snakemake -s pipelines/reproduce/Snakefile --configfile pipelines/reproduce/$(SIZE).yaml \
	  --rerun-triggers mtime -c $(CORES)

# The workflow engine brings many libraries, in versions of its own, so it has an environment of its own.
$(ENGINE): pipelines/requirements.txt
	@test -x .venv-workflow/bin/python || $(PYTHON) -m venv .venv-workflow
	@.venv-workflow/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# At most 8 minutes on one GPU.
gpu-check: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu -rs || $(NONE_YET)
	$(BIN)/python -m pipelines.benchmarks.gpu --check

gpu-bench: $(INSTALLED)
	$(BIN)/python -m pipelines.benchmarks.gpu --full

clean:
	rm -rf .venv .venv-workflow build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# torch comes first: a torch 2.13.0 that is there already, such as a build for the CPU only, is kept.
$(INSTALLED): pyproject.toml
	@$(or $(PYTHON),false) -c '$(IS_3_11)' 2>/dev/null || { \
	  echo "parcellation needs Python 3.11 with its venv module; found: $$(python3 --version 2>&1)."; \
	  echo "Install it (on Debian: python3.11 and python3.11-venv), or name it: make PYTHON=/path/to/python3.11"; \
	  exit 1; }
	@echo "Installing into .venv, once; this takes a few minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[test,fslr]'
	@$(PIP) --no-deps brainspace==0.3.0
	@touch $@
