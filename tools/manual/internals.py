"""The READMEs of the code as pages of the manual: a hook of MkDocs, which reads them where they are.

MkDocs loads this file alone: it imports nothing of this package.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "internals"
"""Where the pages are, below the root of the manual."""
_DYNAMOD = {
    "Processes": ("actor", "daemon", "runtime", "control", "cli", "observe"),
    "A request": ("http", "ingress", "preprocess", "parsers", "structured", "router", "migration", "worker"),
    "Engines and the KV cache": ("engine", "kvcache", "sample"),
    "The wire": ("message", "transport", "discovery"),
    "Graphs and Python files": ("graph", "sdk", "compat"),
    "Features": (
        *("extension", "features"),
        *(f"features/{name}" for name in ("anthropic", "audit", "batches", "chat", "cluster", "doctor")),
        "features/console",
        *(f"features/{name}" for name in ("embeddings", "exporter", "infra", "isolation", "kubernetes")),
        *(f"features/{name}" for name in ("lora", "ollama")),
        *(f"features/{name}" for name in ("on_demand", "planner", "prefill", "prefill/transfer", "replay")),
        *(f"features/{name}" for name in ("request_trace", "responses", "role_switch", "tags", "tiers")),
        *(f"features/{name}" for name in ("tokenize", "top", "tracing", "trust")),
    ),
}
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Internals": {
        "": ("dynamod/README.md",),
        **{title: tuple(f"dynamod/{name}/README.md" for name in names) for title, names in _DYNAMOD.items()},
        "Tests and tools": (
            *("tests/README.md", "tests/clients/README.md", "tests/engine/contract/README.md"),
            *("tools/README.md", "tools/sim/README.md", "tools/bench/README.md"),
        ),
        "Files that ship": (
            "graphs/README.md",
            "configs/README.md",
            "examples/README.md",
            "deploy/README.md",
            "systemd/README.md",
        ),
    },
    "Project": {
        "": ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "tests/e2e/SEEDS.md"),
    },
}
"""Per section of the navigation the groups of documents, by their paths in the repository; "": without a group."""
SOURCES = tuple(path for groups in SECTIONS.values() for paths in groups.values() for path in paths)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^(?!\s*(?:[-*]|\d+\.) |\s*$|  )(.*)\n(?=(?:[-*]|1\.) )", re.MULTILINE)
"""A line right before a list. GitHub needs no empty line there."""


def on_config(config: Any) -> Any:
    """Add the pages to the navigation, after the pages that `mkdocs.yml` lists in the same section."""
    for entry in config.nav:
        for section, pages in entry.items():
            for title, paths in SECTIONS.get(section, {}).items():
                found = [page(path) for path in paths]
                pages.extend(found if not title else [{title: found}])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and their pictures."""
    from mkdocs.structure.files import File

    for source in SOURCES:
        files.append(File.generated(config, page(source), content=text(source)))
        for picture in pictures(source):
            files.append(File.generated(config, f"{FOLDER}/{picture}", abs_src_path=str(ROOT / picture)))
    return files


def page(source: str) -> str:
    """The page of a document, below the root of the manual. No page is called README: that would be a section's own."""
    return f"{FOLDER}/{source.replace('/README.md', '.md')}"


def text(source: str) -> str:
    """A document as a page. Links lead to pages of the manual; a link to a source file becomes its text."""
    given = (ROOT / source).read_text(encoding="utf-8")
    parts, at = [], 0
    for fence in _FENCE.finditer(given):
        parts += [_prose(source, given[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _prose(source, given[at:])])


def pictures(source: str) -> list[str]:
    """The pictures that a document shows, by their paths in the repository."""
    links = _LINK.finditer((ROOT / source).read_text(encoding="utf-8"))
    return [_path(source, link[3]) for link in links if link[1] and "//" not in link[3]]


def _prose(source: str, given: str) -> str:
    return _ITEM.sub(r"\1\n\n", _LINK.sub(lambda link: _link(source, link), given))


def _link(source: str, link: re.Match[str]) -> str:
    target, sign, anchor = link[3].partition("#")
    if "//" in target or not target:
        return link[0]
    path = _path(source, target)
    leads = f"{FOLDER}/{path}" if link[1] else ""
    for found in (path, posixpath.join(path, "README.md")):
        if found in SOURCES:
            leads = page(found)
        elif found.startswith("docs/") and (ROOT / found).is_file():
            leads = found.removeprefix("docs/")
    if not leads:
        return link[2]
    return f"{link[1]}[{link[2]}]({posixpath.relpath(leads, posixpath.dirname(page(source)))}{sign}{anchor})"


def _path(source: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
