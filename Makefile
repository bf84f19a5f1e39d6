# What people run here. Each target first makes .venv, when it is missing or pyproject.toml changed;
# that needs python3 (3.11 or newer) with venv, and a package index.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# `make demo PLOT=other.png`, `make bench DATA=directory`, `make test TESTS=tests/bucketing`, `make wheel OUT=dist`
PLOT ?= demo_plot.png
DATA ?=
TESTS ?=
OUT ?=

# Of all tests each tenth one, another part on each day of the year.
PART ?= $(shell expr $$(date +%j) % 10)/10
# The random examples of that part: the same all day, so that a failure can be repeated.
SEED ?= $(shell date +%Y%j)

.PHONY: demo test slow daily libraries check wheel site next-jax bench deep docs format clean

demo: $(INSTALLED)
	@echo "demo: real text of every length through a transformer; about 4 minutes on 2 cores"
	@$(BIN)/python -m demo $(PLOT)

test: $(INSTALLED)
	@echo "test: the test suite, but for what is marked slow; about 10 minutes on 2 cores"
	@$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow" $(TESTS)

slow: $(INSTALLED)
	@echo "slow: the tests that make test leaves out"
	@$(BIN)/python -m pytest -n 2 --dist worksteal -q -m slow $(TESTS)

daily: $(INSTALLED)
	@echo "daily: part $(PART) of make deep; about 10 minutes on 2 cores"
	@HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n 2 -q --part $(PART) --hypothesis-seed $(SEED) $(TESTS)

libraries: $(INSTALLED)
	@echo "libraries: haiku, numpyro, orbax, grain, Keras and transformers join .venv, and their tests run; about 4 minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[libraries]"
	@$(BIN)/python -m pytest -n 2 -q tests/libraries
	@$(BIN)/python docs/run_pages.py docs/libraries.md

check: $(INSTALLED)
	@echo "check: lint, format, types and pages of docstrings; nothing is changed (make format, docs)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/python -m pytest -q tests/test_docs.py -k "made_page or every_public_name"

wheel: $(INSTALLED)
	@echo "wheel: wheel and sdist, and a program where the wheel alone is installed; about a minute"
	@$(BIN)/python scripts/wheel.py $(if $(OUT),--out $(OUT))

next-jax: $(INSTALLED)
	@echo "next-jax: the newest jax in .venv-next, the names that it dropped, and tests; some ten minutes"
	@$(BIN)/python scripts/next_jax.py --python $(PYTHON)

bench: $(INSTALLED)
	@echo "bench: all benchmarks, into benchmarks/results; leave the machine alone meanwhile"
	@$(BIN)/python -m benchmarks.run_all $(if $(DATA),--data $(DATA))

deep: $(INSTALLED)
	@echo "deep: all tests, slow ones too, with many more random examples"
	@HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n 2 -q $(TESTS)

docs: $(INSTALLED)
	@echo "docs: make the reference and pictures anew, run the pages' programs and put in what they print"
	@$(BIN)/python docs/make_reference.py
	@$(BIN)/python docs/make_pictures.py
	@$(BIN)/python docs/run_pages.py --write README.md docs/*.md

site: $(INSTALLED)
	@echo "site: the pages as a site, into build/site; a warning or a broken link is an error"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[site]"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean
	@echo "site: open build/site/index.html"

format: $(INSTALLED)
	@echo "format: ruff puts in order what it can"
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	@echo "clean: remove .venv, build and what tools left behind"
	@rm -rf .venv .venv-next build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml
	@echo "install: .venv with shapeexec and what its tests need; some minutes, once"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python 3.11 or newer, please: make PYTHON=...")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(INSTALLED)
