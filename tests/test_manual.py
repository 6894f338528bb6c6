"""The manual: generated files are up to date, and every page is in the navigation."""

import json
import os
import re
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from tools.manual import chart, config, events, internals, pictures, record
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


def leads_to_a_page(page: Path, target: str) -> bool:
    place = Path(os.path.normpath(page.parent / target))
    return place.exists() or os.path.relpath(place, DOCS) in map(internals.page, internals.SOURCES)


def test_links_lead_to_pages() -> None:
    wrong = []
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
        missing = [one for one in targets if not one.startswith("https://") and not leads_to_a_page(page, one)]
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


def test_every_readme_of_the_code_is_a_page() -> None:
    folders = ("dynamod", "tests", "tools", "graphs", "configs", "examples", "deploy", "systemd")
    found = {str(path.relative_to(ROOT)) for name in folders for path in (ROOT / name).rglob("README.md")}
    assert found == {one for one in internals.SOURCES if one.endswith("README.md")}
    assert len({*internals.SOURCES}) == len(internals.SOURCES)
    assert not [one for one in internals.SOURCES if not (ROOT / one).is_file()]


def test_links_of_a_readme_lead_to_pages_of_the_manual() -> None:
    assert "(../../docs" not in internals.text("dynamod/control/README.md")
    assert "[metrics](../../reference/metrics.md)" in internals.text("dynamod/control/README.md")
    assert "[dynamod/extension](dynamod/extension.md)" in internals.text("CONTRIBUTING.md")


@pytest.mark.parametrize(
    ("line", "page"),
    [
        ("[a](../worker/README.md#masks)", "[a](worker.md#masks)"),
        ("[a](../worker/)", "[a](worker.md)"),
        ("![a](picture.svg)", "![a](router/picture.svg)"),
        ("[a](router.py)", "a"),
        ("[a](https://example.org/README.md)", "[a](https://example.org/README.md)"),
        ("[a](#here)", "[a](#here)"),
        ("[a](../../docs/how-to/logs.md)", "[a](../../how-to/logs.md)"),
        ("Some text\n- an item\n- another", "Some text\n\n- an item\n- another"),
        ("- an item\n  goes\n- another", "- an item\n  goes\n- another"),
    ],
)
def test_a_line_of_a_readme(line: str, page: str) -> None:
    assert internals._prose("dynamod/router/README.md", line) == page


def test_the_hook_adds_pages_to_the_navigation() -> None:
    class Config:
        nav: ClassVar[list[dict[str, list[object]]]] = [{"Home": ["index.md"]}, {"Internals": ["internals/index.md"]}]

    added = internals.on_config(Config).nav[1]["Internals"]
    assert added[:2] == ["internals/index.md", "internals/dynamod.md"]
    assert {"The wire": [f"internals/dynamod/{one}.md" for one in ("message", "transport", "discovery")]} in added


def test_the_picture_of_the_router_shows_its_arithmetic() -> None:
    sums = {name: sum(terms.values()) for name, terms in pictures.costs().items()}
    assert min(sums, key=lambda name: sums[name]) == "worker A", "the page says why A costs least"
    assert sums == pytest.approx({"worker A": 4.0, "worker B": 8.4, "worker C": 11.0})


def test_no_page_needs_another_host_to_be_drawn() -> None:
    assert [page for page in DOCS.rglob("*.md") if "```mermaid" in page.read_text()] == [], (
        "Mermaid is loaded from afar"
    )


def test_every_picture_is_shown_on_light_and_on_dark_pages() -> None:
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    for name in (name for name in PAGES if name.endswith(".svg")):
        theme = name.removesuffix(".svg").rpartition("-")[2]
        assert (f"{name}#only-{theme}" if theme in ("light", "dark") else name) in text, name


def test_keys_show_their_variables() -> None:
    page = (DOCS / "reference/config.md").read_text()
    for section, key in (("Frontend", "api_keys"), ("Processor", "migration_limit"), ("Worker", "stall_timeout")):
        variable = config.variables(section)[key]
        assert re.search(rf"^\| `{key}` .*\(environment: `{variable}`\) \|$", page, re.MULTILINE)


def test_the_recording_shows_a_kill_and_the_answer_that_continues() -> None:
    serve, ask, kill = json.loads(record.FILE.read_text())["terminals"]
    killed = next(second for second, text in kill["pieces"] if "kill -9" in text)
    answer = "".join(text for _, text in ask["pieces"])
    assert record.NUMBERS in answer[-200:], "the answer is whole"
    assert sum(second > killed for second, _ in ask["pieces"]) > 30, "most of it came after the kill"
    assert "moves to another instance" in "".join(text for second, text in serve["pieces"] if second >= killed)
    assert str(ROOT) not in record.FILE.read_text()
