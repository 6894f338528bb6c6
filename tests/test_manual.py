"""The manual: generated files are up to date, and every page is in the navigation."""

import re
from pathlib import Path

import pytest
import yaml

from tools.manual import chart, events
from tools.manual.__main__ import FOLDER, PAGES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), f"{name} is old: run python -m tools.manual"


def pages(entry: object) -> list[str]:
    """The files below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for one in inner for page in pages(one)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation_once() -> None:
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text())
    listed = pages(yaml.safe_load(text)["nav"])
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_links_lead_to_pages() -> None:
    wrong = []
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
        missing = [one for one in targets if not one.startswith("https://") and not (page.parent / one).exists()]
        wrong += [f"{page.relative_to(ROOT)}: {target}" for target in missing]
    assert not wrong, "\n".join(wrong)


def test_the_chart_reads_the_values_of_the_table() -> None:
    assert chart.bounds("8.8 to 12.2 µs") == (8.8, 12.2)
    assert chart.bounds("0.6 s") == (0.6, 0.6)
    assert chart.bounds("150 MB (+ 73 MB for command and daemon)") == (150, 223)
    assert [row.what for row in chart.measures(chart.SOURCE.read_text())][:1] == ["ingress CPU per token, 64 streams"]


@pytest.mark.parametrize("name", events.STREAMED)
def test_the_page_of_events_has_each_event_that_is_sent(name: str) -> None:
    module, listed = events.STREAMED[name]
    assert (found := events.sent(module))
    assert found <= {*listed}
