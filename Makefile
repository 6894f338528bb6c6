# Short names for the commands of developers. `make` alone prints them.
.PHONY: help check format test manual hooks
help:  ## print this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'
check:  ## format, lint, spelling, types, language and unit tests
	uv run ruff format --check .
	uv run ruff check .
	uv run codespell
	uv run mypy
	uv run pytest -q tests/test_structure.py tests/test_repository.py tests/test_language.py tests/test_manual.py
	HYPOTHESIS_PROFILE=quick uv run pytest -q tests/actor tests/control tests/daemon tests/discovery tests/extension tests/graph \
	  tests/http tests/kvcache tests/migration tests/observe tests/parsers tests/router tests/runtime tests/structured tests/worker
format:  ## format the code and mend what can be mended
	uv run ruff check --fix .
	uv run ruff format .
test:  ## the suite: 13 minutes on two cores
	uv run pytest
manual:  ## write the reference pages and build the manual into build/manual
	uv run python -m tools.manual
	uv run --only-group docs mkdocs build --strict --site-dir build/manual
hooks:  ## install the git hook
	uvx pre-commit install
