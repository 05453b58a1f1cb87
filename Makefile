# Two commands for a newcomer: `make run` and `make test`. Everything else builds on them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Bytecode is kept: without it each of hundreds of processes compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
# In the order of the files: otherwise files with one long test come last, and the other processes wait for them.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --durations 10 --numprocesses

# Newer than every module if the bytecode of all of them is there, and Hypothesis's table of characters.
COMPILED := .pytest_cache/compiled/.tests

# The page's JavaScript, and its tests.
PAGE := src/gpucommons/faces/web/static tests/page
SCRIPTS := 'src/gpucommons/faces/web/static/**/*.js' 'tests/page/**/*.js'

.PHONY: run demo test test-all test-kubernetes checks lint types bench torture docs dashboards deploy-files dist deb clean

run: $(VENV)/.ready
	@$(BIN)/gpucommons up

demo: $(VENV)/.ready
	@$(BIN)/gpucommons up --simulate lab --share

# The short tier: lint, types, every pure test and one real run of each capability. The same examples in each run.
test: checks
	$(PYTEST) 4 -m "not long"

# Both tiers, with a random search of every property; in the long one more tests have real processes and clocks, and fewer
# run at once. What failed runs once more, alone: a machine that stalls for seconds disturbs such tests.
test-all: checks
	@rm -f .pytest_cache/v/cache/lastfailed
	@failed=0; \
	$(PYTEST) 4 -m "not long" || failed=1; \
	TEST_RANDOM=1 $(PYTEST) 3 -m "long or hypothesis" || failed=1; \
	if [ $$failed = 1 ]; then \
	  echo "running the failed tests a second time, one at a time; a test that passes now depends on the load: mend it"; \
	  TEST_RANDOM=1 $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; \
	fi

# What the tests need; then, at the same time, lint, types, and the tests compiled once for all processes that run them.
checks: $(VENV)/.ready-test
	@scripts/install-test-programs
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types lint $(COMPILED)

$(COMPILED): $(shell find src tests -name '*.py')
	@mkdir -p $(@D)
	-@$(BIN)/python -m pytest --collect-only --quiet > /dev/null \
	  && $(BIN)/python -c 'from hypothesis import strategies; strategies.text().validate()' && touch $@

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint $(PAGE)
	$(BIN)/oxfmt --check $(SCRIPTS)

types: $(VENV)/.ready-test
	$(BIN)/mypy

# Pages of docs/ that are drawn from the code.
docs: $(VENV)/.ready
	$(BIN)/python scripts/make_docs.py

# Grafana's dashboards, from dashboards/*.py into the package.
dashboards: $(VENV)/.ready-test
	$(BIN)/python -m dashboards

# The files of deploy/ that are drawn from the code.
deploy-files: $(VENV)/.ready
	$(BIN)/python scripts/make_deploy.py

# The wheel and the sdist, in dist/.
dist: $(VENV)/.ready-test
	$(BIN)/python scripts/make_dist.py

# A Debian package with all that the agent imports, in dist/, for this release of Python and this processor.
deb: $(VENV)/.ready-test
	$(BIN)/python scripts/make_deb.py

# Each prints one table; ratios from one interleaved run. Takes some minutes.
bench: $(VENV)/.ready-test
	@scripts/install-test-programs
	@for name in $$($(BIN)/python -m bench.all); do $(BIN)/python -m bench.$$name || exit 1; done

# The agent against a real Kubernetes on this machine, as root. Builds it first, Go and helm included, then the image: 15 minutes on two quiet
# cores, 2 GB.
KUBERNETES ?= /tmp/gpucommons-kubernetes
test-kubernetes: $(VENV)/.ready-test
	@scripts/install-test-programs
	scripts/kubernetes-testbed build $(KUBERNETES)
	scripts/kubernetes-testbed start $(KUBERNETES)
	scripts/kubernetes-testbed agent-image $(KUBERNETES)
	@failed=0; TEST_KUBERNETES=$(KUBERNETES) $(BIN)/python -m pytest tests/kubernetes/test_cluster.py || failed=1; \
	scripts/kubernetes-testbed stop $(KUBERNETES); exit $$failed

# Every attack of tests/adversary for SECONDS, on loopback only; prints what was done. docs/reliability.md has the counts.
# Before them a random search of every property, with ten times the examples.
SECONDS ?= 30
MUTANT_SECONDS ?= 300
torture: $(VENV)/.ready-test
	@scripts/install-test-programs
	TEST_RANDOM=1 TEST_EXAMPLES=400 $(PYTEST) 4 -m hypothesis
	PYTHONPATH=src:tests $(BIN)/python -m adversary.torture $(SECONDS)
	PYTHONPATH=src:tests $(BIN)/python -m adversary.mutants $(MUTANT_SECONDS)

$(VENV)/.ready: pyproject.toml
	@scripts/make-venv $(PYTHON) $(VENV)
	@echo "installing gpucommons into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[tui]'
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready pyproject.toml
	@echo "installing what the tests need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
