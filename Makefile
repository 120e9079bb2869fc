# All commands for development. They work in a fresh clone with Python 3.11 or newer and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

# Tests start hundreds of processes, so their imports are compiled only once. Their streams are buffered, as those of
# most workers are: with a reader that does not read, such a stream keeps a lock for which others may wait.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help ci demo test e2e unit browser screenshots stress soak mutants conformance thirdparty lint types format docs bench wheel clean

help: ## Show this list
	@echo "make demo    import real files into the example site; ARGS=--exit ends after the work"
	@echo "             DATABASE_URL=postgresql://... uses that server instead of a private one"
	@echo "make test    run the tests on DATABASE_URL, else in a container, else on a private server: 3 minutes on 2 CPUs;"
	@echo "             ARGS=\"tests/desk -k send\" runs only these"
	@echo "make e2e     run the other tests with real workers, and the README, the tutorial and the demo literally"
	@echo "make browser run the tests of the admin in a real browser, where chromium is installed"
	@echo "make screenshots renew the pictures of the documentation, docs/images, from those tests"
	@echo "make unit    run the tests of pure code, which need no database: seconds"
	@echo "make stress  run the storms, and the property tests on many examples; ARGS=short: the storms only, smaller, 5 minutes"
	@echo "make soak    run mixed work for an hour, and check that nothing is lost and nothing grows; ARGS=--minutes=3 is a trial"
	@echo "make mutants apply each edit of tests/mutants/edits.py to a copy of the code, and check that tests fail; ARGS=\"7 9\""
	@echo "make conformance run Django's own tests of task backends against HorsiesBackend; fetches them from PyPI"
	@echo "make thirdparty run Wagtail and django-pictures, which send by django.tasks, on HorsiesBackend"
	@echo "make lint    check style, layers, types and migrations"
	@echo "make types   check a project that uses the installed wheel with mypy and pyright"
	@echo "make ci      run all checks that a change has to pass"
	@echo "make format  format the code"
	@echo "make docs    build the pages as a site in build/docs; a warning is an error"
	@echo "make bench   measure drain, or other scenarios: ARGS=\"latency enqueue --repeats=5\"; see docs/benchmarks"
	@echo "make wheel   build dist/horsies_django-*.whl, and print how to install it"
	@echo "make clean   remove the files that the other commands made"
	@echo "PYTHON=python3.13 chooses the interpreter (after make clean), VENV=directory another environment"

# Only a DATABASE_URL of the command line is used, because the one in the environment may be another project's database.
demo: $(VENV)/.has-example
	@$(if $(findstring command line,$(origin DATABASE_URL)),exec env -u DATABASE_URL $(BIN)/python manage.py demo --database-url="$$DATABASE_URL" $(ARGS),exec env -u DATABASE_URL $(BIN)/python manage.py demo $(ARGS))

# The tests run in as many processes as the machine can keep busy (tests/support/layers.py), each with its own database.
PARALLEL := -n auto --dist=loadfile --no-loadscope-reorder

test: $(VENV)/.has-test
	@$(BIN)/python -m pytest $(or $(ARGS),-m "not stress and not e2e" --ignore=tests/browser --ignore=tests/typed $(PARALLEL))

e2e: $(VENV)/.has-test
	@$(BIN)/python -m pytest -m e2e --ignore=tests/browser --ignore=tests/typed $(PARALLEL) $(ARGS)

unit: $(VENV)/.has-test
	@$(BIN)/python -m pytest tests/unit $(ARGS)

browser: $(VENV)/.has-browser
	@$(BIN)/python -m pytest tests/browser -n 2 $(ARGS)

# The tests leave pictures with the widths 390 and 1200, light and dark. These are copied into the documentation.
SHOTS := build/screenshots
SHOWN := overview-1200-light:overview overview-390-dark:overview-narrow-dark failures-1200-light:failures tasks-1200-light:task-list \
	task-1200-light:task queue-1200-light:queue workflow-1200-light:workflow workflow-390-light:workflow-narrow workflow-undone-1200-dark:workflow-dark
screenshots: $(VENV)/.has-browser
	@rm -rf $(SHOTS) && mkdir -p $(SHOTS)
	@HORSIES_TEST_PICTURES=$(SHOTS) $(BIN)/python -m pytest tests/browser -n 2 -k readable $(ARGS)
	@for shot in $(SHOWN); do cp "$(SHOTS)/$${shot%%:*}.png" "docs/images/$${shot##*:}.png" || exit 1; done

# One storm at a time, because each uses all CPUs. In the short form, which checks no figures, two at a time.
stress: $(VENV)/.has-stress
	@$(if $(filter short,$(ARGS)),HORSIES_STRESS=short $(BIN)/python -m pytest -m "stress and not thorough" -n 2 --dist=loadfile,\
		HORSIES_STRESS=full $(BIN)/python -m pytest -m "stress or thorough" $(ARGS))

soak: $(VENV)/.has-stress
	@$(BIN)/python -m tests.stress.soak $(ARGS)

mutants: $(VENV)/.has-test
	@$(BIN)/python -m tests.mutants $(ARGS)

conformance: $(VENV)/.has-test
	@$(BIN)/python -m tests.conformance $(ARGS)

thirdparty: $(VENV)/.has-thirdparty
	@$(BIN)/python -m pytest tests/thirdparty $(ARGS)

lint: $(VENV)/.has-lint
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m tests.meta.style
	$(BIN)/lint-imports
	$(BIN)/python -m mypy
	$(BIN)/python -m example_project.postgres $(BIN)/python manage.py makemigrations --check --dry-run

types: $(VENV)/.has-lint
	@$(BIN)/python -m pytest tests/typed $(ARGS)

ci:
	.ci/run

format: $(VENV)/.has-lint
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(VENV)/.has-docs
	@$(BIN)/python -m sphinx -W --keep-going -n -q -b html $(ARGS) docs build/docs
	@echo "build/docs/index.html"

bench: $(VENV)/.has-bench
	@$(BIN)/python -m benchmarks $(or $(ARGS),drain)

wheel: $(VENV)/.made
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@echo "Install it into the environment of your project:"
	@for file in dist/*.whl; do echo "    pip install \"$(CURDIR)/$$file[binary]\""; done

clean:
	rm -rf .venv .venv-newest .venv-docs .tox build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The dependencies of a command are a group in pyproject.toml, which is installed again if that file has changed. The
# group of lint includes the others.
$(VENV)/.has-%: pyproject.toml $(VENV)/.made
	@echo "Installing what 'make' needs for $* into $(VENV) (the first time takes about a minute) ..."
	@$(BIN)/python -m pip install --quiet --editable ".[binary]" --group $*
	@touch $@ $(if $(filter lint,$*),$(addprefix $(VENV)/.has-,example bench test browser stress))

# Dependency groups need pip 25.1; Python 3.11 brings an older one.
$(VENV)/.made:
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

# This runs on any Python, also on one that is too old. It prints in one line what is missing.
define CHECK_PYTHON
command -v $(PYTHON) >/dev/null || { \
	echo "'$(PYTHON)' was not found: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "Python 3.11 or newer is needed, '$(PYTHON)' is $$($(PYTHON) --version 2>&1): name another with make PYTHON=/path/to/python3" >&2; exit 1; }; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	echo "'$(PYTHON)' has no venv module: install it (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
endef
