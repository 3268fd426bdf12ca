# Everything runs in the project's own environment, .venv, which the first command makes.

VENV   := .venv
PYTHON := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
PHOTOGRAPHS := foolbox==3.3.4
BASE   := $(shell command -v python3.11 || command -v python3)

.DEFAULT_GOAL := help
.PHONY: help train test test-slow fuzz lint data bench docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: data ## train a small network with THOR, then with Momentum; table, curves.png (3 minutes)
	$(PYTHON) scripts/quickstart.py

test: data ## run the tests, but for the slow ones
	$(PYTHON) -m pytest -n 2 --dist loadfile -m "not slow"

# One at a time: most of them start several processes, and what hangs is told from what waits by seconds.
test-slow: data ## run the tests that start jobs of several processes, or train for minutes
	$(PYTHON) -m pytest -m slow

fuzz: $(STAMP) ## spoil files of every kind, 2000 times each: what is read, refused, not survived (5 minutes)
	$(PYTHON) -m tests.fuzz.figures 2000

lint: $(STAMP) ## ruff (rules and format) and mypy
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

data: $(STAMP) ## bring Fashion-MNIST (31 MB, once)
	@$(PYTHON) -m scripts.data.fashion_mnist

bench: $(STAMP) ## measure step times: Momentum, THOR's plain step, curvature step, refresh
	$(PYTHON) scripts/bench/step.py

docs: $(STAMP) ## build the documentation into site/
	$(PYTHON) -m mkdocs build --strict --site-dir site

# torch's build for CPUs alone calls itself 2.13.0+cpu; the lock names the version, which either build satisfies.
lock: ## renew requirements.lock with the newest versions that pyproject.toml allows
	@$(MAKE) --no-print-directory $(VENV)/bin/pip
	$(VENV)/bin/pip install --upgrade --upgrade-strategy eager ".[train,dev]"
	{ head -n 1 requirements.lock; \
	  $(VENV)/bin/pip freeze --all | grep -v -i -E '^(pip==|foolbox|mindspore[-_]thor|-e |#)' | sed 's/+cpu$$//'; } > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean: ## remove the environment, results of runs and caches (not the data)
	rm -rf $(VENV) runs build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis kernel_meta rank_*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/pip:
	@test -n "$(BASE)" && "$(BASE)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "Python 3.11 is needed (MindSpore 2.10), and found: $(or $(BASE),no python3 at all)." >&2; \
	  echo "Install python3.11, or name one: make BASE=/path/to/python3.11" >&2; exit 1; }
	"$(BASE)" -m venv $(VENV)

# Repeats are instant and need no network: the stamp is renewed only when one of the two files changes. Of foolbox only
# the sample photographs are wanted, and not what the package asks for. torch is a reference for tests; where the default
# index serves its large build for GPUs, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu brings the small one.
$(STAMP): pyproject.toml requirements.lock | $(VENV)/bin/pip
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps $(PHOTOGRAPHS)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)
