# One virtual environment, .venv, for everything. `make run` and `make test` need nothing else first.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=

.PHONY: setup setup-gpu-dev run test lint bench clean

# The environment, made anew when the lock or the project file changes.
$(VENV)/.made: requirements.lock pyproject.toml
	@echo "bargein: setting up $(VENV) (a minute or two, once)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "bargein needs Python 3.11 to 3.13, this is %d.%d; set PYTHON=" % v)'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@mkdir -p .ns/bargein && for d in realtime pipeline agent engine kernels models http_api conformance client inspector; do ln -sfn ../../$$d .ns/bargein/$$d; done
	@touch $@

setup: $(VENV)/.made
	@$(VENV)/bin/bargein models pull

# Triton (286 MB, 1 GB unpacked) is for the tests of the GPU kernels and for building them; it has wheels for Linux only.
# Where it does not install, those tests are left out.
$(VENV)/.triton: $(VENV)/.made
	@$(PY) -m pip install --quiet --disable-pip-version-check triton==3.9.0 || echo "bargein: no Triton here: the GPU kernels' tests are left out"
	@touch $@

setup-gpu-dev: $(VENV)/.triton
	@$(PY) -m pip install --quiet --disable-pip-version-check "cupy-cuda12x>=14,<15"

run: $(VENV)/.made
	@$(VENV)/bin/bargein serve $(ARGS)

test: setup $(VENV)/.triton
	@$(PY) -m pytest -n 2 $(ARGS)

lint: $(VENV)/.made
	@$(VENV)/bin/ruff check .
	@MYPYPATH=.ns $(VENV)/bin/mypy -p bargein.realtime -p bargein.pipeline -p bargein.engine -p bargein.http_api -p bargein.client -p bargein.conformance -p bargein.agent

bench: setup
	@$(VENV)/bin/bargein bench $(ARGS)

clean:
	rm -rf $(VENV) .ns build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
