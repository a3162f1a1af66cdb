# Everything runs in .venv, which `make env` creates; no other set-up is needed.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What protos are compared with for breaking changes.
BASE ?= origin/main

.PHONY: help env demo demo-envoy test test-slow test-k8s lint protos bench evaluate evaluate-joint train clean

help: ## Show this list.
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

env: $(STAMP) ## Create .venv with everything: server, training, benchmarks, tests.

$(STAMP): pyproject.toml constraints.txt
	$(RUN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(RUN)/python -m pip install --quiet --constraint constraints.txt --editable '.[firmament,training,bench,ray,dev]'
	@command -v h2load >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nghttp2-client >/dev/null; \
	} || echo "h2load is missing: policy-bench uses a slower client. Debian has it: apt-get install nghttp2-client"
	touch $@

demo: env ## Serve the shipped policies: dispatch a trace, orchestrate, scale through an hour; compare with baselines.
	$(RUN)/policy-bench demo
	$(RUN)/policy-bench demo-orchestrate
	$(RUN)/policy-bench demo-scale

demo-envoy: env ## A real Envoy with our endpoint picker, against Envoy's own balancing, on back ends of changing speed.
	$(RUN)/policy-bench demo-envoy

test: env ## The test suite, without the slow tests (under ten minutes).
	$(RUN)/python -m pytest -q -m 'not slow' -n 2 --dist loadfile --max-worker-restart 0

test-slow: env ## The slow tests.
	$(RUN)/python -m pytest -q -m slow

test-k8s: env ## The tests with a real Kubernetes control plane, whose programs lie in the folder KUBEBUILDER_ASSETS.
	$(RUN)/python -m pytest -q -m k8s tests/k8s

lint: env ## Linter, formatter, strict types, proto lint and breaking changes, generated code up to date.
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	cd protos && ../$(RUN)/buf lint
	@if git rev-parse --quiet --verify "$(BASE)^{commit}" >/dev/null 2>&1; then \
	  $(RUN)/buf breaking protos --against ".git#ref=$$(git rev-parse "$(BASE)^{commit}"),subdir=protos"; \
	else \
	  echo "no $(BASE) here: protos are not checked for breaking changes"; \
	fi
	$(RUN)/python protos/generate.py --check

protos: env ## Generate policy_server/proto from protos/.
	$(RUN)/python protos/generate.py

bench: env ## Latency of the server beside an echo server.
	$(RUN)/policy-bench latency

evaluate: env ## The dispatch policies on held-out seeds, all four patterns; the scaling policies at both loads.
	for workload in P1 P2 P3 P4; do $(RUN)/policy-train evaluate dispatch --workload $$workload || exit 1; done
	for load in normal high; do $(RUN)/policy-train evaluate scale --load $$load || exit 1; done

JOINT := $(RUN)/policy-train evaluate joint --report reports/joint

evaluate-joint: env ## Dispatch and orchestration combined on both testbeds and a recorded trace: reports/joint/report.md (hours; goes on where it was).
	$(JOINT) --preset testbed-40 --workload P1,P2,P3,P4
	$(JOINT) --preset testbed-100 --workload P1,P2,P3,P4
	$(JOINT) --preset testbed-40 --trace "$${POLICY_TRACES:-../shared/traces}/alibaba-batch-a.csv" --seeds 50

train: env ## Train dispatch (about a quarter of an hour on an idle core) and scaling (five minutes) anew.
	$(RUN)/policy-train dispatch --run runs/dispatch
	$(RUN)/policy-train scale --run runs/td3

clean: ## Remove .venv and caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
