# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test check bench storm docs lock clean help

help: ## Show what each target does
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(STAMP) ## Build .venv with the command at .venv/bin/seawall

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP) ## Watch a run fail, be undone, and then succeed, against real tool servers
	$(BIN)/seawall demo

test: $(STAMP) check ## Lint, types, import contracts, generated files, then every test
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(STAMP) ## Lint, types, import contracts, generated files fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m gateway.docs --check

docs: $(STAMP) ## Write the generated pages and schemas again
	$(BIN)/python -m gateway.docs

bench: $(STAMP) ## Compare direct calls, a bare proxy and the gateway, side by side
	$(BIN)/python -m loadtests.bench

storm: $(STAMP) ## Run every storm, the scoreboard and the crash storm; write docs/storms (about half an hour)
	$(BIN)/python -m loadtests.scoreboard --runs 1000 --out docs/storms/scoreboard
	$(BIN)/python -m loadtests.crashes --kills 82 --out docs/storms/crashes
	$(BIN)/python -m loadtests.baselines --out docs/storms/baselines
	mkdir -p docs/storms/journal
	$(BIN)/python -m loadtests.journal_rate --json > docs/storms/journal/journal.json
	$(BIN)/python -m loadtests.storms --out docs/storms

lock: ## Resolve the lock file again (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --generate-hashes --no-emit-index-url --no-header --quiet -o requirements.lock

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis var
