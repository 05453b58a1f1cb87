# Two commands for a newcomer: `make run` and `make test`. Everything else builds on them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Bytecode is kept: without it each of hundreds of processes compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run demo test test-again lint types bench torture docs dashboards deploy-files dist clean

run: $(VENV)/.ready
	@$(BIN)/gpucommons up

demo: $(VENV)/.ready
	@$(BIN)/gpucommons up --simulate lab --share

test: $(VENV)/.ready-test
	@scripts/install-test-programs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	# Meanwhile the tests are compiled, once for all processes that run them.
	$(BIN)/python -m pytest --collect-only --quiet > /dev/null & $(BIN)/mypy; status=$$?; wait; exit $$status
	@rm -f .pytest_cache/v/cache/lastfailed
	# In the order of the files: otherwise files with one long test come last, and the other processes wait for them.
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder || $(MAKE) --no-print-directory test-again

# A failed test once more, alone: a machine that stalls for seconds disturbs tests with real processes and clocks.
test-again:
	@echo "running the failed tests a second time, one at a time; a test that passes now depends on the load: mend it"
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

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

# Each prints one table; ratios from one interleaved run. Takes some minutes.
bench: $(VENV)/.ready-test
	@scripts/install-test-programs
	@for name in $$($(BIN)/python -m bench.all); do $(BIN)/python -m bench.$$name || exit 1; done

# Every attack of tests/adversary for SECONDS, on loopback only; prints what was done. docs/reliability.md has the counts.
SECONDS ?= 30
torture: $(VENV)/.ready-test
	@scripts/install-test-programs
	PYTHONPATH=src:tests $(BIN)/python -m adversary.torture $(SECONDS)

$(VENV)/.ready: pyproject.toml
	@scripts/make-venv $(PYTHON) $(VENV)
	@echo "installing gpucommons into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready pyproject.toml
	@echo "installing what the tests need into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
