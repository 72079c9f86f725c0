# make demo    sets everything up and runs the main job end to end
# make test    sets everything up and runs the tests
# Another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
VENV := .venv/$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types protos protos-fresh protos-lint lock install clean

demo: $(READY)
	$(BIN)/python -m examples.demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Writes the committed protobuf modules anew.
protos: $(READY)
	$(BIN)/python protos/generate.py

# Fails when the committed protobuf modules are not what the .proto files give.
protos-fresh: protos
	git diff --exit-code -- protos
	@test -z "$$(git ls-files --others --exclude-standard protos)"

# Checks the style of the API, and that it breaks no caller of the last release; AGAINST=REF compares
# with another.
AGAINST ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
protos-lint: $(READY)
	$(BIN)/buf lint
	@if [ -n "$(AGAINST)" ]; then \
	  $(BIN)/buf breaking --against '.git#ref=$(AGAINST)' --against-config buf.yaml; \
	else echo "There is no release yet that the API could break the callers of."; fi

# Pins the newest releases for every supported Python.
lock: $(READY)
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --all-extras --group dev \
	  --no-annotate --no-header pyproject.toml -o constraints.txt

# Installs what the images run: make install EXTRAS=registry PREFIX=/opt/servax
install:
	$(PYTHON) -m venv $(PREFIX)
	$(PREFIX)/bin/python -m pip install -q --upgrade pip
	$(PREFIX)/bin/python -m pip install -q --no-compile -c constraints.txt '.[$(EXTRAS)]'

clean:
	rm -rf .venv .cache .demo .mypy_cache .pytest_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (minutes the first time, nothing after that)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q --progress-bar on -c constraints.txt -e '.[examples]' --group dev
	@touch $@
