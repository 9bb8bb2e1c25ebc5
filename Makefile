# Two commands for a new user: `make demo` and `make demo-stop`. Each target works from a fresh clone.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
# What follows `make demo ARGS=...` goes to python -m jobs.pipeline.
ARGS ?=
# What follows `make test ARGS=...` goes to pytest.
# Two workers, each with whole files: a file's tests share a Ray of their own.
PYTEST := $(VENV)/bin/python -m pytest -m "not slow and not smollm2" --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: help venv demo demo-stop test lint style types docs

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(VENV)/.stamp  ## create $(VENV) from constraints.txt (kept as it is while that file and pyproject.toml are)

# uv where the package index has it, pip elsewhere: the same set. uv does not compile byte code by itself, and a machine
# with PYTHONDONTWRITEBYTECODE would then compile torch and Ray again in every process.
$(VENV)/.stamp: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make venv PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	@if $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt uv; then \
		echo "installing with uv"; \
		UV_FIND_LINKS="$$(echo $${PIP_FIND_LINKS:-} | tr ' ' ',')" $(VENV)/bin/uv pip install --quiet --compile-bytecode \
			--python $(VENV)/bin/python --constraint constraints.txt --editable '.[dev]'; \
	else \
		echo "installing with pip"; \
		$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'; \
	fi
	$(VENV)/bin/python -m pip check
	@touch $@

demo: venv  ## train, search, evaluate, promote and serve the built-in pair on a Ray of this checkout's own
	@$(VENV)/bin/python -m jobs.demo start $(ARGS)

demo-stop:  ## end exactly what `make demo` started
	@if [ -x $(VENV)/bin/python ]; then $(VENV)/bin/python -m jobs.demo stop; else echo "no demo is running: there is no $(VENV)"; fi

lint: style types  ## ruff, mypy (strict), import floors

style: venv
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: venv
	$(VENV)/bin/mypy
	PYTHONPATH=platform:. $(VENV)/bin/lint-imports --no-logo

# Much of a test's time is waiting for processes: types are checked meanwhile, and told of at the end.
test: style  ## lint, and every test that needs no download and under a minute
	@nice $(MAKE) --no-print-directory types > $(VENV)/types.log 2>&1 & types=$$!; \
	$(PYTEST) $(ARGS); tests=$$?; \
	wait $$types; checked=$$?; cat $(VENV)/types.log; \
	exit $$((tests != 0 ? tests : checked))

docs: venv  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
