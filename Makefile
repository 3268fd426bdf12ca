# Everything runs in the project's own environment, .venv. The first command makes it, with what training needs; the
# first check adds what tests, checks and documentation need.

VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(VENV)/bin/pip install --quiet --disable-pip-version-check
TRAIN  := $(VENV)/.installed-train
DEV    := $(VENV)/.installed-dev
PHOTOGRAPHS := foolbox==3.3.4
BASE   := $(shell command -v python3.11 || command -v python3)

.DEFAULT_GOAL := help
.PHONY: help train test test-slow compat fuzz lint data bench docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: data ## train a small network with THOR, then with Momentum; table, curves.png (3 minutes)
	$(PY) scripts/quickstart.py

test: $(DEV) data ## run the tests, but for the slow ones
	$(PY) -m pytest -n 2 --dist loadfile -m "not slow"

# Jobs one at a time: they start several processes, and what hangs is told from what waits by seconds.
test-slow: $(DEV) data ## run the tests that start jobs of several processes, or train for minutes
	$(PY) -m pytest -n 2 --dist loadfile -m "slow and not jobs"
	$(PY) -m pytest -m "slow and jobs"

# A VERSION or PYTHON of the shell's environment is somebody else's: only one that make is given counts.
given = $(if $(filter command line,$(origin $(1))),$($(1)))
compat: ## run chosen tests with another MindSpore and Python: make compat VERSION=2.7.0 PYTHON=3.10
	@"$(BASE)" .ci/compat.py --version "$(call given,VERSION)" --python "$(call given,PYTHON)" \
	  $(if $(call given,QUICK),--quick)

fuzz: $(DEV) ## spoil files of every kind, 2000 times each: what is read, refused, not survived (5 minutes)
	$(PY) -m tests.fuzz.figures 2000

lint: $(DEV) ## ruff (rules and format), mypy, and which part may import which
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

data: $(TRAIN) ## bring Fashion-MNIST (31 MB, once)
	@$(PY) -m scripts.data.fashion_mnist

bench: $(TRAIN) ## measure step times: Momentum, THOR's plain step, curvature step, refresh
	$(PY) scripts/bench/step.py

docs: $(DEV) ## build the documentation into site/
	$(PY) -m mkdocs build --strict --site-dir site

lock: $(VENV)/bin/pip ## renew both lock files with the newest versions that pyproject.toml allows
	$(PY) .ci/lock.py

clean: ## remove the environments, results of runs and caches (not the data)
	rm -rf $(VENV) .compat runs build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
	  .hypothesis kernel_meta rank_*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/pip:
	@test -n "$(BASE)" && "$(BASE)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "Python 3.11 is needed, for which the lock files are made, and found: $(or $(BASE),no python3 at all)." >&2; \
	  echo "Install python3.11, or name one: make BASE=/path/to/python3.11" >&2; \
	  echo "The package itself runs on Python 3.10 to 3.12 too: pip install '.[cli]' in an environment of your own." >&2; \
	  exit 1; }
	"$(BASE)" -m venv $(VENV)

# Repeats are instant and need no network: a stamp is renewed only when one of its files changes, and pip then installs
# only what is missing.
$(TRAIN): pyproject.toml requirements-train.lock | $(VENV)/bin/pip
	@echo "Installing what training needs into $(VENV) (the first time: 0.9 GB to download, 3.1 GB on disk, 1 to 4 minutes)."
	$(PIP) -r requirements-train.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $(TRAIN)

# Of foolbox only the sample photographs are wanted, and not what the package asks for. torch is a reference for tests;
# where the default index serves its large build for GPUs, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# brings the small one.
$(DEV): requirements-dev.lock $(TRAIN)
	@echo "Installing what tests and checks need into $(VENV) (the first time: 0.6 GB to download, 2.7 GB on disk, about 2 minutes)."
	$(PIP) -r requirements-train.lock -r requirements-dev.lock
	$(PIP) --no-deps $(PHOTOGRAPHS)
	@touch $(DEV)
