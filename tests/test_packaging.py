"""How the package is called, and what a resolver has to look at."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamod import __version__
from dynamod.engine.names import ENGINES
from dynamod.message.install import DISTRIBUTION, extra_hint

ROOT = Path(__file__).parents[1]
TEXTS = ("*.md", "systemd/*", "deploy/*", ".ci/*", "configs/*", "graphs/*.py", "dynamod/**/*.py", "dynamod/**/*.md")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_distribution_is_called_as_the_hints_say(project: dict[str, Any]) -> None:
    assert project["project"]["name"] == DISTRIBUTION != "dynamod"
    assert extra_hint("infra").endswith(f"uv sync --extra infra in {ROOT}, or pip install '{ROOT}[infra]'")
    assert f"/{DISTRIBUTION.replace('-', '_')}-*.whl" in (ROOT / ".ci/run").read_text()


def test_the_version_is_said_once_and_heads_the_changelog(project: dict[str, Any]) -> None:
    assert "version" in project["project"]["dynamic"]
    assert "version" not in project["project"]
    said = re.search(r'^__version__ = "(.+)"$', (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text(), re.M)
    assert said is not None
    assert said[1] == __version__
    dated = r"^## (\S+)( \(not released yet\)| \(\d{4}-\d\d-\d\d\))?$"
    heads = re.findall(dated, (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[0][0] == __version__
    assert [version for version, when in heads[1:] if not when or "not" in when] == []


def test_ci_and_the_release_build_twice_and_compare() -> None:
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    lines = "\n".join(step.get("run", "") for step in release["jobs"]["build"]["steps"])
    for text in ((ROOT / ".ci/run").read_text(), lines):
        assert "SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)" in text
        assert len(re.findall(r"\buv build\b", text)) == 2
    assert "cyclonedx-py environment" in lines


def test_nothing_installs_the_package_of_somebody_else() -> None:
    files = {file for pattern in TEXTS for file in ROOT.glob(pattern) if file.is_file()}
    assert len(files) > 100
    for file in files:
        text = file.read_text(errors="ignore")
        assert not re.search(r"(?<!/)dynamod\[|install '?dynamod\b(?!-llm)|--with dynamod\b", text), file


def test_every_extra_of_an_engine_has_an_engine(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    engines = {entry.extra for entry in ENGINES.values() if entry.extra}
    assert engines | {"all", "arima", "demo", "infra", "nixl", "nvml", "otel", "tensorrt-llm", "trace"} == extras.keys()
    assert all(">=" in text for name in (*engines, "nixl") for text in extras[name])
    assert extras["tensorrt-llm"] == [f"{DISTRIBUTION}[trtllm]"]


def test_what_has_an_environment_of_its_own_is_not_resolved_in_a_checkout(project: dict[str, Any]) -> None:
    extras, left_out = project["project"]["optional-dependencies"], project["tool"]["uv"]["override-dependencies"]
    apart = {text.partition(">=")[0] for entry in ENGINES.values() if entry.apart for text in extras[entry.extra]}
    assert {f"{name}; sys_platform == 'never'" for name in apart} == {*left_out}
    assert apart == {"vllm", "sglang", "tensorrt-llm"}


def test_what_is_published_as_source_only_has_its_metadata_here(project: dict[str, Any]) -> None:
    known = {entry["name"]: entry["requires-dist"] for entry in project["tool"]["uv"]["dependency-metadata"]}
    assert {text.partition(">=")[0] for text in known["llama-cpp-python"]} >= {"numpy", "jinja2", "diskcache"}


def test_a_checkout_has_nixl_without_torch(project: dict[str, Any]) -> None:
    """Its wheels name torch, and both versions of CUDA; `transfer.nixl` and the engines' own import need neither."""
    known = {entry["name"]: entry["requires-dist"] for entry in project["tool"]["uv"]["dependency-metadata"]}
    assert [text.partition(">=")[0] for text in project["project"]["optional-dependencies"]["nixl"]] == ["nixl"]
    assert known["nixl"] == ["nixl-cu12"]
    assert known["nixl-cu12"] == ["numpy"]
