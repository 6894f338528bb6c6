"""Debian's Chromium with playwright. Not a test: conftest.py files import the fixture."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for all tests of a file. Playwright's loop runs as long: no asynchronous test could run meanwhile."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: uv sync --group browser")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is missing: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
