"""Debian's Chromium with playwright, and the machine of the end-to-end tests.

Where playwright (the dependency group `browser`) or Chromium is missing, the tests are skipped and say so.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.e2e.conftest import machine, played, servers
from tools.vendored import listed, member, package

__all__ = ["chromium", "machine", "played", "servers"]

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 820}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 820}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 400, "height": 820}, "color_scheme": "light"},
}
SERIOUS = ("serious", "critical")
WAIT_MS = 60_000
WIDE = """[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => one.getAttribute('aria-label'))"""


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The rules of accessibility, from the npm registry; empty where it cannot be reached."""
    (library,) = listed()["tests"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return member(package(library), "package/axe.min.js").decode()
    return ""


class Page:
    """A page of a browser. `errors`: what it has printed as an error, or thrown."""

    def __init__(self, page: Any, axe: str) -> None:
        self.page, self.axe = page, axe
        self.errors: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, url: str) -> None:
        """Load a page, and wait for its connection."""
        self.page.goto(url)
        self.sees(".connection.live")

    def go(self, name: str) -> None:
        """Another page of the console, by its name in the navigation."""
        self.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        self.sees("nav a[aria-current]", name)

    def sees(self, selector: str, text: str = "") -> Any:
        """The first element, once it is there with the text."""
        found = self.page.locator(selector).filter(has_text=text).first if text else self.page.locator(selector).first
        found.wait_for(state="attached")
        return found

    def find(self) -> list[str]:
        """Serious findings of axe, and whether the page is wider than the window, or a table than its place."""
        found = []
        if self.axe:
            self.page.evaluate(self.axe)
            run = self.page.evaluate("axe.run()")
            found = [
                f"{one['id']}: {[node['html'][:120] for node in one['nodes']][:3]}"
                for one in run["violations"]
                if one["impact"] in SERIOUS
            ]
        wider = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        found += [f"wider than the window by {wider}"] if wider > 0 else []
        return [*found, *[f"the table {name!r} is cut off" for name in self.page.evaluate(WIDE)]]

    def shoot(self, name: str) -> None:
        """Save a picture, where CONSOLE_SCREENSHOTS names a folder."""
        if folder := os.environ.get("CONSOLE_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{folder}/{name}.png")


@pytest.fixture
def browse(chromium: Any, axe: str) -> Iterator[Callable[..., Page]]:
    """Opens pages, by the names of LOOKS; each in a context of its own."""
    opened = []

    def make(look: str = "light") -> Page:
        context = chromium.new_context(**LOOKS[look])
        opened.append(context)
        return Page(context.new_page(), axe)

    yield make
    for context in opened:
        context.close()
